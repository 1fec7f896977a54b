"""Admission webhooks: AdmissionReviews in, decisions of `virtfleet.admission` out.

The rules are pure and live in admission/; here is only what the wire needs. A review is answered from memory (the
KubeVirt object and, when a pool is taken away, the VMIs), so that an answer takes well under a millisecond; only VMs
that name an instance type or a preference take longer, for which the API server is asked. While the KubeVirt object is
not known yet, nothing is admitted: a VMI without its defaults and checks would be worse than one that is refused for a
moment.

Only API servers are answered: whoever does not know the path is sent away before the body is read. What an object may
cost is bounded here once more, because an API server asks mutating webhooks before it looks at the schema.
"""

from __future__ import annotations

import asyncio
import base64
import hmac
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import orjson
from aiohttp import web

from virtfleet.admission.findings import Findings
from virtfleet.admission.kubevirt_pools import check_removal
from virtfleet.admission.mobility import check_migration_target
from virtfleet.admission.review import complete, complete_update, review, review_update
from virtfleet.admission.updates import Requester
from virtfleet.gateway import reviews
from virtfleet.gateway.instancetypes import TypedVms, concerns
from virtfleet.gateway.knowledge import Knowledge, NotYet
from virtfleet.gateway.reviews import Malformed, TooLarge
from virtfleet.installation import Installation
from virtfleet.kube.cache import key_of
from virtfleet.kube.component import admission_path
from virtfleet.kube.credentials import Material
from virtfleet.kube.resource import KUBEVIRTS, VMI_MIGRATIONS, Obj

_VERSION = "admission.k8s.io/v1"
_BODIES = 16  # that are held at once

Decide = Callable[[Obj], Obj | Awaitable[Obj]]


@dataclass
class Webhooks:
    """`key` is a part of the paths, which only API servers are told; `others` are decided elsewhere."""

    _knowledge: Knowledge
    _key: Material
    _typed: TypedVms
    _others: Mapping[str, Decide] = field(default_factory=dict)
    _bodies: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(_BODIES), init=False)

    def routes(self) -> list[web.RouteDef]:
        """The paths that API servers are told."""
        webhooks: dict[str, Decide] = {"mutate": self._mutating, "validate": self._validating, **self._others}
        return [web.post(admission_path("{key}", name), self._answerer(each)) for name, each in webhooks.items()]

    async def _mutating(self, request: Obj) -> Obj:
        if not concerns(request):
            return self.mutate(request)
        findings = Findings()
        vm = await self._typed.completed(request, findings)
        return self.mutate(request, vm) if findings.allowed else _refused(request, findings)

    async def _validating(self, request: Obj) -> Obj:
        if not concerns(request):
            return self.validate(request)
        findings = Findings()
        vm = await self._typed.expanded(request, self._knowledge.cluster(), findings)
        return self.validate({**request, "object": vm}) if findings.allowed else _refused(request, findings)

    def mutate(self, request: Obj, matched: Obj | None = None) -> Obj:
        """The answer to a mutating review: a patch, or the types that are wrong. `matched` is the object as it is by
        then, where that is known."""
        obj, cluster = request["object"], self._knowledge.cluster()
        wanted = obj if matched is None else matched
        if request["operation"] == "UPDATE":
            return _patched(obj, complete_update(wanted, request["oldObject"], cluster, _requester(request)))
        completed, findings = complete(wanted, cluster, _requester(request))
        return _patched(obj, completed) if findings.allowed else _refused(request, findings)

    def validate(self, request: Obj) -> Obj:
        """The answer to a validating review."""
        findings = self._findings(request)
        answer = {"allowed": True} if findings.allowed else _refused(request, findings)
        return {**answer, "warnings": findings.warnings} if findings.warnings else answer

    def _findings(self, request: Obj) -> Findings:
        user = _requester(request)
        # The first KubeVirt object comes before there is one to know, and a changed one is judged by itself.
        kubevirt = request["kind"]["kind"] == KUBEVIRTS.kind
        if request["operation"] == "DELETE":
            return self._deletion(request["oldObject"])
        obj: Obj = request["object"]
        cluster = Installation(obj) if kubevirt else self._knowledge.cluster()
        if request["operation"] == "CREATE":
            findings = review(obj, cluster, user)
            if findings.allowed and obj["kind"] == VMI_MIGRATIONS.kind:
                self._check_target(obj, request["namespace"], findings)
            # A second installation would contend for the nodes with the first; the same name is the API server's case.
            if kubevirt and (others := [key for key in self._knowledge.installed() if key != key_of(obj)]):
                findings.forbidden("", f"Kubevirt is already created: {', '.join(others)}; change that one")
            return findings
        findings = review_update(obj, request["oldObject"], cluster, user)
        if kubevirt:
            check_removal(obj, request["oldObject"], self._knowledge.vmis(), findings)
        return findings

    def _check_target(self, migration: Obj, namespace: str, findings: Findings) -> None:
        name = migration["spec"]["vmiName"]
        vmi, others = self._knowledge.vmi(namespace, name), self._knowledge.migrations_of(namespace, name)
        check_migration_target(migration, vmi, others, self._knowledge.cluster(), findings)

    def _deletion(self, kubevirt: Obj) -> Findings:
        """Uninstalling while VMs run takes the strategy that says so."""
        findings = Findings()
        if not Installation(kubevirt).uninstalled_with_vms and (left := _names(self._knowledge.vmis())):
            findings.forbidden(
                "spec.uninstallStrategy",
                f"there are still Virtual Machine Instances present: {left}; delete them first, or set"
                " uninstallStrategy to RemoveWorkloads",
            )
        return findings

    def _answerer(self, decide: Decide) -> Callable[[web.Request], Any]:
        async def answer(request: web.Request) -> web.Response:
            if not hmac.compare_digest(request.match_info["key"].encode(), self._key.read()):
                return web.Response(status=404, text="there is nothing here")
            async with self._bodies:
                try:
                    response = await _decided(await request.read(), decide)
                except Malformed as why:
                    return web.Response(status=400, text=str(why))
            body = {"apiVersion": _VERSION, "kind": "AdmissionReview", "response": response}
            return web.Response(body=orjson.dumps(body), content_type="application/json")

        return answer


async def _decided(body: bytes, decide: Decide) -> Obj:
    """The response to a review."""
    try:
        asked = reviews.read(body)
    except TooLarge as why:
        status = {"code": 413, "reason": "RequestEntityTooLarge", "message": str(why)}
        return {"uid": why.uid, "allowed": False, "status": status}
    try:
        decided = decide(asked)
        return {"uid": asked["uid"], **(decided if isinstance(decided, dict) else await decided)}
    except NotYet as why:
        status = {"code": 503, "reason": "ServiceUnavailable", "message": str(why)}
        return {"uid": asked["uid"], "allowed": False, "status": status}


def _requester(request: Obj) -> Requester:
    user = request.get("userInfo") or {}
    return Requester(user.get("username") or "", user.get("extra") or {})


def _patched(obj: Obj, completed: Obj) -> Obj:
    """A JSON patch at the object's top level: small to make, and what changed below is taken as a whole."""
    patch = [
        {"op": "add", "path": f"/{field}", "value": value}
        for field, value in completed.items()
        if obj.get(field) != value
    ]
    patch += [{"op": "remove", "path": f"/{field}"} for field in obj if field not in completed]
    if not patch:
        return {"allowed": True}
    return {"allowed": True, "patchType": "JSONPatch", "patch": base64.b64encode(orjson.dumps(patch)).decode()}


def _refused(request: Obj, findings: Findings) -> Obj:
    causes = [{"reason": c.reason, "message": c.message, "field": c.field} for c in findings.causes]
    message = ", ".join(c.message if c.field in c.message else f"{c.field}: {c.message}" for c in findings.causes)
    status = {"code": 422, "reason": "Invalid", "message": message, "details": {"causes": causes}}
    return {"allowed": False, "status": status}


def _names(vmis: Iterable[Obj], most: int = 10) -> str:
    names = sorted(f"{v['metadata']['namespace']}/{v['metadata']['name']}" for v in vmis)
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")
