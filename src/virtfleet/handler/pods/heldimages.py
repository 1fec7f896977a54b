"""Images that containers of a launcher Pod hold, mounted for the launcher: see `pods.heldimages`.

Both sides are the Pod's own mount namespaces, and neither is trusted: the mount is taken in the one, loses all that an
image needs not have (writing, devices, programs), and is attached in the other. No path of either is ever looked up
from the node. A mount stays with the launcher's namespace; whoever is killed in between finds it there, or does it.
"""

from __future__ import annotations

import ctypes
import os
from concurrent.futures import ThreadPoolExecutor

from virtfleet.domain import paths
from virtfleet.handler.devices.assigned import environment
from virtfleet.handler.pods import mounting
from virtfleet.handler.pods.launchers import Unresponsive
from virtfleet.handler.pods.process import PodProcess, of_pod

_MOUNT_SETATTR = 442  # the same on every architecture
_READ_ONLY, _NO_SETUID, _NO_DEVICES, _NO_PROGRAMS = 0x1, 0x2, 0x4, 0x8
_HERE = -100  # AT_FDCWD
_MOST = 256  # a VM has no more disks


def hand_over(launcher: PodProcess) -> None:
    """Have the launcher see every image that is held for it; may be repeated."""
    wanted = environment(launcher.read("environ")).get(paths.HELD_AT, "").split(":")[:_MOST]
    missing = [path for path in wanted if _ours(path) and not _mounted(launcher, path)]
    if not missing:
        return
    holders = {}
    for process in of_pod(launcher.pod, (paths.IMAGE_HOLDER,)):
        holders[environment(process.read("environ")).get(paths.HELD_AT, "")] = process
    for path in missing:
        if path not in holders:
            raise Unresponsive(f"no container of the Pod holds the image for {path}")
        _bring(holders[path], launcher, path)


def _ours(path: str) -> bool:
    """Whether it is where images are looked for. A launcher that lies about it could only harm itself."""
    return os.path.dirname(path) == paths.IMAGE_VOLUMES


def _mounted(launcher: PodProcess, path: str) -> bool:
    """Whether there is more than the empty volume that the Pod has there."""
    lines = launcher.read("mountinfo").decode(errors="replace").splitlines()
    places = (path, path.removeprefix("/var"))  # /var/run is a link in most images
    return sum(line.split()[4] in places for line in lines) > 1


def _bring(holder: PodProcess, launcher: PodProcess, path: str) -> None:
    # A thread of its own, which ends there: what it has entered, no other code of this process is ever in.
    with holder.namespace("mnt") as there, launcher.namespace("mnt") as here, ThreadPoolExecutor(1) as once:
        try:
            once.submit(_carry, there, here, path.encode()).result()
        except OSError as error:
            why = f"an image that a container holds cannot be mounted: {error.strerror}"
            raise OSError(error.errno, why) from None


def _carry(source: int, target: int, path: bytes) -> None:
    """Take the root of one mount namespace and attach it in the other, without ever reading a file of either."""
    mounting.leave()
    mounting.enter(source)
    with mounting.copied(_HERE, b"/") as tree:
        harmless = (ctypes.c_uint64 * 4)(_READ_ONLY | _NO_SETUID | _NO_DEVICES | _NO_PROGRAMS, 0, 0, 0)
        place, size = ctypes.byref(harmless), ctypes.sizeof(harmless)
        mounting.checked(mounting.LIBC.syscall(_MOUNT_SETATTR, tree, b"", mounting.EMPTY_PATH, place, size))
        mounting.enter(target)
        mounting.attach(tree, _HERE, path)
