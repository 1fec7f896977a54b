"""What the pages ask beside objects: whether an object would be taken, and why a VM goes where it goes.

Both with what the visitor may read. Who may not list nodes is told of pools alone.
"""

from __future__ import annotations

from typing import Any

import msgspec
import orjson
from aiohttp import web

from virtfleet.api.kinds import BY_NAME, VM, VMI
from virtfleet.api.subresources import GROUP, VERSIONS
from virtfleet.dashboard.passing import body, is_name
from virtfleet.dashboard.visitors import Visitor
from virtfleet.installation import Installation
from virtfleet.kube.client import Client
from virtfleet.kube.errors import ApiError, is_not_found
from virtfleet.kube.resource import KUBEVIRTS, NODES, PERSISTENT_VOLUMES, VMIS, VMS, Obj
from virtfleet.reasons.explanation import explanation
from virtfleet.reasons.instances import completed_instance


class Asked(msgspec.Struct, forbid_unknown_fields=True):
    """An object that somebody writes, or the name of one that is there."""

    object: dict[str, Any] | None = None
    namespace: str = ""
    name: str = ""
    new: bool = True
    """Whether it is to be created; else it is to replace the one of its name."""


async def _asked(request: web.Request) -> Asked:
    try:
        asked = msgspec.json.decode(await body(request) or b"{}", type=Asked)
    except msgspec.MsgspecError as error:
        raise ApiError("BadRequest", f"the question cannot be read: {error}") from None
    meta = asked.object.get("metadata") if asked.object is not None else {}
    meta = meta if isinstance(meta, dict) else {}
    asked.namespace = asked.namespace or meta.get("namespace") or "default"
    asked.name = asked.name or meta.get("name") or ""
    if not is_name(asked.namespace) or (asked.name and not is_name(asked.name)):
        raise ApiError("Invalid", "metadata.name: lower case letters, digits and - make a name")
    return asked


async def validate(request: web.Request, visitor: Visitor) -> web.StreamResponse:
    """What the API server says to a VM, without keeping it: schema, admission, policies, quotas, rights."""
    asked = await _asked(request)
    obj = asked.object or {}
    if obj.get("kind") != VM.kind or obj.get("apiVersion") != VM.api_version:
        cause = {"field": "kind", "message": f"only a {VM.kind} of {VM.api_version} can be written here"}
        return web.json_response({"allowed": False, "causes": [cause], "warnings": []})
    warnings: list[str] = []
    path = VMS.path(asked.namespace, None if asked.new else asked.name)
    try:
        await visitor.api.request(
            "POST" if asked.new else "PUT",
            path,
            params={"dryRun": "All", "fieldValidation": "Strict"},
            body=orjson.dumps(obj),
            warnings=warnings,
        )
    except ApiError as error:
        if error.code in (401, 429) or error.code >= 500:
            raise
        causes = (error.details or {}).get("causes") or [{"field": "", "message": error.message}]
        shown = [{"field": c.get("field", ""), "message": c.get("message", "")} for c in causes]
        return web.json_response({"allowed": False, "causes": shown, "warnings": warnings})
    return web.json_response({"allowed": True, "causes": [], "warnings": warnings})


async def explain(request: web.Request, visitor: Visitor) -> web.StreamResponse:
    """Why a VM runs where it does, or where one that is being written would run."""
    asked = await _asked(request)
    api = visitor.api
    kubevirts = await api.list(KUBEVIRTS)
    oldest = min(kubevirts, key=lambda kv: kv["metadata"].get("creationTimestamp", ""), default=None)
    if oldest is None:
        raise ApiError("NotFound", "the cluster has no KubeVirt object")
    installation = Installation(oldest)
    vmi = await _instance(api, asked, installation)
    nodes: list[Obj] | None = None
    unseen = ""
    volumes: dict[tuple[str, str], Obj] = {}
    try:
        nodes = await api.list(NODES)
        bound = await api.list(PERSISTENT_VOLUMES)
        volumes = {(c["namespace"], c["name"]): volume for volume in bound if (c := volume["spec"].get("claimRef"))}
    except ApiError as error:
        if error.code != 403:
            raise
        unseen = "You may not list nodes, so only pools are told of."
        if nodes is not None:
            unseen = "You may not list volumes, so nodes are told of as if each of them had the VM's volumes."
    explained = explanation(vmi, installation, nodes, volumes, live=True)
    return web.json_response({**explained, "unseen": unseen})


async def _instance(api: Client, asked: Asked, installation: Installation) -> Obj:
    """The VMI to explain: that of a running VM, else what its VM would make."""
    obj = asked.object
    if obj is None:
        try:
            return await api.get(VMIS, asked.name, asked.namespace)
        except ApiError as error:
            if not is_not_found(error):
                raise
        obj = await api.get(VMS, asked.name, asked.namespace)
    kind = BY_NAME.get(str(obj.get("kind") or VM.kind))
    if kind not in (VM, VMI):
        raise ApiError("BadRequest", "only VMs and VMIs can be explained")
    obj = {**obj, "kind": kind.kind, "apiVersion": obj.get("apiVersion") or kind.api_version}
    spec = obj.get("spec")
    if kind is VM and isinstance(spec, dict) and (spec.get("instancetype") or spec.get("preference")):
        path = f"/apis/{GROUP}/{VERSIONS[0]}/namespaces/{asked.namespace}/expand-vm-spec"
        obj = orjson.loads(await api.request("PUT", path, body=orjson.dumps(obj)))
    vmi, findings = completed_instance(obj, installation)
    if not findings.allowed:
        causes = [{"field": c.field, "message": c.message} for c in findings.causes]
        raise ApiError("Invalid", f"{causes[0]['field']}: {causes[0]['message']}", details={"causes": causes})
    return vmi
