"""The two questions of admission: what does this object become, and is it allowed?

The gateway asks for every request, `virtfleet validate` and `virtfleet render vmi` ask for files. No I/O happens here:
what a rule needs to know of the cluster comes with `Installation`.
"""

from __future__ import annotations

from collections.abc import Callable

from virtfleet.admission import kubevirt, shape, templates
from virtfleet.admission.defaults import complete_vmi
from virtfleet.admission.findings import Findings
from virtfleet.admission.names import dns_subdomain_error
from virtfleet.admission.sections import Obj, Section, read
from virtfleet.admission.updates import Requester, check_vmi_update, keep_status
from virtfleet.admission.vmi import check_vmi
from virtfleet.installation import Installation

NOBODY = Requester()

_COMPLETIONS: dict[str, Callable[[Obj, Installation], None]] = {
    "VirtualMachineInstance": complete_vmi,
    "VirtualMachine": templates.complete_vm,
    "VirtualMachineInstanceMigration": templates.complete_migration,
}
COMPLETED = frozenset(_COMPLETIONS)
"""Kinds that get defaults."""


def complete(obj: Section, cluster: Installation, user: Requester = NOBODY) -> tuple[Obj, Findings]:
    """A new object with its defaults. Where types are wrong, the object comes back as it is, with the findings."""
    completed, found = shape.without_nulls(obj), Findings()
    if user.name not in cluster.service_accounts:
        completed.pop("status", None)  # it tells components what was seen, so nobody else may begin one
    if shape.check(completed, found) and completed["kind"] in _COMPLETIONS:
        completed.setdefault("metadata", {})
        _COMPLETIONS[completed["kind"]](completed, cluster)
    return completed, found


def complete_update(obj: Section, old: Section, cluster: Installation, user: Requester = NOBODY) -> Obj:
    """A changed object as it is stored."""
    completed = shape.without_nulls(obj)
    if completed.get("kind") == "VirtualMachineInstance":
        keep_status(completed, old, cluster, user)
    elif completed.get("kind") == "VirtualMachine" and read(completed, "spec").get("template") is not None:
        templates.settle_machine(completed["spec"]["template"].setdefault("spec", {}), cluster)
    return completed


def review(obj: Section, cluster: Installation, user: Requester = NOBODY) -> Findings:
    """Whether a new object with its defaults is allowed."""
    found = Findings()
    obj = shape.without_nulls(obj)
    if not shape.check(obj, found):
        return found
    _check_name(read(obj, "metadata"), found)
    trusted = user.name in cluster.service_accounts
    match obj["kind"]:
        case "VirtualMachineInstance":
            check_vmi(obj, cluster, trusted, found)
        case "VirtualMachine":
            templates.check_new_vm(obj, cluster, trusted, found)
        case "VirtualMachineInstanceReplicaSet":
            templates.check_replica_set(obj, cluster, trusted, found)
        case "VirtualMachineInstanceMigration":
            templates.check_migration(obj, cluster, user.name, found)
        case "KubeVirt":
            kubevirt.check(obj, found)
    return found


def review_update(obj: Section, old: Section, cluster: Installation, user: Requester = NOBODY) -> Findings:
    """Whether a change is allowed. An object that is being deleted may lose its finalizers whatever it says."""
    found = Findings()
    obj, old = shape.without_nulls(obj), shape.without_nulls(old)
    if not shape.check(obj, found):
        return found
    trusted = user.name in cluster.service_accounts
    match obj["kind"]:
        case "VirtualMachineInstance":
            check_vmi_update(obj, old, cluster, user, found)
        case "VirtualMachine":
            if read(obj, "metadata").get("deletionTimestamp") is None:
                templates.check_vm(obj, cluster, trusted, found)
                templates.check_vm_update(obj, old, found)
        case "VirtualMachineInstanceReplicaSet":
            templates.check_replica_set(obj, cluster, trusted, found)
        case "VirtualMachineInstanceMigration":
            templates.check_migration_update(obj, old, found)
        case "KubeVirt":
            kubevirt.check(obj, found, old)
    return found


def _check_name(metadata: Section, found: Findings) -> None:
    name = metadata.get("name") or ""
    if not name and not metadata.get("generateName"):
        found.required("metadata.name", "the object needs a name; set metadata.name or metadata.generateName")
    elif name and (why := dns_subdomain_error(name)):
        found.invalid("metadata.name", f"{name!r} is not a name: {why}")
