"""What must change in a running domain: its devices against those that the VMI asks for now. Pure.

Devices are told apart by what their hypervisor knows them by, which must not depend on what its driver forgets.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import NamedTuple
from xml.etree.ElementTree import Element

from virtfleet.domain.xml import attribute, child
from virtfleet.hypervisors.base import own_alias

_KINDS = ("disk", "interface")
Identity = Callable[[Element], str]


class Changes(NamedTuple):
    """Devices to remove, then to add, then to change in place; by their documents."""

    detach: list[Element]
    attach: list[Element]
    update: list[Element]


def devices(domain: Element, identity: Identity) -> dict[tuple[str, str], Element]:
    """Disks and interfaces by kind and identity."""
    every = ((kind, device) for kind in _KINDS for device in domain.iterfind(f"devices/{kind}"))
    return {(kind, known): device for kind, device in every if (known := identity(device))}


def changes(running: Element, wanted: Element, identity: Identity, but: Collection[tuple[str, str]] = ()) -> Changes:
    """From the devices of a running domain to those of a document made anew. Those of `but` are not looked at."""
    now, then = (
        {key: device for key, device in devices(domain, identity).items() if key not in but}
        for domain in (running, wanted)
    )
    return Changes(
        detach=[device for key, device in now.items() if key not in then],
        attach=[device for key, device in then.items() if key not in now],
        update=[
            changed
            for key, device in then.items()
            if key in now and (changed := _changed(key[0], now[key], device)) is not None
        ],
    )


def _changed(kind: str, now: Element, then: Element) -> Element | None:
    """The running device with what may change while it is in use: the medium in a drive, the state of a link."""
    if kind == "interface":
        if _link(now) == _link(then):
            return None
        child(now, "link").set("state", _link(then))
        return now
    if then.get("device") == "cdrom" and _source(now) != _source(then):
        return then
    return None


def _link(interface: Element) -> str:
    return attribute(interface, "link", "state", "up")


def _source(disk: Element) -> str:
    return attribute(disk, "source", "file") or attribute(disk, "source", "dev")


def _has_medium(disk: Element) -> bool:
    """Whether anything is in it. Of a drive that has become empty libvirt keeps the number of what was there."""
    source = disk.find("source")
    return source is not None and bool(source.attrib.keys() - {"index"} or len(source))


def disks(domain: Element) -> dict[str, str]:
    """Targets in the guest by the volumes that they show; an empty drive shows none."""
    shown = [disk for disk in domain.iterfind("devices/disk[target]") if _has_medium(disk)]
    return {name: attribute(disk, "target", "dev") for disk in shown if (name := own_alias(disk))}


def links(domain: Element) -> dict[str, str]:
    """The state of each interface's link, by hardware address, which is there whatever the driver forgets."""
    known = domain.iterfind("devices/interface[mac]")
    return {attribute(device, "mac", "address").lower(): _link(device) for device in known}
