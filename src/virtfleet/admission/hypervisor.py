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


def check(instance: Section, cluster: Cluster, path: str, found: Findings) -> None:
    """A VMI, or the template of one, with its defaults; its spec is at `path`.

    Its hypervisor must exist, be the one of its pool, and have all that it asks for.
    """
    launcher = cluster.fleet.launcher(instance)
    if why := hypervisor_error(launcher.hypervisor) or launcher.conflict:
        found.invalid(f"{path}.hypervisor", why)
    machine = msgspec.convert(instance, VirtualMachineInstance)
    for refusal in refusals(hypervisor_of(instance, cluster), machine, cluster.gates.switched_on):
        found.unsupported(path + refusal.field.removeprefix("spec"), refusal.message)
