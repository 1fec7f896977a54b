"""How workloads get hold of their objects: adopt what matches and nobody owns, release what does not match any more."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable
from typing import Any, TypeVar

from virtfleet.api.selectors import from_label_selector
from virtfleet.kube.api import KubeApi
from virtfleet.kube.cache import Cache
from virtfleet.kube.resource import Obj, Resource
from virtfleet.local.controllers import ownership
from virtfleet.local.controllers.pods import Pod
from virtfleet.local.controllers.podstore import PodStore
from virtfleet.local.controllers.presence import find

T = TypeVar("T")


async def claim_pods(api: KubeApi, pods: PodStore, owner: Obj, resource: Resource) -> list[Pod]:
    """The owner's pods, after adopting and releasing."""
    meta = owner["metadata"]
    selector = from_label_selector(owner["spec"]["selector"])
    owned = pods.owned_by(meta["uid"])
    foreign = {t for t in {p.template for p in owned} if not selector.matches(t.labels)}
    for pod in owned:
        if pod.template in foreign and pod.deleting is None:
            await pods.patch(pod, ownership.release(meta["uid"]))
    orphans = [p for p in pods.unowned_in(meta["namespace"]) if p.active and selector.matches(p.labels)]
    if orphans and await may_adopt(api, owner, resource):
        for pod in orphans:
            await pods.patch(pod, ownership.adoption(owner, resource))
    return pods.owned_by(meta["uid"])


async def may_adopt(api: KubeApi, owner: Obj, resource: Resource) -> bool:
    """Whether the owner is really there to stay: one that is deleted with orphans must not take them back."""
    meta = owner["metadata"]
    if meta.get("deletionTimestamp"):
        return False
    live = await find(api, resource, meta["name"], meta["namespace"])
    return bool(live and live["metadata"]["uid"] == meta["uid"] and not live["metadata"].get("deletionTimestamp"))


def adopters(cache: Cache[Obj], pod: Pod) -> Iterable[str]:
    """For `Controller.follow`: the keys of workloads that would adopt a pod which nobody owns."""
    if pod.owner_uid:
        return
    for owner in cache.by_index("namespace", pod.namespace):
        if from_label_selector(owner["spec"]["selector"]).matches(pod.labels):
            yield f"{pod.namespace}/{owner['metadata']['name']}"


async def all_of(actions: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """Do all at the same time. The first failure is raised when all are done: nothing goes on behind our back."""
    results = await asyncio.gather(*actions, return_exceptions=True)
    done: list[T] = []
    for result in results:
        if isinstance(result, BaseException):
            raise result
        done.append(result)
    return done
