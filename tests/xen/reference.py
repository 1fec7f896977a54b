"""Documents of the reference VMIs, as Xen gets them.

References were made for KVM, and all but a few have a display. That is taken off, as Xen has none; whatever else Xen
lacks leaves a reference out, by the registry of what works.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import yaml

from tests.reference import GOLDEN
from virtfleet.admission.review import complete
from virtfleet.api.view import read
from virtfleet.api.vmi import VirtualMachineInstance as VMI
from virtfleet.cli.look.render import pretend_node
from virtfleet.domain.errors import DomainError
from virtfleet.domain.xml import text
from virtfleet.hypervisors import registry
from virtfleet.hypervisors.base import Hypervisor
from virtfleet.hypervisors.features import FEATURES, support
from virtfleet.hypervisors.support import Level
from virtfleet.hypervisors.xen import UNSEEN
from virtfleet.installation import Installation

KERNEL = {"container": {"image": "x", "kernelPath": "/vmlinuz", "initrdPath": "/initrd"}, "kernelArgs": "console=hvc0"}
FIRMWARE: dict[str, dict[str, Any]] = {
    "bios": {},
    "efi": {"bootloader": {"efi": {"secureBoot": False}}},
    "kernel": {"kernelBoot": KERNEL},
}


def documents() -> dict[str, str]:
    """The document of each reference that Xen supports, once with each way to boot."""
    return {f"{case.name}-{way}": document for case in _accepted() for way, document in _of(case)}


def _accepted() -> list[Path]:
    cases = sorted(path.parent for path in GOLDEN.glob("*/domain.xml"))
    return [case for case in cases if json.loads((case / "verdict.json").read_text())["allowed"]]


def _of(case: Path) -> Iterator[tuple[str, str]]:
    settings = yaml.safe_load((case / "kubevirt.yaml").read_text())
    settings.setdefault("spec", {}).setdefault("configuration", {})["hypervisors"] = [{"name": "xen"}]
    xen, cluster = registry.get("xen"), Installation(settings)
    for way, firmware in FIRMWARE.items():
        vmi = yaml.safe_load((case / "input.yaml").read_text())
        domain = vmi["spec"]["domain"]
        if "bootloader" in (domain.get("firmware") or {}) and way != "bios":
            continue  # it has chosen
        domain.setdefault("devices", {})["autoattachGraphicsDevice"] = False
        domain["firmware"] = (domain.get("firmware") or {}) | firmware
        completed, _ = complete(vmi, cluster)
        completed["metadata"] |= {"uid": "00000000-0000-4000-8000-000000000000"}
        wanted = read(VMI, completed)
        if all(_taken(xen, feature.key) for feature in FEATURES if feature.asked(wanted)):
            with suppress(DomainError):  # of a combination, for instance a kernel and a disk that is only read
                yield way, text(xen.build(wanted, pretend_node(wanted, cluster)))


def _taken(hypervisor: Hypervisor, key: str) -> bool:
    """Whether libvirt's driver takes it, even if no guest was seen with it."""
    has = support(hypervisor, key)
    return has.level is not Level.IMPOSSIBLE and (has.level is not Level.ABSENT or has.reason == UNSEEN)
