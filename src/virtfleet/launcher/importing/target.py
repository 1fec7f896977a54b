"""The disk that a claim is filled with: `disk.img` in its file system, or the device that it is.

In a file system the disk is written under another name and renamed when it is whole, so that whoever finds `disk.img`
finds all of it. A device has no name to wait for; that it is whole is said by the end of the importer.
"""

from __future__ import annotations

import os
import resource
import stat
import subprocess
from pathlib import Path
from typing import BinaryIO, Final

from virtfleet.launcher.importing import streams
from virtfleet.launcher.importing.streams import PIECE, Counted, Head, Hopeless, Readable, Trouble, unpacked
from virtfleet.protocol import importing
from virtfleet.protocol.importing import Job

DISK: Final = "disk.img"
_ZEROS: Final = bytes(PIECE)
_MEMORY: Final = 1 << 30  # that qemu-img may address
_ONE_HEAP: Final = {"MALLOC_ARENA_MAX": "1"}  # of 64 MiB for each thread else; on a busy machine there are many
_PATIENCE: Final = 3600.0  # seconds that it has in any case
_PACE: Final = 1 << 20  # bytes in a second that it gets more for


class Target:
    """Where the disk goes."""

    def __init__(self, job: Job, directory: str = importing.TARGET, device: str = importing.TARGET_DEVICE) -> None:
        self._job = job
        self._whole = Path(device) if job.block else Path(directory, DISK)
        self._part = self._whole if job.block else Path(directory, f".{DISK}.part")
        self.size = self._room(Path(directory))

    def _room(self, directory: Path) -> int:
        """The size of the disk: what is asked for, or what there is where that is less."""
        if self._job.block:
            with self._open() as device:
                return os.lseek(device.fileno(), 0, os.SEEK_END)
        self._part.unlink(missing_ok=True)  # of an earlier attempt
        about = os.statvfs(directory)
        free = about.f_bavail * about.f_frsize
        return self._job.size if free >= self._job.size else free >> 20 << 20

    def _open(self) -> BinaryIO:
        flags = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | (0 if self._job.block else os.O_CREAT | os.O_TRUNC)
        try:
            return os.fdopen(os.open(self._part, flags, 0o660), "r+b", buffering=0)
        except PermissionError as error:
            hint = "; the node's container runtime has to give devices to the Pod's user" if self._job.block else ""
            raise Trouble(f"the claim cannot be written to: {error.strerror}{hint}") from None

    def blank(self) -> None:
        if not self._job.block:
            self._open().close()
        self._finish()

    def stream(self, source: Readable, scratch: str = importing.SCRATCH) -> None:
        """From an image that comes in pieces; one that is no plain disk is put aside first."""
        image = unpacked(source)
        head = image.peek(streams.HEAD)
        if streams.kind(head) == streams.QCOW2:
            streams.check_size(streams.disk_size(head), self.size)
            aside = Path(scratch, "image")
            with open(aside, "wb") as file:
                _copy(image, file.fileno(), importing.scratch(self.size), "the image")
            _settle(source)
            self._convert(aside, streams.QCOW2)
            aside.unlink()
        else:
            with self._open() as file:
                _copy(image, file.fileno(), self.size, "the disk", sparse=not self._job.block)
            _settle(source)
        self._finish()

    def file(self, path: Path) -> None:
        """From an image that is there as a file, or as a device. It is nobody's link."""
        with open(os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK), "rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            if not stat.S_ISREG(mode) and not stat.S_ISBLK(mode):
                raise Hopeless(f"{path.name} is no file")
            head = file.read(streams.HEAD)
            if streams.compression(head):
                file.seek(0)
                return self.stream(file)
            length = os.lseek(file.fileno(), 0, os.SEEK_END)
        form = streams.kind(head)
        streams.check_size(streams.disk_size(head) if form == streams.QCOW2 else length, self.size)
        self._convert(path, form)
        return self._finish()

    def copy(self, path: Path) -> None:
        """From another claim, whose disk is plain whatever its first bytes say: its guest wrote them."""
        try:
            source = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        except FileNotFoundError:
            raise Hopeless(f"the claim that is copied has no {path.name}") from None
        except OSError as error:
            raise Trouble(f"the claim that is copied: {path.name}: {error.strerror}") from None
        mode, length = os.fstat(source).st_mode, os.lseek(source, 0, os.SEEK_END)
        os.close(source)
        if not stat.S_ISREG(mode) and not stat.S_ISBLK(mode):
            raise Hopeless(f"the claim that is copied: {path.name} is no file")
        streams.check_size(length, self.size)
        self._convert(path, streams.RAW)
        self._finish()

    def _convert(self, source: Path, form: str) -> None:
        """With a program that knows formats, and is told which one it is instead of finding out."""
        onto_device = ["-n"] if self._job.block else []
        command = ["qemu-img", "convert", "-q", "-f", form, "-O", "raw", *onto_device, str(source), str(self._part)]
        limit = _PATIENCE + self.size / _PACE
        try:
            subprocess.run(
                command,
                check=True,
                capture_output=True,
                timeout=limit,
                preexec_fn=_confined,
                env=os.environ | _ONE_HEAP,
            )
        except subprocess.CalledProcessError as error:
            said = error.stderr.decode(errors="replace").strip()[-500:]
            if error.returncode < 0:  # it lacked something, or somebody ended it: that says nothing of the image
                raise Trouble(f"qemu-img ended by signal {-error.returncode}: {said}") from None
            raise (Trouble if "No space" in said else Hopeless)(f"the image cannot be read: {said}") from None
        except subprocess.TimeoutExpired:
            raise Trouble("the image was not converted in time") from None

    def _finish(self) -> None:
        """Have it on disk, in its full size, under its name."""
        if self._job.block:
            with self._open() as device:
                os.fsync(device.fileno())
            return
        with open(self._part, "r+b") as file:
            if os.fstat(file.fileno()).st_size < self.size:
                file.truncate(self.size)
            if self._job.preallocate:
                os.posix_fallocate(file.fileno(), 0, self.size)
            os.fsync(file.fileno())
        os.chmod(self._part, 0o660)
        os.replace(self._part, self._whole)
        directory = os.open(self._whole.parent, os.O_RDONLY | os.O_DIRECTORY)
        os.fsync(directory)
        os.close(directory)


def _confined() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, _MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _settle(source: Readable) -> None:
    """Hear the end of a stream, which may have something against it."""
    if isinstance(source, Counted):
        source.finish()


def _copy(source: Head, target: int, most: int, what: str, *, sparse: bool = False) -> None:
    """All of a stream; in a new file nothing is written where there is nothing."""
    offset = 0
    while piece := source.read(PIECE):
        if offset + len(piece) > most:
            raise Hopeless(f"{what} has more than {most} bytes, for which the claim has room; ask for more storage")
        if not sparse or piece != _ZEROS[: len(piece)]:
            view = memoryview(piece)
            while view:
                written = os.pwrite(target, view, offset)
                view, offset = view[written:], offset + written
        else:
            offset += len(piece)
    if not offset:
        raise Hopeless("the image is empty")
    if sparse:
        os.truncate(target, offset)
