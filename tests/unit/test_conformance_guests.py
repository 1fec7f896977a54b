"""What the stand-ins for KubeVirt's guests get besides what their builder gives them."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from conformance import guests
from virtfleet.local import guestimage
from virtfleet.local.guestimage import _Node

OURS = {"etc/hotplug": b"case\n", "etc/rc": b"rc\n", "etc/profile": b"", "etc/passwd": b"root\n", "etc/shrc": b""}


def plain(flavor: str) -> dict[str, _Node]:
    nodes = {name: _Node(stat.S_IFREG | 0o755, content) for name, content in OURS.items()}
    nodes["etc/flavor"] = _Node(stat.S_IFREG | 0o644, f"{flavor}\n".encode())
    nodes["bin/ping"] = _Node(stat.S_IFLNK | 0o777, b"busybox")
    return nodes


@pytest.fixture
def tools(tmp_path: Path) -> Path:
    for program in guests.PROGRAMS["fedora"]:
        for name in (program.file, *program.libraries, *program.others):
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_bytes(name.encode())
    return tmp_path


def test_programs_are_only_where_specs_need_them(tools: Path) -> None:
    found = {flavor: guests.furnished(plain(flavor), tools) for flavor in ("alpine", "alpine-tooling", "fedora")}
    assert {flavor for flavor, nodes in found.items() if "sbin/mke2fs" in nodes} == {"alpine-tooling", "fedora"}
    assert {flavor for flavor, nodes in found.items() if "usr/sbin/dmidecode" in nodes} == {"fedora"}
    assert found["fedora"]["lib/libext2fs.so.2"].content == b"lib/x86_64-linux-gnu/libext2fs.so.2"
    assert found["fedora"]["sbin/mkfs.ext4"] == _Node(stat.S_IFLNK | 0o777, b"/sbin/mke2fs")
    assert all("usr/local/bin/lspci" in nodes and "etc/disk-links" in nodes for nodes in found.values())


def test_a_program_that_busybox_has_too_stands_beside_it_and_the_console_calls_it(tools: Path) -> None:
    nodes = guests.furnished(plain("fedora"), tools)
    assert nodes["bin/ping"].content == b"busybox"
    assert nodes["usr/bin/ping"].content == b"bin/ping"
    assert b'ping() { /usr/bin/ping "$@"; }' in nodes["etc/shrc"].content


def test_the_builders_scripts_stay_and_get_more(tools: Path) -> None:
    given = plain("cirros")
    nodes = guests.furnished(given, tools)
    began = nodes["etc/rc.sysinit"].content
    assert began.startswith(b"rc\n") and b"\n/etc/disk-links\n" in began
    assert b". /etc/rc.sysinit" in nodes["etc/rc"].content
    assert nodes["etc/hotplug"].content.startswith(OURS["etc/hotplug"])
    assert given == plain("cirros")


def test_the_partition_moves_to_the_second_place(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    entry = bytes(range(1, 17))
    disk.write_bytes(b"m" * 446 + entry + bytes(48) + b"\x55\xaa" + b"content")
    guests.as_second_partition(disk)
    assert disk.read_bytes() == b"m" * 446 + bytes(16) + entry + bytes(32) + b"\x55\xaa" + b"content"


def test_a_guest_knows_no_more_cpus_than_it_has_memory_for(tools: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("_cpio", "_disk", "_MODULES", "_SYSLINUX", "_LOADER_ENTRY"):
        monkeypatch.setattr(guestimage, name, getattr(guestimage, name))
    guests._hooked(tools)
    assert {"qemu_fw_cfg", "pvpanic-mmio"} <= {*guestimage._MODULES}, (
        "specs read the one, and crash the guest with the other"
    )
    assert guestimage._SYSLINUX.endswith(" nr_cpus=8\n") and guestimage._LOADER_ENTRY.endswith(" nr_cpus=8\n")
