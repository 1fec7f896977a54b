"""Which hypervisors there are, and which one a VMI runs on.

Third parties add theirs through the entry-point group `virtfleet.hypervisors`: the entry's name is the hypervisor's
name, its value the class.
"""

from __future__ import annotations

import importlib
from functools import cache
from typing import Final

from virtfleet.api.names import LAUNCHER_HYPERVISOR
from virtfleet.api.vmi import VirtualMachineInstance as VMI
from virtfleet.hypervisors.base import Hypervisor

GROUP: Final = "virtfleet.hypervisors"
DEFAULT: Final = "qemu-kvm"

# Imported on first use: a launcher needs one of them.
_OWN: Final = {
    "qemu-kvm": "virtfleet.hypervisors.qemu.hypervisor:QemuKvm",
    "mshv": "virtfleet.hypervisors.qemu.hypervisor:Mshv",
    "cloud-hypervisor": "virtfleet.hypervisors.cloud_hypervisor:CloudHypervisor",
    "xen": "virtfleet.hypervisors.xen:Xen",
    "lxc": "virtfleet.hypervisors.lxc:Lxc",
    "openvz": "virtfleet.hypervisors.openvz:OpenVZ",
    "virtualbox": "virtfleet.hypervisors.virtualbox:VirtualBox",
    "esx": "virtfleet.hypervisors.vmware:Esx",
    "vmware": "virtfleet.hypervisors.vmware:Vmware",
    "hyperv": "virtfleet.hypervisors.hyperv:HyperV",
    "virtuozzo": "virtfleet.hypervisors.virtuozzo:Virtuozzo",
    "bhyve": "virtfleet.hypervisors.bhyve:Bhyve",
}
# Other names under which people may know them.
ALIASES: Final = {"kvm": "qemu-kvm", "hyperv-direct": "mshv"}


class UnknownHypervisor(ValueError):
    """A name that no hypervisor has; the message lists those there are."""

    def __init__(self, name: str) -> None:
        super().__init__(f"there is no hypervisor {name!r}; it must be one of {', '.join(names())}")


def names() -> list[str]:
    """Names of all hypervisors, our own first."""
    return [*_OWN, *sorted(set(_plugins()) - set(_OWN))]


def canonical(name: str) -> str:
    """The name of a hypervisor, given one of its names."""
    return ALIASES.get(name, name)


@cache
def get(name: str) -> Hypervisor:
    """The hypervisor of a name or another name."""
    name = canonical(name)
    target = _OWN.get(name) or _plugins().get(name)
    if target is None:
        raise UnknownHypervisor(name)
    module, _, attribute = target.partition(":")
    chosen: type[Hypervisor] = getattr(importlib.import_module(module), attribute)
    return chosen()


def of(vmi: VMI) -> Hypervisor:
    """The hypervisor that a VMI's launcher was made to run on."""
    return get(vmi.metadata.annotations.get(LAUNCHER_HYPERVISOR) or vmi.spec.hypervisor or DEFAULT)


def resolve(vmi: str, pool: str, cluster: str) -> str:
    """The hypervisor that a VMI runs on: its own choice, else its pool's, else the cluster's, else qemu-kvm."""
    return canonical(vmi or pool or cluster or DEFAULT)


@cache
def _plugins() -> dict[str, str]:
    from importlib.metadata import entry_points  # costs more than all of the above, and is seldom needed

    return {entry.name: entry.value for entry in entry_points(group=GROUP)}
