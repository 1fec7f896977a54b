"""The processes of a local cluster, as the supervisor is told to run them.

Both `virtfleet up` and `virtfleet node` start agents; what is needed for one is written down here once. The supervisor
replaces a process whose command has changed, so a command names all that it depends on: the code in its environment,
and for an agent, its node as the nodes file has it.
"""

from __future__ import annotations

import hashlib
import sys
from functools import cache
from pathlib import Path

import msgspec

import virtfleet
from virtfleet.local import signsoflife, supervisor
from virtfleet.local.directory import Settings

CONTROL_PLANE = "control-plane"


@cache
def fingerprint() -> str:
    """A name for the VirtFleet on this machine: another one for other code or tables."""
    root = Path(virtfleet.__file__).parent
    digest = hashlib.sha256()
    for path in sorted(path for path in root.rglob("*.*") if path.suffix in (".py", ".yaml", ".json")):
        digest.update(f"{path.relative_to(root)}\0".encode() + path.read_bytes())
    return digest.hexdigest()[:16]


def run_control_plane(data: Path) -> None:
    _run(data, CONTROL_PLANE, [sys.executable, "-m", "virtfleet.local", str(data)])


def run_agent(data: Path, settings: Settings, node: str) -> None:
    """Start the agent of a node under the node's name, anew if the node is described differently now.

    The API server must be there already.
    """
    # Certificates are slow to import, and most commands need none.
    from virtfleet.local.identities import open_pki, server_url

    kubeconfig = open_pki(data, settings).write_kubeconfig(server_url(settings), node)
    [spec] = [spec for spec in settings.nodes if spec.name == node]
    argv = [sys.executable, "-m", "virtfleet.local.node", "--data", str(data), "--kubeconfig", str(kubeconfig)]
    _run(data, node, [*argv, "--node", msgspec.json.encode(spec).decode()])


def _run(data: Path, name: str, argv: list[str]) -> None:
    env = {"VIRTFLEET_CODE": fingerprint()}
    supervisor.ask(data, op="run", name=name, argv=argv, env=env, silence=signsoflife.SILENCE)
