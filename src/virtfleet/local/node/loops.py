"""Files as block devices of pods: the loop devices of this machine, which losetup makes and takes away.

A pod that has a file as a device has a link to the file. It is made before the device and goes after it, so whoever was
killed in between, a device that no pod has is found by what is left of the pod. One device for each file, whoever uses
it: two would each have a cache of their own. Agents take turns, at the file that the kernel gives devices out by.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import orjson

from virtfleet.local.node.layout import Layout
from virtfleet.work.locks import locked

_CONTROL = Path("/dev/loop-control")
_LINKS = "volumeDevices/kubernetes.io~local-volume"
_LIMIT = 60.0  # seconds that losetup has


def attach(layout: Layout, pod: str, volume: str, file: Path) -> Path:
    """The device of a file, for a volume of a pod. May be repeated."""
    link, file = layout.kubelet / "pods" / pod / _LINKS / volume, file.resolve()
    with locked(_CONTROL, create=False):
        link.parent.mkdir(parents=True, exist_ok=True)
        if not link.is_symlink():
            link.symlink_to(file)
        # A device that the file has already is kept, also one that was to go when it is closed.
        return Path(_losetup("--find", "--show", "--nooverlap", str(file)).strip())


def release(layout: Layout, pod: str = "*") -> None:
    """Let go of the devices of a pod, or of all pods of a node. One that is open goes when it is closed."""
    with locked(_CONTROL, create=False):
        mine = list(layout.kubelet.glob(f"pods/{pod}/{_LINKS}/*"))
        others = set(layout.data.glob(f"nodes/*/root/var/lib/kubelet/pods/*/{_LINKS}/*")).difference(mine)
        used = {os.readlink(link) for link in others}
        for link in mine:
            file = os.readlink(link)
            if file not in used:
                for device in _devices(file):
                    _detach(device, file)
            link.unlink()


def _devices(file: str) -> list[str]:
    """The devices that are made of a file, which may have been deleted since."""
    listed = orjson.loads(_losetup("--list", "--json", "--output", "NAME,BACK-FILE") or '{"loopdevices": []}')
    return [each["name"] for each in listed["loopdevices"] if each["back-file"] in (file, f"{file} (deleted)")]


def _detach(device: str, file: str) -> None:
    try:
        _losetup("--detach", device)
    except OSError:  # one that was to go when it is closed may just have done so
        if device in _devices(file):
            raise


def _losetup(*arguments: str) -> str:
    done = subprocess.run(("losetup", *arguments), capture_output=True, text=True, timeout=_LIMIT)
    if done.returncode:
        raise OSError(done.stderr.strip())
    return done.stdout
