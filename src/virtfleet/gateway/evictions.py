"""The webhook for evictions of launchers' Pods, which `kubectl drain` asks for: a VM leaves its node by migration.

Whatever goes wrong here is answered as one eviction too many: a drain tries such a one again, and ends at any other
refusal. Where nobody answers, the API server goes on to the VM's disruption budget, which refuses in the same way.
"""

from __future__ import annotations

from dataclasses import dataclass

from virtfleet.admission import eviction
from virtfleet.gateway.knowledge import Knowledge, NotYet
from virtfleet.kube.api import KubeApi
from virtfleet.kube.errors import ApiError, ignoring, is_not_found
from virtfleet.kube.resource import PODS, VMIS, Obj, Resource


@dataclass
class Evictions:
    """Reads Pod and VMI from the API server each time: they are about to change."""

    _api: KubeApi
    _knowledge: Knowledge

    async def review(self, request: Obj) -> Obj:
        """The answer to a validating review of an eviction."""
        try:
            verdict = await self._verdict(request)
        except (ApiError, NotYet) as error:
            verdict = eviction.Verdict(False, f"virt-api cannot tell yet what becomes of the VM: {error}")
        if verdict.allowed:
            return {"allowed": True}
        return {"allowed": False, "status": {"code": 429, "reason": "TooManyRequests", "message": verdict.message}}

    async def _verdict(self, request: Obj) -> eviction.Verdict:
        namespace = request.get("namespace", "")
        pod = await self._get(PODS, request.get("name", ""), namespace) if namespace else None
        name, uid = eviction.owner(pod) if pod else ("", "")
        vmi = await self._get(VMIS, name, namespace) if name else None
        if pod is None or vmi is None or vmi["metadata"]["uid"] != uid:
            return eviction.Verdict(True)
        verdict = eviction.judge(pod, vmi, self._knowledge.cluster())
        if verdict.leaves:
            patch = eviction.marks(vmi, verdict, request["object"])
            await self._api.patch(VMIS, name, patch, namespace, dry_run=eviction.dry_run(request))
        return verdict

    async def _get(self, resource: Resource, name: str, namespace: str) -> Obj | None:
        with ignoring(is_not_found):
            return await self._api.get(resource, name, namespace)
        return None
