"""An image that a real QEMU keeps open, and locked, after its disk was plugged out; and what closes it.

The last request to a disk may end after its place in the launcher's Pod has gone. QEMU then cannot open the image for
reading only, as it does otherwise, and keeps the lock for writing; libvirt was refused before, and has forgotten it.
"""

from __future__ import annotations

import json
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest

from virtfleet.hypervisors.qemu import images
from waiting import eventually

# Of the numbers that controllers have, one is also that of the image.
RUNNING = ET.fromstring("<domain><devices><controller type='pci' index='3'/></devices></domain>")


class Qemu:
    """QEMU without a guest, and its monitor."""

    def __init__(self, monitor: socket.socket, directory: Path) -> None:
        self._lines = monitor.makefile("rw")
        self._lines.readline()
        self.image = directory / "disk.img"
        self.ask("qmp_capabilities", {})

    def ask(self, command: str, arguments: dict[str, Any]) -> dict[str, Any]:
        self._lines.write(json.dumps({"execute": command, "arguments": arguments}) + "\n")
        self._lines.flush()
        while "event" in (answer := json.loads(self._lines.readline())):
            continue
        return dict(answer)

    def open(self, number: int) -> None:
        """The image, as libvirt opens it."""
        storage = {"driver": "file", "filename": str(self.image), "auto-read-only": True}
        assert "return" in self.ask("blockdev-add", {"node-name": f"libvirt-{number}-storage", **storage})
        above = {"driver": "raw", "read-only": False, "file": f"libvirt-{number}-storage"}
        assert "return" in self.ask("blockdev-add", {"node-name": f"libvirt-{number}-format", **above})

    def plug(self, number: int) -> str:
        """What is wrong with a disk that shows the image; nothing where nothing is."""
        disk = {"driver": "scsi-hd", "bus": "scsi.0", "drive": f"libvirt-{number}-format", "id": f"disk{number}"}
        return str(self.ask("device_add", disk).get("error", {}).get("desc", ""))


@pytest.fixture
def qemu(tmp_path: Path) -> Iterator[Qemu]:
    place = tmp_path / "monitor"
    (tmp_path / "disk.img").write_bytes(bytes(1 << 20))
    machine = ("-machine", "q35,accel=tcg", "-S", "-nodefaults", "-display", "none", "-m", "32")
    devices = ("-qmp", f"unix:{place},server=on,wait=off", "-device", "virtio-scsi-pci,id=scsi")
    process = subprocess.Popen(["qemu-system-x86_64", *machine, *devices])
    try:
        with socket.socket(socket.AF_UNIX) as monitor:
            monitor.settimeout(30)
            eventually(place.exists, 30)
            monitor.connect(str(place))
            yield Qemu(monitor, tmp_path)
    finally:
        process.kill()
        process.wait()


def test_an_image_that_stayed_locked_can_be_plugged_in_again(qemu: Qemu) -> None:
    qemu.open(3)
    assert not qemu.plug(3)
    qemu.image = qemu.image.rename(qemu.image.with_name("elsewhere"))
    assert "return" in qemu.ask("device_del", {"id": "disk3"})
    qemu.open(40)
    assert qemu.plug(40) == 'Failed to get "write" lock'
    assert "return" in qemu.ask("blockdev-del", {"node-name": "libvirt-40-format"})
    assert "return" in qemu.ask("blockdev-del", {"node-name": "libvirt-40-storage"})
    assert images.sweep(RUNNING, qemu.ask)
    qemu.open(41)
    assert not qemu.plug(41)
