"""Files as block devices of pods: the loop devices of this machine.

A pod that has a file as a device has a link to the file. It is made before the device and goes after it, so whoever was
killed in between, a device that no pod has is found by what is left of the pod. One device for each file, whoever uses
it: two would each have a cache of their own. Agents take turns, at the file that the kernel gives devices out by.
"""

from __future__ import annotations

import errno
import fcntl
import os
import struct
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from virtfleet.local.node.layout import Layout

_CONTROL, _FREE = "/dev/loop-control", 0x4C82
_CLEAR, _SET_STATUS, _GET_STATUS, _CONFIGURE = 0x4C01, 0x4C04, 0x4C05, 0x4C0A
_INFO, _RESERVED, _FLAGS = 232, 64, 52  # sizes, and where the flags are in the information
_GOES_WHEN_CLOSED = 4
_LINKS = "volumeDevices/kubernetes.io~local-volume"


def attach(layout: Layout, pod: str, volume: str, file: Path) -> Path:
    """The device of a file, for a volume of a pod. May be repeated."""
    link, file = layout.kubelet / "pods" / pod / _LINKS / volume, file.resolve()
    with _alone() as control:
        link.parent.mkdir(parents=True, exist_ok=True)
        if not link.is_symlink():
            link.symlink_to(file)
        for device in _devices(str(file)):
            with suppress(OSError):  # it went a moment ago
                return _keep(device)
        return _make(control, file)


def release(layout: Layout, pod: str = "*") -> None:
    """Let go of the devices of a pod, or of all pods of a node. One that is open goes when it is closed."""
    with _alone():
        mine = list(layout.kubelet.glob(f"pods/{pod}/{_LINKS}/*"))
        others = set(layout.data.glob(f"nodes/*/root/var/lib/kubelet/pods/*/{_LINKS}/*")).difference(mine)
        used = {os.readlink(link) for link in others}
        for link in mine:
            file = os.readlink(link)
            for device in () if file in used else [*_devices(file), *_devices(f"{file} (deleted)")]:
                with _opened(device) as fd, _unless_gone():
                    fcntl.ioctl(fd, _CLEAR, 0)
            link.unlink()


def _devices(backing: str) -> list[Path]:
    """The devices that are made of a file, by the name that the kernel has for it."""
    found = []
    for path in Path("/sys/block").glob("loop*/loop/backing_file"):
        with _unless_gone():
            if path.read_text().removesuffix("\n") == backing:
                found.append(Path("/dev", path.parts[3]))
    return found


def _keep(device: Path) -> Path:
    """A device that is there; one that was to go when it is closed stays."""
    info = bytearray(_INFO)
    with _opened(device) as fd:
        fcntl.ioctl(fd, _GET_STATUS, info)
        flags = struct.unpack_from("=I", info, _FLAGS)[0]
        if flags & _GOES_WHEN_CLOSED:
            struct.pack_into("=I", info, _FLAGS, flags & ~_GOES_WHEN_CLOSED)
            fcntl.ioctl(fd, _SET_STATUS, bytes(info))
    return device


def _make(control: int, file: Path) -> Path:
    with _opened(file) as content:
        while True:
            device = Path(f"/dev/loop{fcntl.ioctl(control, _FREE)}")
            try:
                with _opened(device) as fd:
                    fcntl.ioctl(fd, _CONFIGURE, struct.pack("=II", content, 0) + bytes(_INFO + _RESERVED))
                return device
            except OSError as error:  # others who make devices take no turns with us
                if error.errno != errno.EBUSY:
                    raise


@contextmanager
def _alone() -> Iterator[int]:
    with _opened(Path(_CONTROL)) as control:
        fcntl.flock(control, fcntl.LOCK_EX)
        yield control


@contextmanager
def _opened(path: Path) -> Iterator[int]:
    fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        yield fd
    finally:
        os.close(fd)


@contextmanager
def _unless_gone() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENOENT, errno.ENXIO, errno.ENODEV):
            raise
