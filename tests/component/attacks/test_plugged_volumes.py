"""Volumes shown to a launcher: by mounts of its own, which go with it, and which lead nowhere else."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest
from pod_member import PodMember, container

from virtfleet.api.view import read
from virtfleet.api.vmi import VirtualMachineInstance as VMI
from virtfleet.domain import paths
from virtfleet.handler.pods import mounting
from virtfleet.handler.pods.process import PodProcess
from virtfleet.handler.vms import plugging
from virtfleet.protocol.messages import DomainState, Status


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


def own_mounts(place: Path) -> list[str]:
    return [line for line in Path("/proc/self/mountinfo").read_text().splitlines() if str(place) in line]


def content(launcher: PodProcess, path: str) -> str:
    with launcher.opened(path, os.O_RDONLY) as fd:
        return os.read(fd, 100).decode()


async def test_a_volume_stays_when_the_pod_that_brought_it_is_gone(place: Path, launcher: PodProcess) -> None:
    before = own_mounts(place)
    await show(place, launcher, "data")
    assert content(launcher, "/disks/data/disk.img") == "data"
    assert mounting.shown(launcher, "/disks") == {"data"}
    # Neither the handler nor the node sees it, so whoever clears a Pod's directories does not come near the data.
    assert os.listdir(place / "launcher/disks/data") == []
    assert own_mounts(place) == before
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
        with pytest.raises(PermissionError, match="has the mnt namespace of the node"):
            await show(place, PodProcess(member.number, "launcher"), "data")
    finally:
        member.end()


class Rules:
    """The control group of a launcher, as far as devices go."""

    def __init__(self) -> None:
        self.allowed: list[str] = []
        self.allow, self.deny = self.allowed.append, self.allowed.remove


async def test_a_device_is_the_launchers_for_as_long_as_it_is_shown(
    place: Path, launcher: PodProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From the VMI's status to the launcher's files, and back: once more is no more, and the guest lets go first."""
    monkeypatch.setattr(paths, "HOTPLUG_DISKS", "/disks")
    rules = Rules()
    monkeypatch.setattr(PodProcess, "group", lambda _: rules)
    node = place / "attachment/dev/attached/data"
    node.parent.mkdir(parents=True)
    os.mknod(node, 0o600 | stat.S_IFBLK, os.makedev(7, 250))
    info = {"claimName": "data", "volumeMode": "Block"}
    entry = {"name": "data", "phase": "AttachedToNode", "hotplugVolume": {"attachPodUID": "attachment"}}
    volume = {"name": "data", "persistentVolumeClaim": {"claimName": "data", "hotpluggable": True}}
    status = {"volumeStatus": [{**entry, "persistentVolumeClaimInfo": info}]}
    vmi = read(VMI, {"metadata": {"name": "vm"}, "spec": {"volumes": [volume]}, "status": status})
    gone = read(VMI, {"metadata": {"name": "vm"}, "spec": {}, "status": status})

    there, trouble = await plugging.mount(vmi, launcher, target=False)
    assert (there, "does not run" in trouble) == (frozenset(), True)
    with container(place / "attachment", "attachment") as holder:
        monkeypatch.setattr(plugging, "_holders", lambda pods: [holder] if pods == ["attachment"] else [])
        for _ in range(2):
            assert await plugging.mount(vmi, launcher, target=False) == (frozenset({"data"}), "")
    assert rules.allowed == ["b 7:250 rwm"]
    with launcher.opened("/disks/data", os.O_PATH) as shown:
        assert (os.fstat(shown).st_rdev, os.fstat(shown).st_uid) == (os.makedev(7, 250), paths.USER)
    used = DomainState(status=Status.RUNNING, disks={"data": "vdb"})
    assert await plugging.unmount(vmi, launcher, DomainState()) == []
    assert await plugging.unmount(gone, launcher, used) == ["data"]
    assert plugging.mounted(launcher, gone) == {"data"}
    assert await plugging.unmount(gone, launcher, DomainState(status=Status.RUNNING)) == []
    assert (plugging.mounted(launcher, gone), rules.allowed) == (frozenset(), [])
