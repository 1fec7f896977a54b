"""Instance types and preferences of VMs: kept as they were when the VM took them, and told in its status."""

from __future__ import annotations

from virtfleet.admission.sections import Section, read
from virtfleet.controller.lifecycle import FAILED_CREATE
from virtfleet.instancetypes import applying, finding, revisions
from virtfleet.instancetypes.applying import Conflict
from virtfleet.instancetypes.matching import PARTS, Part, Types, is_typed, named
from virtfleet.kube.api import KubeApi
from virtfleet.kube.errors import ApiError, ignoring, is_already_exists, is_not_found
from virtfleet.kube.resource import CONTROLLER_REVISIONS, Obj

_FIELDS = ("name", "kind", "inferFromVolume", "inferFromVolumeFailurePolicy")
_STORING = "error encountered while storing instancetype.kubevirt.io controllerRevisions: "


class Untyped(Exception):
    """A VM does not have what it names, and cannot start."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


async def find(api: KubeApi, vm: Obj) -> Types:
    """Raises Untyped where one of both is not there, or cannot be used."""
    types: dict[str, Section | None] = {}
    for part in PARTS:
        try:
            types[part.field] = await finding.spec(api, vm, part)
        except ApiError as error:
            if error.code not in (400, 404, 422):
                raise
            raise Untyped(part.missing, error.message) from error
    return Types(**types)


async def keep(api: KubeApi, vm: Obj) -> Obj:
    """What is to be changed in the VM's status, once all that it names is kept in revisions. Raises Untyped."""
    change: Obj = {}
    for part in PARTS:
        known: Obj | None = (vm.get("status") or {}).get(part.ref)
        try:
            wanted = await _reference(api, vm, part, known or {})
        except (ApiError, Conflict) as error:
            if isinstance(error, ApiError) and error.code >= 500:
                raise
            raise Untyped(FAILED_CREATE, f"{_STORING}{error}") from error
        if wanted != known:
            # A merge: what is no more has to be said.
            change[part.ref] = wanted and {**dict.fromkeys(known or ()), **wanted}
    return change


async def _reference(api: KubeApi, vm: Obj, part: Part, known: Obj) -> Obj | None:
    """What the status says of one of both: what the VM names, and where that is kept."""
    matcher = named(vm, part)
    if matcher is None:
        return None
    said = {field: matcher[field] for field in _FIELDS if matcher.get(field)}
    moved = any(said.get(field, known.get(field)) != known.get(field) for field in _FIELDS[:3])
    name = matcher.get("revisionName") or ("" if moved else read(known, "controllerRevisionRef").get("name"))
    kept = await _renewed(api, vm, part, name) if name else await _store(api, vm, part)
    return {**known, **said, "controllerRevisionRef": {"name": kept}}


async def _store(api: KubeApi, vm: Obj, part: Part) -> str:
    """Keep the type as it is now, if it goes together with the VM: it may have changed since the VM was admitted."""
    current = await finding.current(api, vm, part)
    applying.applied(vm["spec"]["template"], Types(**{part.field: revisions.spec_of(current, part)}))
    return await _create(api, vm, revisions.revision(vm, current))


async def _create(api: KubeApi, vm: Obj, wanted: Obj) -> str:
    name: str = wanted["metadata"]["name"]
    with ignoring(is_already_exists):
        await api.create(CONTROLLER_REVISIONS, wanted)
        return name
    stored = await api.get(CONTROLLER_REVISIONS, name, vm["metadata"]["namespace"])
    if revisions.is_foreign(stored, vm):
        raise ApiError("AlreadyExists", f"ControllerRevision {name} is not this VM's; it is made when that one is gone")
    if read(stored, "data").get("spec") != wanted["data"].get("spec"):
        raise ApiError("AlreadyExists", f"found existing ControllerRevision with unexpected data: {name}; delete it")
    return name


async def _renewed(api: KubeApi, vm: Obj, part: Part, name: str) -> str:
    """The same content under the name and labels of today, where it was kept by an early version of KubeVirt."""
    kept = await api.get(CONTROLLER_REVISIONS, name, vm["metadata"]["namespace"])
    if revisions.is_current(kept):
        return name
    revisions.spec_of(kept, part)
    return await _create(api, vm, revisions.revision(vm, kept["data"]))


async def forget(api: KubeApi, before: Obj, now: Obj) -> None:
    """Take away what is kept for the VM and was replaced; to be called once its status does not name it any more.

    What it took from a type that it names no more stays until the VM goes: it may come back to it.
    """
    namespace = now["metadata"]["namespace"]
    for part in PARTS:
        name = finding.reference(before, part)
        if not name or name == finding.reference(now, part):
            continue
        with ignoring(is_not_found):
            kept = await api.get(CONTROLLER_REVISIONS, name, namespace)
            if (named(now, part) is not None and revisions.is_current(kept)) or revisions.is_foreign(kept, now):
                continue
            await api.delete(CONTROLLER_REVISIONS, name, namespace)


def whole(vm: Obj, types: Types) -> Obj:
    """The VM with what its types say: what its instance is compared with. Raises Conflict."""
    return applying.with_template(vm, applying.applied(vm["spec"]["template"], types)) if is_typed(vm) else vm
