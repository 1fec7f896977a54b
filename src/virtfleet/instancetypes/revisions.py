"""ControllerRevisions in which an instance type or a preference is kept as it was when a VM took it. Pure.

Whoever can write ControllerRevisions can put anything into one, so what is read is checked as if it were new.
"""

from __future__ import annotations

from virtfleet.admission import shape
from virtfleet.admission.findings import Findings
from virtfleet.admission.sections import Section, read
from virtfleet.api import kinds
from virtfleet.instancetypes.matching import Part
from virtfleet.kube.errors import ApiError
from virtfleet.kube.resource import CONTROLLER_REVISIONS, VMS, Obj, owner_reference

_LABELS = f"{kinds.TYPES[0].group}/object-"
_NAME, _VERSION = f"{_LABELS}name", f"{_LABELS}version"
_IDENTITY = ("name", "namespace", "uid", "generation", "creationTimestamp", "resourceVersion")


def revision(vm: Obj, obj: Obj) -> Obj:
    """The record of a type for a VM, which it goes with. Its name says what of which generation it is."""
    meta, version = obj["metadata"], obj["apiVersion"].rpartition("/")[2]
    about = {
        "generation": str(meta.get("generation", 0)),
        "kind": obj["kind"],
        "name": meta["name"],
        "uid": meta.get("uid", ""),
        "version": version,
    }
    of_record = {
        "name": "-".join((vm["metadata"]["name"], meta["name"], version, about["uid"], about["generation"])),
        "namespace": vm["metadata"]["namespace"],
        "labels": {_LABELS + key: value for key, value in about.items()},
        "ownerReferences": [owner_reference(vm, VMS)],
    }
    data = {**obj, "metadata": {key: meta[key] for key in _IDENTITY if key in meta}}
    return CONTROLLER_REVISIONS.object(of_record, data=data, revision=0)


def is_of(kept: Obj, name: str) -> bool:
    """Whether it is a record of the type of that name."""
    return read(kept, "metadata", "labels").get(_NAME) == name


def is_current(kept: Obj) -> bool:
    """Whether it says in which version of the API it is: early ones do not."""
    return read(kept, "metadata", "labels").get(_VERSION) == kinds.TYPES[0].versions[0]


def is_foreign(kept: Obj, vm: Obj) -> bool:
    """Whether it goes with something else than this VM, for example with an earlier one of the same name."""
    owners = kept["metadata"].get("ownerReferences") or ()
    return bool(owners) and vm["metadata"]["uid"] not in [owner.get("uid") for owner in owners]


def spec_of(obj: Obj, part: Part) -> Section:
    """The spec of a type, or of what is kept of one. Raises ApiError where it is none that can be used."""
    where = f"{obj.get('kind')} {obj['metadata']['name']}"
    if obj.get("kind") == CONTROLLER_REVISIONS.kind:
        obj = obj.get("data") or {}
    findings = Findings()
    if obj.get("kind") not in [kind.kind for kind in part.kinds]:
        findings.invalid("kind", f"unexpected type in {where}: {obj.get('kind')}")
    else:
        obj = shape.without_nulls(obj)
        shape.check(obj, findings)
        if not read(obj, "metadata").get("name"):
            findings.missing("metadata.name")
    if not findings.allowed:
        why = "; ".join(f"{cause.field}: {cause.message}" for cause in findings.causes)
        raise ApiError("Invalid", f"{where} cannot be used: {why}")
    return read(obj, "spec")
