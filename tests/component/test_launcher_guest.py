"""What a launcher says of its domain while it is being started: libvirt's own driver whose domains are in memory."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from xml.etree import ElementTree as ET

import libvirt
import pytest

from virtfleet.hypervisors import registry
from virtfleet.launcher.failure import explained
from virtfleet.launcher.server import Updates
from virtfleet.launcher.vm.guest import Guest
from virtfleet.protocol.messages import DomainState, GetState

NAME = "default_vm"


@pytest.fixture
async def guest(tmp_path: Path) -> AsyncIterator[Guest]:
    node = tmp_path / "node.xml"
    node.write_text("<node><cpu><mhz>6000</mhz><model>i986</model><active>1</active></cpu></node>")
    made = Guest(NAME, "u1", registry.get("qemu-kvm"), f"test://{node}", Updates())
    made.start()
    yield made
    await made.close()


async def test_a_domain_is_not_told_of_before_its_start_went_well(guest: Guest) -> None:
    """libvirt shows a domain whose process it has just started as paused; many end before they are ever more."""

    def half_started(connection: libvirt.virConnect) -> None:
        document = ET.Element("domain", type="test")
        for tag, value in (("name", NAME), ("memory", "65536"), ("vcpu", "1")):
            ET.SubElement(document, tag).text = value
        ET.SubElement(ET.SubElement(document, "os"), "type").text = "hvm"
        connection.createXML(ET.tostring(document, encoding="unicode")).suspend()

    await guest._domain.run(half_started)
    assert await guest.handlers()[GetState](GetState()) == DomainState()


def test_the_same_failure_has_the_same_words_each_time_and_says_what_to_do() -> None:
    line = 'QEMU: {}Z qemu-system-x86_64: -device virtio-blk-pci,drive=d: Failed to get "write" lock'
    first, second = (explained(line.format(f"2026-01-01T00:00:0{n}.123456")) for n in (1, 2))
    assert first == second
    assert "stop that VM" in first
    assert explained("something else") == "something else"
