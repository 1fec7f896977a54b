"""The guest that tests and examples boot, as files."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from virtfleet.local import guestimage
from virtfleet.local.node.images import ImageStore
from virtfleet.local.node.registry import load
from vm.guests import guest

SCRIPTS = Path(guestimage.__file__).parent / "guest"


def test_the_disk_is_small_and_kept_in_the_cache() -> None:
    assert guest().disk.stat().st_size < 40 << 20
    assert guestimage.build(guestimage.default_cache()).cached


def test_apt_is_asked_again_when_its_lists_have_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def answer() -> dict[str, str]:
        asked.append("")
        return {"kernel": str(len(asked))}

    def build(work: Path, packages: list[str]) -> None:
        (work / "finished").mkdir()

    lists = tmp_path / "lists"
    lists.mkdir()
    monkeypatch.setattr(guestimage, "_LISTS", str(lists))
    monkeypatch.setattr(guestimage, "_versions", answer)
    monkeypatch.setattr(guestimage, "_build", build)
    first = guestimage.build(tmp_path / "cache")
    again = guestimage.build(tmp_path / "cache")
    assert (first.cached, again.cached, again.image, len(asked)) == (False, True, first.image, 1)
    os.utime(lists, ns=(1, 1))
    assert guestimage.build(tmp_path / "cache").image != first.image
    assert len(asked) == 2
    shutil.rmtree(tmp_path / "cache")  # whatever was noted there goes with it
    assert not guestimage.build(tmp_path / "cache").cached


@pytest.mark.skipif(not shutil.which("skopeo"), reason="needs skopeo")
async def test_the_archive_is_an_image_whose_disk_the_launchers_user_may_read(tmp_path: Path) -> None:
    store = ImageStore(tmp_path)
    store.create()
    image = await load(store, guest().archive, guestimage.IMAGE)
    assert image.name == "virtfleet/guest:demo"
    disk = store.trees(image)[0] / "disk/guest.qcow2"
    assert (disk.stat().st_uid, disk.stat().st_gid) == (107, 107)
    assert disk.read_bytes() == guest().disk.read_bytes()
    assert (store.trees(image)[0] / "sbin/init").stat().st_mode & 0o111


def test_the_commands_of_a_seed_are_run_as_cloud_init_would(tmp_path: Path) -> None:
    data = tmp_path / "user-data"
    data.write_text(
        "#cloud-config\n"
        "packages:\n- not-a-command\n"
        "runcmd:\n"
        "  - echo plain words\n"
        '  - "echo quoted"\n'
        "  - [echo, a list, it's]\n"
        "  - |\n"
        "    for n in 1 2; do\n"
        "      echo block $n\n"
        "    done\n"
        "  - echo after\n"
        "final_message: echo not this\n"
    )
    command = ["busybox", "awk", "-f", str(SCRIPTS / "runcmd.awk"), str(data)]
    script = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    said = subprocess.run(["sh", "-c", script], capture_output=True, text=True, check=True).stdout
    assert said.splitlines() == ["plain words", "quoted", "a list it's", "block 1", "block 2", "after"]
