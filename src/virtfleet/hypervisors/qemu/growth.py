"""Memory for a QEMU guest that runs: one virtio-mem device, which comes with the first memory that is added.

Until then a VM has nothing of it but the number up to which it may grow, so that it is as light as any other.
"""

from __future__ import annotations

from typing import Final
from xml.etree.ElementTree import Element

from virtfleet.domain.xml import add, child

_NAME: Final = "ua-more-memory"
_BLOCK_KIB: Final = 2048
_THERE: Final = "devices/memory[@model='virtio-mem']"


def device(running: Element, memory: int) -> Element | None:
    """The device with which the guest has `memory` bytes; None where it was asked to have them."""
    largest, there = _kib(running.find("maxMemory")), running.find(_THERE)
    sizes = sum(_kib(size) for size in running.iterfind("devices/memory/target/size"))
    boot = _kib(running.find("memory")) - sizes
    more = min(memory >> 10, largest) - boot
    if there is not None:
        requested = child(child(there, "target"), "requested")
        if _kib(requested) == more:
            return None
        requested.text = str(more)
        return there
    if more <= 0:
        return None
    page = running.find("memoryBacking/hugepages/page")
    block = max(_BLOCK_KIB, int(page.get("size", "0"))) if page is not None else _BLOCK_KIB
    element = Element("memory", {"model": "virtio-mem"})
    target = add(element, "target")
    add(target, "size", largest - boot, unit="KiB")
    add(target, "node", 0)
    add(target, "block", block, unit="KiB")
    add(target, "requested", more, unit="KiB")
    add(element, "alias", name=_NAME)
    return element


def _kib(amount: Element | None) -> int:
    """Of an element of a running domain, in which libvirt counts in KiB."""
    return int(amount.text or 0) if amount is not None else 0
