"""A directory shared with a guest that wants out of it. tests/vm/test_virtiofs.py has a real one."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
import stat
import struct
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from component.fuse_guest import DATA, ENTRIES, FuseGuest
from virtfleet.launcher.failure import Failure
from virtfleet.launcher.sharing import main, neighbours, wire
from virtfleet.launcher.sharing.service import Service
from virtfleet.launcher.sharing.tree import Tree
from virtfleet.launcher.sharing.wire import Op, Set
from waiting import eventually

ROOT = wire.ROOT


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """Shared, with something beside it that is not."""
    (tmp_path / "secret").write_text("not for guests")
    shared = tmp_path / "shared"
    shared.mkdir()
    (shared / "file").write_text("for guests")
    (shared / "inside").mkdir()
    (shared / "out").symlink_to("../secret")
    (shared / "up").symlink_to("..")
    return shared


@pytest.fixture
def guest(directory: Path) -> Iterator[FuseGuest]:
    with FuseGuest(directory) as guest:
        assert guest.ask(Op.INIT, 0, struct.pack("<IIII", 7, 38, 0, 0xFFFFFFFF) + bytes(48))[0] == 0
        yield guest


def test_files_are_read_and_written(guest: FuseGuest, directory: Path) -> None:
    error, node = guest.lookup(b"file")
    assert (error, guest.read(node)) == (0, b"for guests")
    error, said = guest.ask(Op.CREATE, ROOT, wire.CREATE_IN.pack(os.O_RDWR, 0o640, 0, 0) + b"new\0")
    assert error == 0
    handle = struct.unpack_from("<Q", said, 128)[0]
    written = wire.WRITE_IN.pack(handle, 3, 5, 0, 0, 0, 0) + b"hello and more than was said"
    assert guest.ask(Op.WRITE, 0, written) == (0, struct.pack("<II", 5, 0))
    assert (directory / "new").read_bytes() == b"\0\0\0hello"
    assert stat.S_IMODE((directory / "new").stat().st_mode) == 0o640


@pytest.mark.parametrize("name", [b"..", b".", b"", b"inside/../../secret", b"/etc/passwd"])
def test_a_name_is_one_step(guest: FuseGuest, directory: Path, name: bytes) -> None:
    _, inside = guest.lookup(b"inside")
    for parent in (ROOT, inside):
        assert guest.lookup(name, parent) == (errno.EINVAL, 0)
        assert guest.ask(Op.CREATE, parent, wire.CREATE_IN.pack(os.O_RDWR, 0o644, 0, 0) + name + b"\0")[0]
        assert guest.ask(Op.MKDIR, parent, wire.MKDIR_IN.pack(0o755, 0) + name + b"\0")[0]
        assert guest.ask(Op.UNLINK, parent, name + b"\0")[0] == errno.EINVAL
        assert guest.ask(Op.RENAME, parent, wire.RENAME_IN.pack(ROOT) + b"file\0" + name + b"\0")[0] == errno.EINVAL
        assert guest.ask(Op.SYMLINK, parent, name + b"\0target\0")[0] == errno.EINVAL
    assert (directory.parent / "secret").read_text() == "not for guests"


@pytest.mark.parametrize("op", [Op.OPEN, Op.OPENDIR])
@pytest.mark.parametrize("name", [b"out", b"up"])
def test_links_are_read_and_not_followed(guest: FuseGuest, op: Op, name: bytes) -> None:
    error, node = guest.lookup(name)
    assert error == 0
    assert guest.ask(Op.READLINK, node) == (0, b"../secret" if name == b"out" else b"..")
    assert guest.ask(op, node, wire.OPEN_IN.pack(os.O_RDWR | os.O_TRUNC, 0))[0] != 0
    assert guest.lookup(b"secret", node)[0] == errno.ENOTDIR
    assert guest.ask(Op.SETATTR, node, _set(Set.SIZE))[0] != 0
    assert guest.ask(Op.SETATTR, node, _set(Set.MODE, mode=0o777))[0] == errno.EOPNOTSUPP


def test_a_link_in_place_of_a_new_file_is_not_followed(guest: FuseGuest, directory: Path) -> None:
    asked = wire.CREATE_IN.pack(os.O_WRONLY | os.O_TRUNC, 0o644, 0, 0) + b"out\0"
    assert guest.ask(Op.CREATE, ROOT, asked)[0] == errno.EACCES
    assert (directory.parent / "secret").read_text() == "not for guests"


def test_devices_and_pipes_are_not_opened(guest: FuseGuest, directory: Path) -> None:
    os.mkfifo(directory / "pipe")
    os.mknod(directory / "null", stat.S_IFCHR | 0o666, os.makedev(1, 3))
    for name in (b"pipe", b"null"):
        _, node = guest.lookup(name)
        assert guest.ask(Op.OPEN, node, wire.OPEN_IN.pack(os.O_RDONLY, 0))[0] == errno.EACCES
        create = wire.CREATE_IN.pack(os.O_RDONLY, 0o644, 0, 0) + name + b"\0"
        assert guest.ask(Op.CREATE, ROOT, create)[0] == errno.EACCES
    for kind in (stat.S_IFCHR, stat.S_IFBLK):
        asked = wire.MKNOD_IN.pack(kind | 0o666, os.makedev(1, 3), 0, 0) + b"device\0"
        assert guest.ask(Op.MKNOD, ROOT, asked)[0] == errno.EPERM
    assert not (directory / "device").exists()


@pytest.mark.parametrize("mode", [0o4755, 0o2755, 0o6777])
def test_no_program_runs_as_its_owner(guest: FuseGuest, directory: Path, mode: int) -> None:
    _, node = guest.lookup(b"file")
    assert guest.ask(Op.SETATTR, node, _set(Set.MODE, mode=mode))[0] == errno.EPERM
    create = wire.CREATE_IN.pack(os.O_RDWR, mode, 0, 0) + b"program\0"
    assert guest.ask(Op.CREATE, ROOT, create)[0] == errno.EPERM
    assert guest.ask(Op.MKNOD, ROOT, wire.MKNOD_IN.pack(stat.S_IFREG | mode, 0, 0, 0) + b"program\0")[0] == errno.EPERM
    assert not any(path.lstat().st_mode & 0o6000 for path in directory.iterdir())


def test_only_root_of_the_guest_makes_files(guest: FuseGuest, directory: Path) -> None:
    create = wire.CREATE_IN.pack(os.O_RDWR, 0o644, 0, 0) + b"new\0"
    assert guest.ask(Op.CREATE, ROOT, create, uid=1000)[0] == errno.EPERM
    assert not (directory / "new").exists()
    assert guest.ask(Op.CREATE, ROOT, create, uid=0)[0] == 0


def test_directories_are_listed_in_parts(guest: FuseGuest, directory: Path) -> None:
    for number in range(100):
        (directory / "inside" / f"file-{number:03}").touch()
    _, node = guest.lookup(b"inside")
    _, said = guest.ask(Op.OPENDIR, node, wire.OPEN_IN.pack(0, 0))
    handle, *_ = wire.OPEN_OUT.unpack(said)
    for op, ahead in ((Op.READDIR, 0), (Op.READDIRPLUS, 128)):
        found, offset = [], 0
        while True:
            error, said = guest.ask(op, node, wire.READ_IN.pack(handle, offset, 1000, 0, 0, 0, 0))
            assert error == 0 and len(said) <= 1000
            if not said:
                break
            place = 0
            while place < len(said):
                _, offset, length, _ = struct.unpack_from("<QQII", said, place + ahead)
                start = place + ahead + 24
                found.append(said[start : start + length])
                place = start + length + (-(24 + length) % 8)
        assert sorted(found) == sorted([b".", b"..", *(f"file-{number:03}".encode() for number in range(100))])


def test_what_a_guest_has_forgotten_is_closed(guest: FuseGuest, directory: Path) -> None:
    def held() -> int:
        """Others of this process come and go meanwhile."""
        every = Path("/proc/self/fd").iterdir()
        return sum(os.path.realpath(fd) == os.path.realpath(directory / "file") for fd in every)

    assert held() == 0
    _, node = guest.lookup(b"file")
    assert guest.lookup(b"file") == (0, node)
    assert held() == 1
    forget = wire.BATCH_FORGET_IN.pack(1, 0) + wire.FORGET_ONE.pack(node, 2)
    _unanswered(guest, Op.BATCH_FORGET, 0, forget)
    assert held() == 0
    assert guest.ask(Op.GETATTR, node, wire.GETATTR_IN.pack(0, 0, 0))[0] == errno.ESTALE
    _unanswered(guest, Op.FORGET, ROOT, wire.FORGET_IN.pack(1 << 40))
    assert guest.lookup(b"file")[0] == 0  # nobody forgets the root


def test_a_guest_holds_no_more_files_than_it_may(directory: Path) -> None:
    for number in range(20):
        (directory / f"f{number}").touch()
    with FuseGuest(directory, most=10) as guest:
        errors = [guest.lookup(f"f{number}".encode())[0] for number in range(20)]
        assert errors == [0] * 9 + [errno.ENFILE] * 11
        _, node = guest.lookup(b"f0")
        opened = [guest.ask(Op.OPEN, node, wire.OPEN_IN.pack(0, 0))[0] for _ in range(12)]
        assert opened == [0] * 10 + [errno.ENFILE] * 2
        assert guest.ask(Op.DESTROY, 0)[0] == 0
        assert guest.lookup(b"f15")[0] == 0


@pytest.mark.parametrize("op", [*Op, 0, 7, 99, 0xFFFFFFFF])
@pytest.mark.parametrize("body", [b"", b"\0", b"\xff" * 200, b"a" * 4000])
def test_nonsense_is_answered_with_an_error_and_nothing_else(guest: FuseGuest, op: int, body: bytes) -> None:
    for node in (0, ROOT, 1 << 63):
        if op in wire.UNANSWERED:
            _unanswered(guest, op, node, body)
        else:
            guest.ask(op, node, body)
    assert guest.failure is None and guest.thread.is_alive()
    assert guest.ask(Op.INIT, 0, struct.pack("<IIII", 7, 38, 0, 0))[0] == 0
    assert guest.lookup(b"file")[0] == 0


CHAINS = {
    "a loop": [(DATA, 100, 1, 0)],
    "a descriptor that is none": [(DATA, 100, 1, ENTRIES)],
    "memory that is none": [(1 << 40, 100, 0, 0)],
    "memory behind the end": [((4 << 20) - 8, 100, 0, 0)],
    "a question after the answer": [(DATA, 100, 3, 1), (DATA, 100, 0, 0)],
    "more than fits": [(0, 4 << 20, 0, 0)],
    "a table in a table": [(DATA, 16, 4, 0)],
    "a table without end": [(DATA, 1 << 30, 4, 0)],
}


@pytest.mark.parametrize("chain", CHAINS.values(), ids=CHAINS)
def test_a_broken_queue_is_not_read_any_more(guest: FuseGuest, chain: list[tuple[int, int, int, int]]) -> None:
    struct.pack_into("<QIHH", guest.memory, DATA, DATA, 16, 4, 0)  # of which the table in a table is made
    guest.put(chain)
    guest.settled()  # still heard
    guest.put([(DATA, 100, 0, 0)])
    guest.settled()
    assert struct.unpack_from("<H", guest.memory, 0x3000 + 2)[0] == 1  # the answer to INIT
    assert guest.failure is None and guest.thread.is_alive()


@pytest.mark.parametrize(
    ("kind", "data"),
    [(5, struct.pack("<II", 3, 0)), (8, struct.pack("<II", 1, 3)), (8, struct.pack("<II", 9, 16)), (9, b"short")],
)
def test_a_hypervisor_that_talks_nonsense_is_left(guest: FuseGuest, kind: int, data: bytes) -> None:
    with suppress(OSError):
        guest.say(kind, data)
    guest.thread.join(5)
    assert type(guest.failure).__name__ == "Broken"


def test_a_guest_that_is_told_that_root_owns_its_files_may_say_so_too(directory: Path) -> None:
    with FuseGuest(directory, as_root=True) as guest:
        _, node = guest.lookup(b"file")
        assert guest.ask(Op.SETATTR, node, _set(Set.UID))[0] == 0


# The process, and the launcher beside it.


def test_it_ends_with_its_hypervisor_and_waits_for_another_where_none_had_a_guest(directory: Path) -> None:
    path = directory.parent / "socket"
    path.symlink_to("secret")  # whatever was there
    listener = main.listening(str(path))
    assert (directory.parent / "secret").read_text() == "not for guests" and path.is_socket()
    thread = threading.Thread(target=main.share, args=(listener, Service(Tree(str(directory)))), daemon=True)
    thread.start()
    for message, lives in ((struct.pack("<III", 1, 1, 0), True), (struct.pack("<IIIII", 18, 9, 8, 1, 1), False)):
        with socket.socket(socket.AF_UNIX) as hypervisor:
            hypervisor.connect(str(path))
            hypervisor.sendall(message)
            assert hypervisor.recv(100)
        thread.join(0.2 if lives else 5)
        assert thread.is_alive() == lives


def test_it_ends_with_a_launcher_that_had_no_guest(directory: Path) -> None:
    path = directory.parent / "data.sock"
    command = [
        sys.executable,
        "-m",
        "virtfleet.launcher",
        "share",
        f"--socket-path={path}",
        f"--shared-dir={directory}",
    ]
    document = ET.fromstring(f"<domain><devices><filesystem><source socket='{path}'/></filesystem></devices></domain>")
    with subprocess.Popen(command, stderr=subprocess.PIPE) as process:
        asyncio.run(neighbours.awaited(document))
        eventually(lambda: neighbours.say_goodbye(directory.parent) or process.poll() is not None, 10)
        assert process.returncode == 0


def test_a_launcher_says_whom_it_waits_for(directory: Path) -> None:
    path = directory.parent / "data.sock"
    document = ET.fromstring(f"<domain><devices><filesystem><source socket='{path}'/></filesystem></devices></domain>")
    with pytest.raises(Failure, match="virtiofs-data"):
        asyncio.run(neighbours.awaited(document, limit=0.1))


def test_a_directory_that_is_not_there_is_said_in_one_line(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "virtfleet.launcher", "share", f"--socket-path={tmp_path}/s", "--shared-dir=/none"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 1 and done.stderr == "ERROR [Errno 2] No such file or directory: '/none'\n"


def _unanswered(guest: FuseGuest, op: int, node: int, body: bytes) -> None:
    request = wire.IN_HEADER.pack(wire.IN_HEADER.size + len(body), op, 1, node, 0, 0, 0, 0) + body
    guest.memory[DATA : DATA + len(request)] = request
    guest.put([(DATA, len(request), 0, 0)])
    assert guest.answered(), guest.failure


def _set(what: int, *, mode: int = 0) -> bytes:
    return wire.SETATTR_IN.pack(what, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, mode, 0, 0, 0, 0)
