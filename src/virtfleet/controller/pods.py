"""The launcher Pods of VMIs: found, made and deleted so that nobody can be wrong about them for long.

A cache is always a little behind. That something is there may be read from it; that something is *not* there is
believed only when the API server says so.
"""

from __future__ import annotations

import orjson

from virtfleet.api import names
from virtfleet.api.conditions import Condition
from virtfleet.controller.launcherpod import LauncherPod, decode_pod
from virtfleet.controller.records.instance import Instance
from virtfleet.controller.records.kept import Kept, owner_uids
from virtfleet.kube.api import KubeApi, Patch
from virtfleet.kube.cache import Cache
from virtfleet.kube.errors import ignoring, is_already_exists, is_conflict, is_not_found
from virtfleet.kube.resource import PODS, VMIS, Obj
from virtfleet.pods.launcher import COMPUTE

LAUNCHERS = f"{names.APP_LABEL}={names.LAUNCHER_APP}"


class ForeignPod(Exception):
    """Something else has the Pod's name."""


def launcher_cache(api: KubeApi) -> Cache[LauncherPod]:
    return Cache(
        api, PODS, labels=LAUNCHERS, decode=decode_pod, indexes={"owner": owner_uids, "migration": migration_keys}
    )


def owners(owned: Kept) -> list[str]:
    """For `Controller.follow`: the key of the VMI that a Pod or a budget belongs to."""
    owner = owned.controller
    return [f"{owned.namespace}/{owner.name}"] if owner and owner.kind == VMIS.kind else []


def migration_keys(pod: LauncherPod) -> list[str]:
    """The key of the migration that a Pod was made for."""
    name = pod.metadata.annotations.migration
    return [f"{pod.namespace}/{name}"] if pod.for_migration and name else []


class LauncherPods:
    """Reads and writes through one cache, so that every write is seen by the next read."""

    def __init__(self, api: KubeApi) -> None:
        self.cache = launcher_cache(api)

    def of(self, vmi_uid: str) -> list[LauncherPod]:
        """The VMI's Pods, as far as the cache knows."""
        return self.cache.by_index("owner", vmi_uid)

    async def listed(self, vmi: Instance) -> list[LauncherPod]:
        """The VMI's Pods by the API server's own word."""
        pods = await self.cache.listed(vmi.namespace, f"{LAUNCHERS},{names.CREATED_BY}={vmi.uid}")
        return [pod for pod in pods if pod.controlled_by(vmi.uid)]

    async def create(self, vmi: Instance, pod: Obj) -> tuple[LauncherPod, bool]:
        """The VMI's Pod, and whether it was made just now. Raises ForeignPod where its name is taken."""
        with ignoring(is_already_exists):
            return await self.cache.create(pod), True
        there = await self.cache.fetch(f"{vmi.namespace}/{pod['metadata']['name']}")
        if not there.controlled_by(vmi.uid):
            raise ForeignPod(f"Pod {there.name} exists and is not the VMI's; delete it")
        return there, False

    async def delete(self, pod: LauncherPod) -> LauncherPod | None:
        """Ask for the Pod's end. The answer is the Pod as it is now, None if it is gone."""
        if pod.deleting:
            return pod
        answer = await self.cache.remove(pod.key, pod.uid) or {}
        return decode_pod(orjson.dumps(answer)) if "deletionTimestamp" in answer.get("metadata", {}) else None

    async def put_condition(self, pod: LauncherPod, condition: Condition) -> None:
        """Have a condition of the Pod that is nobody else's."""
        patch = {"metadata": {"uid": pod.uid}, "status": {"conditions": [condition]}}
        with ignoring(is_not_found, is_conflict):
            await self.cache.change(pod.key, patch, how=Patch.STRATEGIC, subresource="status")

    async def resize(self, pod: LauncherPod, resources: Obj) -> None:
        """Ask for other resources of a launcher that runs."""
        patch = {"metadata": {"uid": pod.uid}, "spec": {"containers": [{"name": COMPUTE, "resources": resources}]}}
        await self.cache.change(pod.key, patch, how=Patch.STRATEGIC, subresource="resize")

    async def annotate(self, pod: LauncherPod, annotations: dict[str, str | None]) -> None:
        """Have annotations on a Pod that is there, or have it without those that are None."""
        patch = {"metadata": {"uid": pod.uid, "annotations": annotations}}
        with ignoring(is_not_found, is_conflict):
            await self.cache.change(pod.key, patch)
