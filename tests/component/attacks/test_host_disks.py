"""Files of the node that VMs name as disks: the launcher's user gets that file, and nothing else by way of it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pod_member import container

from virtfleet.api.view import read
from virtfleet.api.vmi import VirtualMachineInstance as VMI
from virtfleet.domain import paths
from virtfleet.handler.pods import hostdisks
from virtfleet.handler.pods.process import PodProcess

VOLUMES = "/run/vmi-disks"


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """The directory of the node."""
    (tmp_path / "data").mkdir()
    return tmp_path / "data"


@pytest.fixture
def launcher(data: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[PodProcess]:
    monkeypatch.setattr(paths, "claim_dir", lambda volume: f"{VOLUMES}/{volume}")
    with container(data.parent / "launcher", "launcher", data, f"{VOLUMES}/disk") as process:
        yield process


def make_ready(launcher: PodProcess, kind: str = "DiskOrCreate", file: str = "vm.img", **more: Any) -> None:
    disk = {"path": f"/data/{file}", "type": kind, **more}
    hostdisks.make_ready(read(VMI, {"spec": {"volumes": [{"name": "disk", "hostDisk": disk}]}}), launcher)


def test_a_disk_is_made_once_and_belongs_to_the_launcher(data: Path, launcher: PodProcess) -> None:
    make_ready(launcher, capacity="8Mi")
    made = (data / "vm.img").stat()
    assert (made.st_size, made.st_blocks, made.st_uid, made.st_mode & 0o777) == (8 << 20, 0, paths.USER, 0o600)
    (data / "vm.img").write_text("of the guest")
    make_ready(launcher, capacity="16Mi")
    assert (data / "vm.img").read_text() == "of the guest"
    assert os.listdir(data) == ["vm.img"]


def test_what_an_end_half_way_left_is_no_disk(data: Path, launcher: PodProcess) -> None:
    (data / ".vm.img.new").write_text("")
    make_ready(launcher, capacity="8Mi")
    assert os.listdir(data) == ["vm.img"]
    assert (data / "vm.img").stat().st_size == 8 << 20


def test_an_existing_disk_becomes_the_launchers(data: Path, launcher: PodProcess) -> None:
    (data / "vm.img").write_text("an image")
    make_ready(launcher, "Disk")
    assert (data / "vm.img").stat().st_uid == paths.USER


@pytest.mark.parametrize(
    ("wanted", "message"),
    [
        ({"kind": "Disk"}, r"volume 'disk': hostDisk /data/vm.img: there is no such file .* use type DiskOrCreate"),
        ({}, "set capacity"),
        ({"capacity": "1Ei"}, "does not fit"),
    ],
)
def test_what_cannot_be_had_is_told(data: Path, launcher: PodProcess, wanted: dict[str, Any], message: str) -> None:
    with pytest.raises(hostdisks.NoDisk, match=message):
        make_ready(launcher, **wanted)
    assert os.listdir(data) == []


def test_links_and_what_is_no_file_keep_their_owners(data: Path, launcher: PodProcess) -> None:
    secret = data.parent / "secret"
    secret.write_text("of the node")
    (data / "link").symlink_to(secret)
    (data / "relative").symlink_to("../secret")
    (data / "name").hardlink_to(secret)
    (data / "directory").mkdir()
    os.mkfifo(data / "pipe")
    os.mknod(data / "device", 0o600 | 0o060000, os.makedev(7, 250))
    before = {file.name: file.lstat().st_uid for file in (secret, *data.iterdir())}
    for file in before:
        for kind in ("Disk", "DiskOrCreate"):
            with pytest.raises(hostdisks.NoDisk):
                make_ready(launcher, kind, file, **({"capacity": "1Mi"} if file != "secret" else {}))
    assert {file.name: file.lstat().st_uid for file in (secret, *data.iterdir())} == before
    assert secret.read_text() == "of the node"


def test_a_planted_link_is_not_filled_for_somebody_else(data: Path, launcher: PodProcess) -> None:
    (data / "dangling").symlink_to(data.parent / "new")
    (data / ".vm.img.new").symlink_to(data.parent / "new")
    with pytest.raises(hostdisks.NoDisk):
        make_ready(launcher, file="dangling", capacity="1Mi")
    make_ready(launcher, capacity="1Mi")
    assert not (data.parent / "new").exists()
    assert (data / "vm.img").is_file() and not (data / "vm.img").is_symlink()


@pytest.mark.parametrize("planted", ["link", "directory"])
def test_a_launcher_cannot_put_another_directory_in_its_place(data: Path, launcher: PodProcess, planted: str) -> None:
    """Its volumes lie in a directory that it may write to, and rename."""
    root = data.parent / "launcher"
    victim = root / "etc"
    victim.mkdir()
    (root / "run/vmi-disks").rename(root / "run/renamed")
    (root / "run/vmi-disks").mkdir()
    if planted == "link":
        (root / "run/vmi-disks/disk").symlink_to("/etc")
    else:
        (root / "run/vmi-disks/disk").mkdir()
    with pytest.raises(hostdisks.NoDisk, match="not mounted"):
        make_ready(launcher, capacity="1Mi")
    assert os.listdir(victim) == []
