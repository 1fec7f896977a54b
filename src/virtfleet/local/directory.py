"""The directory of one local cluster: where everything that it keeps lies, and what `virtfleet up` was asked for.

    cluster.json    what was asked for: name, port, nodes
    kubeconfig      for people (an administrator's certificate)
    pki/            authorities, certificates and keys
    store/          the API server's objects
    nodes/NAME/     one node's state: its pods, its root for /var/lib/kubelet and /var/run/kubevirt*
    images/         the images that nodes share
    volumes/        what the `local` storage class provisions
    logs/           one file per process

Two clusters share nothing but the machine: everything they make outside (bridges, nft tables, cgroups) carries the
cluster's name, which comes from the directory's path.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import msgspec

from virtfleet.local.nodesfile import NodeSpec

DEFAULT = Path("/var/lib/virtfleet")
DEFAULT_PORT = 6443
MARK = "cluster.json"


class Settings(msgspec.Struct, frozen=True):
    """What the cluster was started with. `name` is short, because it becomes part of network interface names."""

    name: str
    port: int
    pods: str  # the address range of pods
    services: str  # the address range of Services
    nodes: list[NodeSpec] = []
    bare: bool = False  # whether VirtFleet is left out, and there is a Kubernetes alone
    code: str = ""  # fingerprint of the VirtFleet that the installed components were started from


def default_directory() -> Path:
    return place("VIRTFLEET_DATA", DEFAULT, "XDG_STATE_HOME", ".local/state")


def place(variable: str, of_root: Path, base: str, below_home: str) -> Path:
    """Where a user keeps something: in the directory that the variable names, or in root's, or in that of XDG."""
    if configured := os.environ.get(variable):
        return Path(configured)
    if os.geteuid() == 0:
        return of_root
    if configured := os.environ.get(base):
        return Path(configured) / "virtfleet"
    home = Path(os.path.expanduser("~"))
    if not home.is_dir():
        raise RuntimeError(f"this user has no home directory: name a directory of yours with {variable}=DIR")
    return home / below_home / "virtfleet"


def cluster_name(directory: Path) -> str:
    """`vf` and six digits: the same for one directory, different for two."""
    return "vf" + hashlib.sha256(str(directory.resolve()).encode()).hexdigest()[:6]


def load(directory: Path) -> Settings | None:
    """The settings of the cluster in `directory`, None where there is none."""
    try:
        return msgspec.json.decode((directory / MARK).read_bytes(), type=Settings)
    except FileNotFoundError:
        return None


def save(directory: Path, settings: Settings) -> None:
    """Write the settings whole or not at all."""
    new = directory / f"{MARK}.new"
    with new.open("wb") as file:
        file.write(msgspec.json.format(msgspec.json.encode(settings)))
        file.flush()
        os.fsync(file.fileno())  # else a power failure may leave the new name without its content
    new.replace(directory / MARK)
