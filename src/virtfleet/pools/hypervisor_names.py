"""Names of hypervisors, and which one a VMI gets."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_OTHER_NAMES = {"kvm": "qemu-kvm", "hyperv-direct": "mshv"}
_NAMES = (
    "qemu-kvm", "mshv", "cloud-hypervisor", "xen", "lxc", "openvz", "virtualbox", "esx", "vmware", "hyperv",
    "virtuozzo", "bhyve",
)  # fmt: skip


def names_and_aliases() -> tuple[str, ...]:
    return (*_NAMES, *_OTHER_NAMES)


def canonical_name(name: str) -> str:
    return _OTHER_NAMES.get(name, name)


def resolve_name(asked: str, pool: str, kubevirt: Mapping[str, Any]) -> str:
    configured = ((kubevirt.get("spec") or {}).get("configuration") or {}).get("hypervisors") or ()
    default = configured[0].get("name") if configured else ""
    return canonical_name(asked or pool or default or "qemu-kvm")
