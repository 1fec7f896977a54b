"""Images that QEMU has open and no device of the domain has."""

from __future__ import annotations

from typing import Any
from xml.etree import ElementTree as ET

from virtfleet.hypervisors.qemu import images

RUNNING = ET.fromstring(
    """<domain><devices>
    <disk><source file='/a' index='2'/>
    <backingStore><format type='raw'/><source file='/b' index='5'/></backingStore></disk>
    <disk device='cdrom'/><disk device='cdrom'><source index='40'/></disk>
    <controller type='pci' index='4' model='pcie-root-port'/></devices></domain>"""
)
NODES = [
    "libvirt-pflash0-format",
    "migration-vda-format",
    "libvirt-2-storage",
    "libvirt-2-format",
    "libvirt-5-format",
    "libvirt-4-storage",
    "libvirt-4-format",
    "libvirt-40-storage",
]


def test_what_no_device_has_is_closed_and_nothing_else() -> None:
    assert images.forgotten(RUNNING, NODES) == ["libvirt-4-format", "libvirt-4-storage", "libvirt-40-storage"]


def test_what_is_still_in_use_is_left_for_later() -> None:
    closed: list[str] = []

    def ask(command: str, arguments: dict[str, Any]) -> dict[str, Any]:
        if command == "query-named-block-nodes":
            return {"return": [{"node-name": name} for name in NODES if name not in closed]}
        if arguments["node-name"].startswith("libvirt-4-") and not closed:
            return {"error": {"desc": "Node libvirt-4-format is in use"}}
        closed.append(arguments["node-name"])
        return {"return": {}}

    assert images.sweep(RUNNING, ask) is False
    assert closed == ["libvirt-40-storage"]
    assert images.sweep(RUNNING, ask) is True
    assert closed == ["libvirt-40-storage", "libvirt-4-format", "libvirt-4-storage"]
