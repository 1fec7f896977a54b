"""Disks as a launcher makes them from what its Pod mounts, with the real tools."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from virtfleet.api.devices import Filesystem
from virtfleet.api.disks import Volume
from virtfleet.api.view import read
from virtfleet.api.vmi import VirtualMachineInstance
from virtfleet.domain import paths
from virtfleet.domain.context import Context
from virtfleet.hypervisors import registry
from virtfleet.hypervisors.containers import first_id
from virtfleet.launcher.failure import Failure
from virtfleet.launcher.storage import disks
from virtfleet.launcher.storage.seeds import Files

pytestmark = pytest.mark.skipif(not shutil.which("qemu-img"), reason="needs qemu-img")


@pytest.fixture(autouse=True)
def pod(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The paths of a Pod, below a directory of the test's own."""
    for name, value in vars(paths).items():
        if isinstance(value, str) and value.startswith("/var/run/"):
            monkeypatch.setattr(paths, name, value.replace("/var/run", str(tmp_path)))
    return tmp_path


def vmi(*volumes: dict[str, Any], **more: Any) -> VirtualMachineInstance:
    names = [volume["name"] for volume in volumes]
    return read(
        VirtualMachineInstance,
        {
            "metadata": {"name": "guest", "namespace": "default", "uid": "u"},
            "spec": {
                "architecture": "amd64",
                "domain": {
                    "machine": {"type": "q35"},
                    "memory": {"guest": "64Mi"},
                    "devices": {"disks": [{"name": name, "disk": {"bus": "virtio"}} for name in names]},
                },
                "volumes": list(volumes),
            },
            **more,
        },
    )


def prepare(machine: VirtualMachineInstance, hypervisor: str = "qemu-kvm") -> None:
    async def inspect_and_prepare() -> None:
        context = Context(disk_formats=await disks.formats(machine))
        await disks.prepare(machine, context, registry.get(hypervisor).build(machine, context), as_is)

    async def as_is(_: Volume, files: Files) -> Files:
        return files

    asyncio.run(inspect_and_prepare())


def image(path: Path, *options: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    subprocess.run(["qemu-img", "create", "-q", *options, str(path), "8M"], check=True)


def info(path: str) -> dict[str, Any]:
    told = subprocess.run(["qemu-img", "info", "--output=json", path], capture_output=True, check=True)
    return json.loads(told.stdout)  # type: ignore[no-any-return]


CONTAINER_DISK = {"name": "root", "containerDisk": {"image": "example/disk"}}


@pytest.mark.parametrize("form", ["raw", "qcow2"])
def test_a_container_disk_is_never_written_to(form: str) -> None:
    source = Path(paths.image_volume(0), "disk/disk.img")
    image(source, "-f", form)
    prepare(vmi(CONTAINER_DISK))
    made = info(paths.ephemeral_disk("root"))
    assert (made["format"], made["virtual-size"]) == ("qcow2", 8 << 20)
    assert (made["backing-filename"], made["backing-filename-format"]) == (paths.container_disk(0), form)


@pytest.mark.parametrize(
    ("where", "garbage"),
    [(40, b"\xff" * 8), (48, b"\0\0\0\0\0\x03\0\1"), (4, b"\0\0\0\x63")],
    ids=["no table of clusters", "no count of references", "a version of the future"],
)
def test_a_damaged_container_disk_is_named(where: int, garbage: bytes) -> None:
    source = Path(paths.image_volume(0), "disk/disk.img")
    image(source, "-f", "qcow2")
    content = bytearray(source.read_bytes())
    content[where : where + len(garbage)] = garbage
    source.write_bytes(content)
    with pytest.raises(Failure, match="volume 'root': the image is damaged, replace it"):
        prepare(vmi(CONTAINER_DISK))


def test_a_container_disk_that_wastes_space_is_good_enough() -> None:
    source = Path(paths.image_volume(0), "disk/disk.img")
    image(source, "-f", "qcow2")
    with source.open("r+b") as file:  # one more cluster that is counted, and that nothing refers to
        file.seek(2 * 65536 + 2 * 4)
        file.write(b"\0\1")
        file.truncate(5 * 65536)
    prepare(vmi(CONTAINER_DISK))
    assert info(paths.ephemeral_disk("root"))["format"] == "qcow2"


def test_an_image_that_names_another_file_is_refused(tmp_path: Path) -> None:
    image(tmp_path / "secret.img", "-f", "raw")
    source = Path(paths.image_volume(0), "disk/disk.img")
    image(source, "-f", "qcow2", "-b", str(tmp_path / "secret.img"), "-F", "raw")
    with pytest.raises(Failure, match="'root': the image refers to another file"):
        prepare(vmi(CONTAINER_DISK))


def test_the_path_of_a_disk_leads_to_no_file_outside_its_image(tmp_path: Path) -> None:
    image(tmp_path / "outside.img", "-f", "raw")
    directory = Path(paths.image_volume(0))
    directory.mkdir(parents=True)
    (directory / "link.img").symlink_to(tmp_path / "outside.img")
    for path in ("/link.img", "../../../outside.img", "/missing.img"):
        with pytest.raises(Failure, match="has no file"):
            prepare(vmi({"name": "root", "containerDisk": {"image": "example/disk", "path": path}}))


def test_a_link_in_an_image_never_leads_out_of_it(tmp_path: Path) -> None:
    """It means a file of the image, as if the image were all there is."""
    image(tmp_path / "outside.img", "-f", "raw")
    root = Path(paths.image_volume(0))
    (root / "disk").mkdir(parents=True)
    link = root / "disk/x.img"
    for target in (tmp_path / "outside.img", Path("../../../outside.img"), Path("/proc/self/root") / tmp_path):
        link.symlink_to(target)
        with pytest.raises(
            Failure, match=r"'root': the image has no file /disk/x.img: it is a link to /.*image has not"
        ):
            prepare(vmi(CONTAINER_DISK))
        link.unlink()
    for number in range(50):  # each to the next, and the last one out
        (root / f"l{number}").symlink_to(f"/l{number + 1}" if number < 49 else tmp_path / "outside.img")
    link.symlink_to("/l0")
    with pytest.raises(Failure, match="more than 40 links"):
        prepare(vmi(CONTAINER_DISK))
    link.unlink()
    image(root / "images/real.img", "-f", "raw")
    link.symlink_to("/images/../images/real.img")
    prepare(vmi(CONTAINER_DISK))
    assert Path(paths.container_disk(0)).resolve() == root / "images/real.img"


def test_a_directory_of_disks_that_is_a_link_means_one_of_the_image(tmp_path: Path) -> None:
    root = Path(paths.image_volume(0))
    root.mkdir(parents=True)
    image(tmp_path / "out/outside.img", "-f", "raw")
    (root / "disk").symlink_to(tmp_path / "out")
    with pytest.raises(Failure, match="has no file under /disk"):
        prepare(vmi(CONTAINER_DISK))


def test_an_image_without_a_disk_or_with_two_is_refused_with_what_to_do() -> None:
    directory = Path(paths.image_volume(0), "disk")
    directory.mkdir(parents=True)
    with pytest.raises(Failure, match="example/disk has no file under /disk"):
        prepare(vmi(CONTAINER_DISK))
    for name in ("a.img", "b.img"):
        image(directory / name, "-f", "raw")
    with pytest.raises(Failure, match=r"several files under /disk \(a.img, b.img\); name one as `path`"):
        prepare(vmi(CONTAINER_DISK))


def test_what_was_made_stays_when_the_vm_is_synced_again() -> None:
    machine = vmi({"name": "scratch", "emptyDisk": {"capacity": "1Gi"}})
    prepare(machine)
    path = Path(paths.empty_disk("scratch"))
    before = path.stat().st_ino
    assert info(str(path))["virtual-size"] == 1 << 30
    prepare(machine)
    assert path.stat().st_ino == before


def test_an_empty_disk_has_whole_mebibytes() -> None:
    prepare(vmi({"name": "scratch", "emptyDisk": {"capacity": "1G"}}))
    assert info(paths.empty_disk("scratch"))["virtual-size"] == 953 << 20
    prepare(vmi({"name": "tiny", "emptyDisk": {"capacity": "1024"}}))
    assert info(paths.empty_disk("tiny"))["virtual-size"] == 1024


def test_an_empty_claim_gets_an_image_that_leaves_room_for_its_file_system() -> None:
    Path(paths.claim_dir("data")).mkdir(parents=True)
    claim = {"name": "data", "persistentVolumeClaim": {"claimName": "data"}}
    with pytest.raises(Failure, match=r"'data': the claim holds no disk\.img"):
        prepare(vmi(claim))
    details = {"capacity": {"storage": "2Gi"}, "requests": {"storage": "1Gi"}, "filesystemOverhead": "0.055"}
    status = {"volumeStatus": [{"name": "data", "persistentVolumeClaimInfo": details}]}
    in_the_way = Path(f"{paths.claim_image('data')}.new")
    in_the_way.mkdir()
    with pytest.raises(
        Failure, match=r"'data': .* cannot make one there \(Is a directory\); make the volume's directory"
    ):
        prepare(vmi(claim, status=status))
    in_the_way.rmdir()
    prepare(vmi(claim, status=status))
    size = Path(paths.claim_image("data")).stat().st_size
    assert 0.94 * 2**30 < size < 0.945 * 2**30
    assert size % (1 << 20) == 0


def test_a_claim_that_is_shared_as_a_directory_gets_no_image() -> None:
    guest = vmi({"name": "data", "persistentVolumeClaim": {"claimName": "data"}})
    guest.spec.domain.devices.disks.clear()
    guest.spec.domain.devices.filesystems.append(msgspec.convert({"name": "data", "virtiofs": {}}, Filesystem))
    claim = Path(paths.claim_dir("data"))
    claim.mkdir(parents=True)
    prepare(guest)
    assert not [*claim.iterdir()]


def test_a_host_disk_is_made_only_where_that_is_asked_for() -> None:
    disk = {"name": "host", "hostDisk": {"path": "/data/x.img", "type": "DiskOrCreate", "capacity": "16Mi"}}
    prepare(vmi(disk))
    assert Path(paths.host_disk("host", "/data/x.img")).stat().st_size == 16 << 20


def test_configuration_becomes_labelled_images() -> None:
    directory = Path(paths.config_dir("config-map", "settings"))
    (directory / "..data").mkdir(parents=True)
    (directory / "key").write_text("value")
    config = {"name": "settings", "configMap": {"name": "settings", "volumeLabel": "mine"}}
    seed = {"name": "seed", "cloudInitNoCloud": {"userData": "#!/bin/sh"}}
    prepare(vmi(config, seed))
    for path, label in (
        (paths.config_disk("config-map", "settings"), b"mine"),
        (paths.cloud_init("default", "guest", False), b"cidata"),
    ):
        assert Path(path).read_bytes()[32808:32840].rstrip() == label
        assert Path(path).stat().st_mode & 0o077 == 0


@pytest.mark.parametrize(
    ("source", "file"),
    [
        ({"cloudInitNoCloud": {"userData": "#cloud-config\n"}}, "user-data"),
        ({"cloudInitConfigDrive": {"userData": "#cloud-config\n"}}, "openstack/latest/user_data"),
    ],
)
def test_a_container_has_its_seed_in_a_directory(source: dict[str, Any], file: str) -> None:
    guest = vmi({"name": "seed", **source})
    prepare(container(guest), "lxc")
    assert Path(paths.cloud_init_seed("default", "guest"), file).read_text() == "#cloud-config\n"


def container(guest: VirtualMachineInstance) -> VirtualMachineInstance:
    """The same with a root of its own, from an image."""
    volume, shared = {"name": "rootfs", "containerDisk": {"image": "box"}}, {"name": "rootfs", "virtiofs": {}}
    guest.spec.volumes.append(msgspec.convert(volume, Volume))
    guest.spec.domain.devices.filesystems.append(msgspec.convert(shared, Filesystem))
    Path(paths.image_volume(len(guest.spec.volumes) - 1)).mkdir(parents=True)
    return guest


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_files_of_an_image_belong_to_the_guests_users() -> None:
    guest = container(vmi())
    image, root, first = Path(paths.image_volume(0)), Path(paths.container_root("rootfs")), first_id("u")
    (image / "bin").mkdir()
    for name, mode, owner in (("sh", 0o755, 0), ("su", 0o4755, 0), ("mine", 0o640, 1000), ("far", 0o600, 70000)):
        (image / "bin" / name).touch()
        os.chown(image / "bin" / name, owner, owner)
        (image / "bin" / name).chmod(mode)
    (image / "link").symlink_to("/etc/passwd")
    os.mkfifo(image / "pipe")
    (image / "disk").mkdir()
    prepare(guest, "lxc")
    assert sorted(p.name for p in root.iterdir()) == ["bin", "link"], "neither pipes nor a disk for machines"
    found = {p.name: (p.lstat().st_uid - first, p.lstat().st_mode & 0o7777) for p in (root / "bin").iterdir()}
    assert found == {"sh": (0, 0o755), "su": (0, 0o4755), "mine": (1000, 0o640), "far": (65534, 0o600)}
    assert (root.stat().st_uid, (root / "link").lstat().st_uid) == (first, first)
    assert Path("/etc/passwd").stat().st_uid == 0


@pytest.mark.skipif(os.geteuid() != 0, reason="only root mounts")
def test_a_claim_is_shown_with_the_guests_users_and_keeps_its_owners(pod: Path) -> None:
    """In a process with mounts of its own, so that nothing is left behind."""
    source, target = pod / "claim", pod / "seen"
    source.mkdir()
    (source / "file").touch()
    script = (
        f"import os; from virtfleet.launcher.storage import mapped\n"
        f"for _ in range(2): mapped.mount({str(source)!r}, {str(target)!r}, 1048576)\n"
        f"assert os.stat({str(target / 'file')!r}).st_uid == 1048576\n"
        f"os.chdir({str(target)!r}); os.setresgid(*[1048577] * 3); os.setresuid(*[1048577] * 3)\n"
        f"os.close(os.open('mine', os.O_CREAT))\n"
    )
    source.chmod(0o777)
    command = ["unshare", "--mount", sys.executable, "-c", script]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if "Invalid argument" in done.stderr:
        pytest.skip("this file system cannot be mounted with other users")
    assert done.returncode == 0, done.stderr
    assert (source / "mine").stat().st_uid == 1
