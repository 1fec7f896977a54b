"""Whether a VMI's hypervisor exists, is the one of its pool, and has what the VMI asks for."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from virtfleet.admission.findings import Findings
from virtfleet.admission.sections import Section
from virtfleet.api.vmi import VirtualMachineInstance
from virtfleet.hypervisors import registry
from virtfleet.hypervisors.base import Hypervisor
from virtfleet.hypervisors.features import refusals, warnings
from virtfleet.hypervisors.notyet import AbsentField
from virtfleet.installation import Installation


def warn_of_absent(fields: Iterable[AbsentField], spec: Section, found: Findings) -> None:
    """Fields of an object's spec that are admitted although nothing comes of them."""
    for field in fields:
        if field.asked(spec):
            found.without_effect(field.not_yet.warning(f"spec.{field.field}"))


def hypervisor_error(name: str) -> str | None:
    """Why there is no hypervisor of this name, or None."""
    try:
        registry.get(name)
    except registry.UnknownHypervisor as error:
        return str(error)
    return None


def hypervisor_of(vmi: Section, cluster: Installation) -> Hypervisor:
    """The hypervisor that a VMI gets. Where the name is wrong the default one stands in, and `check` objects."""
    name = cluster.fleet.launcher(vmi).hypervisor
    return registry.get(registry.DEFAULT if hypervisor_error(name) else name)


def check(instance: Section, cluster: Installation, path: str, found: Findings) -> None:
    """A VMI, or the template of one, with its defaults; its spec is at `path`.

    Its hypervisor must exist, be the one of its pool, and have all that it asks for. What is admitted although nothing
    comes of it is told.
    """
    launcher = cluster.fleet.launcher(instance)
    if why := hypervisor_error(launcher.hypervisor) or launcher.conflict:
        found.invalid(f"{path}.hypervisor", why)
    machine, hypervisor = msgspec.convert(instance, VirtualMachineInstance), hypervisor_of(instance, cluster)
    for refusal in refusals(hypervisor, machine, cluster.gates.switched_on, path):
        found.unsupported(refusal.field, refusal.message)
    for warning in warnings(hypervisor, machine, path):
        found.without_effect(warning)
