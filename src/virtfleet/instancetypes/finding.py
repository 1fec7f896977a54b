"""The instance type and the preference of a VM, read from the API server.

A VM keeps what it took: what is kept counts before what the type says by now, as long as the VM still names that type.
"""

from __future__ import annotations

from virtfleet.admission.sections import Section, read
from virtfleet.instancetypes import revisions
from virtfleet.instancetypes.matching import INSTANCETYPE, PREFERENCE, Part, Types, named
from virtfleet.kube.api import KubeApi
from virtfleet.kube.errors import ApiError, ignoring, is_not_found
from virtfleet.kube.resource import CONTROLLER_REVISIONS, Obj, of_kind


async def find(api: KubeApi, vm: Section) -> Types:
    """Both. Raises ApiError where one is not there or cannot be used."""
    return Types(await spec(api, vm, INSTANCETYPE), await spec(api, vm, PREFERENCE))


async def find_if_any(api: KubeApi, vm: Section) -> Types:
    """Those of both that are there: a VM may come before its type."""
    types: dict[str, Section | None] = {}
    for part in (INSTANCETYPE, PREFERENCE):
        with ignoring(is_not_found):
            types[part.field] = await spec(api, vm, part)
    return Types(**types)


async def spec(api: KubeApi, vm: Section, part: Part) -> Section | None:
    """What counts for the VM; None where it names none."""
    if named(vm, part) is None:
        return None
    return revisions.spec_of(await kept(api, vm, part) or await current(api, vm, part), part)


async def kept(api: KubeApi, vm: Section, part: Part) -> Obj | None:
    """What the VM keeps of the type that it names."""
    matcher, namespace = named(vm, part) or {}, vm["metadata"]["namespace"]
    if name := matcher.get("revisionName"):
        return await api.get(CONTROLLER_REVISIONS, name, namespace)
    if name := reference(vm, part):
        revision = await api.get(CONTROLLER_REVISIONS, name, namespace)
        return revision if revisions.is_of(revision, str(matcher.get("name"))) else None
    return None


def reference(vm: Section, part: Part) -> str:
    """The name of the revision that the VM's status speaks of."""
    return str(read(vm, "status", part.ref, "controllerRevisionRef").get("name") or "")


async def current(api: KubeApi, vm: Section, part: Part) -> Obj:
    """The type itself, as it is now."""
    matcher = named(vm, part) or {}
    kind = part.kind(matcher)
    if kind is None:
        raise ApiError("BadRequest", f"got unexpected kind in {part.field.capitalize()}Matcher: {matcher['kind']}")
    resource = of_kind(kind)
    obj = await api.get(resource, str(matcher.get("name") or ""), vm["metadata"]["namespace"])
    return {**obj, "apiVersion": resource.api_version, "kind": resource.kind}
