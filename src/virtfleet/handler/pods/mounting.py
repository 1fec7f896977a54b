"""What one Pod has, shown to another: mounts that lead from the container of one into that of the other.

The handler's own mounts, and with them the node's, are not touched: a copy of a mount is taken where one Pod has it,
and put into the other Pod's namespace, with which it goes. Whoever unmounts the volume in the first Pod or on the node
takes nothing away from the second. Nothing inside of what is shown is ever looked at.

A namespace is entered by a thread that does nothing else, and ends then (`unshare` first: threads share their root).
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import stat
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress

from virtfleet.handler.pods.process import PodProcess
from virtfleet.kube import confined
from virtfleet.kube.confined import closing

_OPEN_TREE, _MOVE_MOUNT = 428, 429  # the same on every architecture
_CLONE, EMPTY_PATH = 1, 0x1000
_FROM_EMPTY_PATH, _TO_EMPTY_PATH = 0x4, 0x40
_SHARED_ROOT, _MOUNTS = 0x200, 0x20000  # CLONE_FS and CLONE_NEWNS
_DETACH, _NO_FOLLOW = 2, 8

LIBC = ctypes.CDLL(None, use_errno=True)


def shown(launcher: PodProcess, directory: str) -> set[str]:
    """Names in a directory of a Pod at which something is mounted."""
    with suppress(FileNotFoundError), launcher.opened(directory, os.O_RDONLY | os.O_DIRECTORY) as place:
        return {name for name in os.listdir(place) if is_mount(place, name)}
    return set()


async def show(source: int, of: PodProcess, launcher: PodProcess, directory: str, name: str) -> None:
    """Mount what `source` is, a directory or device that is open in the Pod `of`, in a directory of a launcher."""
    is_directory = stat.S_ISDIR(os.fstat(source).st_mode)

    def work() -> None:
        enter(there)
        with copied(source) as copy:
            enter(here)
            with suppress(FileExistsError):
                if is_directory:
                    os.mkdir(name, 0o755, dir_fd=place)
                else:
                    os.close(os.open(name, os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600, dir_fd=place))
            with closing(confined.open_at(place, name, os.O_PATH, confined.NO_LINKS_NOR_MOUNTS)) as spot:
                attach(copy, spot)

    with (
        of.namespace("mnt") as there,
        launcher.namespace("mnt") as here,
        launcher.opened(directory, os.O_PATH | os.O_DIRECTORY) as place,
    ):
        await _apart(work)


async def hide(launcher: PodProcess, directory: str, name: str) -> None:
    """Unmount what is shown under a name, and take its place away. May be repeated."""

    def work() -> None:
        enter(here)
        os.fchdir(place)
        while is_mount(place, name):
            checked(LIBC.umount2(os.fsencode(name), _DETACH | _NO_FOLLOW))
        with suppress(OSError):
            os.unlink(name, dir_fd=place)
        with suppress(OSError):
            os.rmdir(name, dir_fd=place)

    with launcher.namespace("mnt") as here, launcher.opened(directory, os.O_PATH | os.O_DIRECTORY) as place:
        await _apart(work)


def device(launcher: PodProcess, directory: str, name: str) -> str:
    """The block device that is shown under a name, as control groups call it; "" where it is none."""
    with (
        launcher.opened(directory, os.O_PATH | os.O_DIRECTORY) as place,
        closing(confined.open_at(place, name, os.O_PATH, confined.NO_LINKS)) as spot,
    ):
        return rule(os.fstat(spot))


def rule(status: os.stat_result) -> str:
    """A block device as control groups call it; "" for anything else."""
    if not stat.S_ISBLK(status.st_mode):
        return ""
    return f"b {os.major(status.st_rdev)}:{os.minor(status.st_rdev)} rwm"


def is_mount(place: int, name: str) -> bool:
    """Whether something is mounted under a name: the kernel refuses to look there without crossing a mount."""
    with suppress(OSError), closing(confined.open_at(place, name, os.O_PATH, confined.NO_LINKS)):
        try:
            os.close(confined.open_at(place, name, os.O_PATH, confined.NO_LINKS_NOR_MOUNTS))
        except OSError:
            return True
    return False  # or a link, or nothing


def leave() -> None:
    """Have a root and a working directory of one's own: a thread that enters namespaces begins so."""
    checked(LIBC.unshare(_SHARED_ROOT))


def enter(namespace: int) -> None:
    checked(LIBC.setns(namespace, _MOUNTS))


def copied(of: int, path: bytes = b"") -> AbstractContextManager[int]:
    """A copy of a mount, which is nowhere yet: of the one that `of` is in, or of the one at a path."""
    flags = _CLONE | os.O_CLOEXEC | (0 if path else EMPTY_PATH)
    return closing(checked(LIBC.syscall(_OPEN_TREE, of, path, flags)))


def attach(copy: int, to: int, path: bytes = b"") -> None:
    """Put it where `to` is, or to a path."""
    checked(LIBC.syscall(_MOVE_MOUNT, copy, b"", to, path, _FROM_EMPTY_PATH | (0 if path else _TO_EMPTY_PATH)))


async def _apart(work: Callable[[], None]) -> None:
    """Do something in a thread whose root is its own."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[None] = loop.create_future()

    def settle(error: BaseException | None) -> None:
        if not done.done():
            done.set_exception(error) if error else done.set_result(None)

    def run() -> None:
        failure: BaseException | None = None
        try:
            leave()
            work()
        except BaseException as error:
            failure = error
        with suppress(RuntimeError):  # nobody waits any more
            loop.call_soon_threadsafe(settle, failure)

    threading.Thread(target=run, name="mounting", daemon=True).start()
    try:
        await asyncio.shield(done)
    except asyncio.CancelledError:
        await asyncio.wait([done])  # until then it uses the descriptors that whoever asked is about to close
        raise


def checked(result: int) -> int:
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return int(result)
