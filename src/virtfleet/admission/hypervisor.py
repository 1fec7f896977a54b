"""Whether a VMI's hypervisor exists, is the one of its pool, and has what the VMI asks for."""

from __future__ import annotations

import msgspec

from virtfleet.admission.cluster import Cluster
from virtfleet.admission.findings import Findings
from virtfleet.admission.sections import Section
from virtfleet.api.vmi import VirtualMachineInstance
from virtfleet.hypervisors import registry
from virtfleet.hypervisors.base import Hypervisor
from virtfleet.hypervisors.features import refusals


def hypervisor_error(name: str) -> str | None:
    """Why there is no hypervisor of this name, or None."""
    try:
        registry.get(name)
    except registry.UnknownHypervisor as error:
        return str(error)
    return None


def hypervisor_of(vmi: Section, cluster: Cluster) -> Hypervisor:
    """The hypervisor that a VMI gets. Where the name is wrong the default one stands in, and `check` objects."""
    name = cluster.fleet.launcher(vmi).hypervisor
    return registry.get(registry.DEFAULT if hypervisor_error(name) else name)


def check(vmi: Section, cluster: Cluster, found: Findings) -> None:
    """A VMI with its defaults: its hypervisor must have all that it asks for."""
    check_choice(vmi, cluster, "spec", found)
    machine = msgspec.convert(vmi, VirtualMachineInstance)
    for refusal in refusals(hypervisor_of(vmi, cluster), machine, cluster.gates.switched_on):
        found.unsupported(refusal.field, refusal.message)


def check_choice(instance: Section, cluster: Cluster, path: str, found: Findings) -> None:
    """A VMI, or the template of one: the hypervisor must exist and be the one of the pool."""
    launcher = cluster.fleet.launcher(instance)
    if why := hypervisor_error(launcher.hypervisor) or launcher.conflict:
        found.invalid(f"{path}.hypervisor", why)
