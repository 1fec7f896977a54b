"""Disk images that QEMU has open though no device of the domain has them any more.

QEMU tells that a device has gone while the last requests to it are still on their way. libvirt then closes the image at
once, is refused and forgets it: it would stay open, and locked, for as long as the guest runs.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from xml.etree.ElementTree import Element

from virtfleet.hypervisors.migration import Ask

_NODE = re.compile(r"libvirt-(\d+)-(format|storage)")  # as libvirt names what it has opened


def forgotten(running: Element, nodes: Iterable[str]) -> list[str]:
    """The nodes that belong to none of the domain's disks; those first that others are made of.

    Controllers have numbers of their own, and of a drive that has become empty libvirt keeps the number alone.
    """
    parts = (part for disk in running.iterfind("devices/disk") for part in disk.iter())
    used = {part.get("index") for part in parts if part.attrib.keys() - {"index"} or len(part)}
    matches = [match for name in nodes if (match := _NODE.fullmatch(name)) and match[1] not in used]
    return [match[0] for match in sorted(matches, key=lambda match: match[2])]


def sweep(running: Element, ask: Ask) -> bool:
    """Close them; whether none is left."""
    nodes = (node["node-name"] for node in ask("query-named-block-nodes", {"flat": True}).get("return", ()))
    answers = [ask("blockdev-del", {"node-name": node}) for node in forgotten(running, nodes)]
    return not any("error" in answer for answer in answers)
