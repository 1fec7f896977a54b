"""The two questions of admission: what does this object become, and is it allowed?

The gateway asks for every request, `virtfleet validate` and `virtfleet render vmi` ask for files. No I/O happens here:
what a rule needs to know of the cluster comes with `Installation`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from virtfleet.admission import kubevirt, shape, templates
from virtfleet.admission.defaults import complete_vmi
from virtfleet.admission.findings import Findings
from virtfleet.admission.instancetypes import check_instancetype, check_preference
from virtfleet.admission.names import dns_subdomain_error
from virtfleet.admission.sections import Obj, Section, read
from virtfleet.admission.updates import Asker, Requester, check_vmi_update, keep_status
from virtfleet.admission.vmi import check_vmi
from virtfleet.api import imports, kinds
from virtfleet.api.kinds import OwnKind
from virtfleet.installation import Installation

NOBODY = Requester()


@dataclass(frozen=True, slots=True)
class Rules:
    """What admission does with one kind."""

    check: Callable[[Section, Asker, Findings], None]
    check_update: Callable[[Section, Section, Asker, Findings], None]
    complete: Callable[[Obj, Installation], None] | None = None
    complete_update: Callable[[Obj, Section, Asker], None] | None = None


def _alike(check: Callable[[Section, Asker, Findings], None]) -> Rules:
    """A changed object is judged as a new one would be."""
    return Rules(check, lambda obj, _, by, findings: check(obj, by, findings))


def _check_data_volume(dv: Section, _: Asker, findings: Findings) -> None:
    """Whether it can be done; what is found first says enough. Where CDI is, it is not asked."""
    try:
        imports.wanted(dv)
        imports.size(dv)
    except imports.Unusable as fault:
        findings.invalid(fault.path, fault.message)


def _check_data_volume_update(dv: Section, old: Section, _: Asker, findings: Findings) -> None:
    """The claim is made and filled once."""
    if read(dv, "spec") != read(old, "spec"):
        findings.forbidden("spec", "it cannot be changed; delete the DataVolume, and create another one")


RULES: Mapping[OwnKind, Rules] = {
    kinds.VMI: Rules(check_vmi, check_vmi_update, complete_vmi, keep_status),
    kinds.VM: Rules(templates.check_new_vm, templates.check_vm_update, templates.complete_vm, templates.settle_vm),
    kinds.REPLICA_SET: _alike(templates.check_replica_set),
    kinds.MIGRATION: Rules(templates.check_migration, templates.check_migration_update, templates.complete_migration),
    kinds.POLICY: _alike(lambda policy, _, findings: templates.check_policy(policy, findings)),
    kinds.KUBEVIRT: Rules(
        lambda installation, _, findings: kubevirt.check(installation, findings),
        lambda installation, old, _, findings: kubevirt.check(installation, findings, old),
    ),
    **dict.fromkeys(kinds.TYPES, _alike(check_instancetype)),
    **dict.fromkeys(kinds.PREFERENCES, _alike(check_preference)),
    kinds.DATA_VOLUME: Rules(_check_data_volume, _check_data_volume_update),
    # It may name what is not there yet; whoever uses it is told.
    kinds.DATA_SOURCE: _alike(lambda _source, _by, _findings: None),
}
_RULES = {kind.kind: rules for kind, rules in RULES.items()}


def complete(obj: Section, cluster: Installation, user: Requester = NOBODY) -> tuple[Obj, Findings]:
    """A new object with its defaults. Where types are wrong, the object comes back as it is, with the findings."""
    completed, findings = shape.without_nulls(obj), Findings()
    if not Asker(cluster, user).trusted:
        completed.pop("status", None)  # it tells components what was seen, so nobody else may begin one
    if shape.check(completed, findings) and (fill := _RULES[completed["kind"]].complete):
        completed.setdefault("metadata", {})
        fill(completed, cluster)
    return completed, findings


def complete_update(obj: Section, old: Section, cluster: Installation, user: Requester = NOBODY) -> Obj:
    """A changed object as it is stored."""
    completed = shape.without_nulls(obj)
    rules = _RULES.get(str(completed.get("kind")))
    if rules and rules.complete_update:
        rules.complete_update(completed, old, Asker(cluster, user))
    return completed


def review(obj: Section, cluster: Installation, user: Requester = NOBODY) -> Findings:
    """Whether a new object with its defaults is allowed."""
    findings = Findings()
    obj = shape.without_nulls(obj)
    if shape.check(obj, findings):
        _check_name(read(obj, "metadata"), findings)
        _RULES[obj["kind"]].check(obj, Asker(cluster, user), findings)
    return findings


def review_update(obj: Section, old: Section, cluster: Installation, user: Requester = NOBODY) -> Findings:
    """Whether a change is allowed. An object that is being deleted may lose its finalizers whatever it says."""
    findings = Findings()
    obj, old = shape.without_nulls(obj), shape.without_nulls(old)
    if shape.check(obj, findings):
        _RULES[obj["kind"]].check_update(obj, old, Asker(cluster, user), findings)
    return findings


def _check_name(metadata: Section, findings: Findings) -> None:
    name = metadata.get("name") or ""
    if not name and not metadata.get("generateName"):
        findings.required("metadata.name", "the object needs a name; set metadata.name or metadata.generateName")
    elif name and (why := dns_subdomain_error(name)):
        findings.invalid("metadata.name", f"{name!r} is not a name: {why}")
