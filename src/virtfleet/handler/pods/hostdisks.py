"""Disks that are files of the node: made where that is asked for, and given to the launcher's user.

The gate HostDisk lets whoever makes VMs name any file of a node, as a hostPath does. What is done here goes no further:
only in the directory that the kubelet has mounted in the Pod for this volume, and only to a regular file that has no
other name; what a launcher puts into the directory or into its place leads nowhere else.
"""

from __future__ import annotations

import os
import posixpath
import stat
from contextlib import ExitStack, suppress

from virtfleet.api.disks import HostDisk
from virtfleet.api.quantity import Quantity
from virtfleet.api.vmi import VirtualMachineInstance as VMI
from virtfleet.domain import paths
from virtfleet.handler.pods import mounting
from virtfleet.handler.pods.process import PodProcess
from virtfleet.kube import confined


class NoDisk(Exception):
    """A disk cannot be had; the message is for the VM's owner."""


def make_ready(vmi: VMI, launcher: PodProcess) -> None:
    """All disks of the node that a VM names; may be repeated."""
    for volume in vmi.spec.volumes:
        if volume.host_disk:
            try:
                _make_ready(volume.name, volume.host_disk, launcher)
            except PermissionError:  # storage on which root is nobody: there the launcher makes its file itself
                continue
            except (OSError, NoDisk) as error:
                why = error.strerror if isinstance(error, OSError) else error
                raise NoDisk(f"volume {volume.name!r}: hostDisk {volume.host_disk.path}: {why}") from None


def _make_ready(name: str, disk: HostDisk, launcher: PodProcess) -> None:
    directory, file = posixpath.split(paths.host_disk(name, disk.path))
    with ExitStack() as stack:
        top = stack.enter_context(launcher.opened(posixpath.dirname(directory), os.O_PATH | os.O_DIRECTORY))
        if not mounting.is_mount(top, name):
            raise NoDisk("its directory is not mounted in the Pod")
        place = confined.open_at(top, name, os.O_RDONLY | os.O_DIRECTORY, confined.NO_LINKS)
        stack.callback(os.close, place)
        try:
            opened = confined.open_at(place, file, os.O_PATH, confined.NO_LINKS_NOR_MOUNTS)
        except FileNotFoundError:
            if disk.type != "DiskOrCreate":
                raise NoDisk("there is no such file on the node; make it there, or use type DiskOrCreate") from None
            return _make(place, file, Quantity.parse(disk.capacity or 0).value())
        stack.callback(os.close, opened)
        status = os.fstat(opened)
        if not stat.S_ISREG(status.st_mode) or status.st_nlink != 1:
            raise NoDisk("it is not a regular file with one name; put the disk into a file of its own")
        if status.st_uid != paths.USER:
            os.chown(f"/proc/self/fd/{opened}", paths.USER, paths.USER)


def _make(place: int, file: str, size: int) -> None:
    """A disk that takes no space yet. It has its name when it is complete, and takes nobody else's."""
    if size <= 0:
        raise NoDisk("there is no such file on the node; set capacity to have it made")
    free = os.fstatvfs(place)
    if size > free.f_bavail * free.f_frsize:
        raise NoDisk(f"a disk of {size} bytes does not fit: the node has {free.f_bavail * free.f_frsize} bytes there")
    new = f".{file[:200]}.new"
    with suppress(FileNotFoundError):
        os.unlink(new, dir_fd=place)
    made = os.open(new, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600, dir_fd=place)
    try:
        os.ftruncate(made, size)
        os.fchown(made, paths.USER, paths.USER)
        with suppress(FileExistsError):
            os.link(f"/proc/self/fd/{made}", file, dst_dir_fd=place)  # this very file, whatever has its name by now
    finally:
        os.close(made)
        os.unlink(new, dir_fd=place)
