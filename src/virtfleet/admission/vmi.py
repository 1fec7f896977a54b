"""All rules of a VMI in one place, in the order in which a reader would think of them."""

from __future__ import annotations

from virtfleet.admission import (
    architecture,
    compute,
    devices,
    disks,
    firmware,
    guest,
    hyperv,
    hypervisor,
    network,
    scheduling,
    volumes,
)
from virtfleet.admission.case import Case
from virtfleet.admission.findings import Findings
from virtfleet.admission.sections import Section, read
from virtfleet.admission.updates import RESERVED, Asker
from virtfleet.api import hooks, names
from virtfleet.api.selectors import label_key_error, label_value_error
from virtfleet.installation import Installation

_GATED_ANNOTATIONS = {names.IGNITION: "ExperimentalIgnitionSupport", names.HOOK_SIDECARS: "Sidecar"}


def check_vmi(vmi: Section, by: Asker, findings: Findings) -> None:
    """A new VMI with its defaults."""
    check_metadata(read(vmi, "metadata"), "metadata", by, findings)
    case = check_spec(vmi, by.cluster, "spec", findings)
    network.check_discontinued(case)
    compute.check_memory_is_given(case)
    disks.check_volumes_are_used(case)
    hyperv.check(case)
    architecture.check(case)
    hypervisor.check(case)


def check_spec(instance: Section, cluster: Installation, path: str, findings: Findings) -> Case:
    """The rules that hold for templates, too. `path` is where the instance's spec is."""
    case = Case(instance, cluster, path, findings)
    for part in (compute, firmware, devices, disks, volumes, network, guest, scheduling):
        part.check(case)
    return case


def check_reserved(metadata: Section, path: str, by: Asker, findings: Findings) -> None:
    """What only VirtFleet's own components say of a VMI; also in templates, whose VMIs they make."""
    for kind, ours in RESERVED.items():
        reserved = sorted(set(ours) & set(read(metadata, kind)))
        if reserved and not by.trusted:
            findings.unsupported(f"{path}.{kind}", f"{', '.join(reserved)} is set by VirtFleet itself; remove it")


def check_metadata(metadata: Section, path: str, by: Asker, findings: Findings) -> None:
    check_reserved(metadata, path, by, findings)
    for key, value in read(metadata, "labels").items():
        if why := label_key_error(key) or label_value_error(value):
            findings.invalid(f"{path}.labels", f"{key!r}: {value!r} is not a label: {why}")
    for key in read(metadata, "annotations"):
        if why := label_key_error(key.lower()):
            findings.invalid(f"{path}.annotations", f"{key!r} cannot be the name of an annotation: {why}")
    for annotation, gate in _GATED_ANNOTATIONS.items():
        if read(metadata, "annotations").get(annotation) and not by.cluster.enabled(gate):
            findings.gate_is_off(f"{path}.annotations", gate, f"annotation {annotation}")
    try:
        hooks.sidecars(read(metadata, "annotations"))
    except ValueError as error:
        findings.invalid(f"{path}.annotations", str(error))
