"""Whether a VMI's hypervisor exists, is the one of its pool, and has what the VMI asks for."""

from __future__ import annotations

from collections.abc import Iterable

from virtfleet.admission.case import Case
from virtfleet.admission.findings import Findings
from virtfleet.admission.sections import Section
from virtfleet.api.view import given
from virtfleet.hypervisors import registry
from virtfleet.hypervisors.base import Hypervisor
from virtfleet.hypervisors.features import refusals, warnings
from virtfleet.hypervisors.notyet import AbsentField
from virtfleet.installation import Installation

_DIRECTORIES = ("persistentVolumeClaim", "dataVolume", "configMap", "secret", "serviceAccount", "downwardAPI")


def warn_of_absent(fields: Iterable[AbsentField], spec: Section, findings: Findings) -> None:
    """Fields of an object's spec that are admitted although nothing comes of them."""
    for field in fields:
        if field.asked(spec):
            findings.without_effect(field.not_yet.warning(f"spec.{field.field}"))


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


def check(case: Case) -> None:
    """A VMI, or the template of one, with its defaults.

    Its hypervisor must exist, be the one of its pool, and have all that it asks for. What is admitted although nothing
    comes of it is said.
    """
    launcher = case.cluster.fleet.launcher(case.instance)
    if why := hypervisor_error(launcher.hypervisor) or launcher.conflict:
        case.invalid("hypervisor", why)
    hypervisor = hypervisor_of(case.instance, case.cluster)
    for refusal in refusals(hypervisor, case.vmi, case.cluster.gates.switched_on, case.path):
        case.whole.unsupported(refusal.field, refusal.message)
    if not hypervisor.descriptor.container and hypervisor.has("filesystem"):
        _check_shared(case)
    for warning in warnings(hypervisor, case.vmi, case.path):
        case.without_effect(warning)


def _check_shared(case: Case) -> None:
    """A machine's file systems are directories that its Pod has."""
    volumes = {volume.name: volume for volume in case.spec.volumes}
    for i, filesystem in enumerate(case.devices.filesystems):
        volume = volumes.get(filesystem.name)
        if filesystem.virtiofs and volume and not given(volume, _DIRECTORIES):
            case.invalid(
                f"domain.devices.filesystems[{i}].name",
                f"volume {volume.name!r} is no directory; use one of {', '.join(_DIRECTORIES)}, or show it as a disk",
            )
