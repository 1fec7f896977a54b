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
    launcher = cluster.fleet.launcher(vmi)
    if why := hypervisor_error(launcher.hypervisor) or launcher.conflict:
        found.invalid("spec.hypervisor", why)
        return
    hypervisor = registry.get(launcher.hypervisor)
    for refusal in refusals(hypervisor, msgspec.convert(vmi, VirtualMachineInstance), cluster.gates.switched_on):
        found.unsupported(refusal.field, refusal.message)
