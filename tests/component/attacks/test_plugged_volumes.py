"""Volumes shown to a launcher: by mounts of its own, which go with it, and which lead nowhere else."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from pod_member import PodGroup, PodMember

from virtfleet.handler.pods import mounting
from virtfleet.handler.pods.process import PodProcess

# A container as runtimes make one: mounts of its own, and another root.
_CONTAINER = """
import ctypes, os, sys
root, volume, place = sys.argv[1:]
libc = ctypes.CDLL(None, use_errno=True)
def must(result): assert result == 0, os.strerror(ctypes.get_errno())
must(libc.unshare(0x20000))
must(libc.mount(b"none", b"/", None, 0x4000 | 0x40000, None))
must(libc.mount(root.encode(), root.encode(), None, 0x1000, None))
if volume:
    must(libc.mount(volume.encode(), (root + place).encode(), None, 0x1000, None))
os.chroot(root)
os.chdir("/")
print("up", flush=True)
sys.stdin.read()
"""


@contextmanager
def container(root: Path, pod: str, volume: Path | None = None, at: str = "") -> Iterator[PodProcess]:
    (root / at.lstrip("/")).mkdir(parents=True, exist_ok=True)
    group = PodGroup(pod)
    command = [sys.executable, "-c", _CONTAINER, str(root), str(volume or ""), at]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        group.add(process.pid)
        assert process.stdout is not None
        assert process.stdout.readline() == "up\n"
        yield PodProcess(process.pid, pod)
        process.kill()
    group.remove()


@pytest.fixture
def place(tmp_path: Path) -> Path:
    (tmp_path / "claim").mkdir()
    (tmp_path / "claim/disk.img").write_text("data")
    (tmp_path / "launcher/disks").mkdir(parents=True)
    (tmp_path / "launcher/disks").chmod(0o777)
    return tmp_path


@pytest.fixture
def launcher(place: Path) -> Iterator[PodProcess]:
    with container(place / "launcher", "launcher") as process:
        yield process


async def show(place: Path, launcher: PodProcess, name: str) -> None:
    """Through a Pod that is gone afterwards."""
    with (
        container(place / "attachment", "attachment", place / "claim", "/attached/data") as holder,
        holder.opened("/attached/data", os.O_PATH) as source,
    ):
        await mounting.show(source, holder, launcher, "/disks", name)


def own_mounts() -> str:
    return Path("/proc/self/mountinfo").read_text()


def content(launcher: PodProcess, path: str) -> str:
    with launcher.opened(path, os.O_RDONLY) as fd:
        return os.read(fd, 100).decode()


async def test_a_volume_stays_when_the_pod_that_brought_it_is_gone(place: Path, launcher: PodProcess) -> None:
    before = own_mounts()
    await show(place, launcher, "data")
    assert content(launcher, "/disks/data/disk.img") == "data"
    assert mounting.shown(launcher, "/disks") == {"data"}
    # Neither the handler nor the node sees it, so whoever clears a Pod's directories does not come near the data.
    assert os.listdir(place / "launcher/disks/data") == []
    assert own_mounts() == before
    await mounting.hide(launcher, "/disks", "data")
    await mounting.hide(launcher, "/disks", "data")
    assert mounting.shown(launcher, "/disks") == set()
    assert os.listdir(place / "launcher/disks") == []
    assert (place / "claim/disk.img").read_text() == "data"


async def test_what_a_launcher_puts_in_its_place_is_not_followed(place: Path, launcher: PodProcess) -> None:
    outside = place / "outside"
    outside.mkdir()
    for target in (outside, Path("../../outside"), Path("/disks/real")):
        (place / "launcher/disks/data").symlink_to(target)
        with pytest.raises(OSError, match="symbolic links"):
            await show(place, launcher, "data")
        assert mounting.shown(launcher, "/disks") == set()
        await mounting.hide(launcher, "/disks", "data")
        assert os.listdir(place / "launcher/disks") == []
    (place / "launcher/disks/data").write_text("a file")
    with pytest.raises(OSError, match="Invalid argument"):
        await show(place, launcher, "data")
    assert outside.is_dir()


async def test_a_launcher_whose_directory_leads_elsewhere_stays_in_its_own_files(place: Path) -> None:
    (place / "outside").mkdir()
    (place / "launcher/disks").rmdir()
    (place / "launcher/disks").symlink_to(place / "outside")
    with container(place / "launcher", "launcher") as launcher:
        with pytest.raises(FileNotFoundError):
            await show(place, launcher, "data")
        assert mounting.shown(launcher, "/disks") == set()
    assert os.listdir(place / "outside") == []


async def test_nothing_is_mounted_in_the_nodes_own_namespace(place: Path) -> None:
    member = PodMember("launcher")
    try:
        with pytest.raises(PermissionError, match="the mounts of the node"):
            await show(place, PodProcess(member.number, "launcher"), "data")
    finally:
        member.end()
