"""The one cache of pods that all controllers read, with writes that the very next read sees.

A controller that acts on a cache which does not show its last write yet would create the same pod twice. Kubernetes
keeps per-owner "expectations" against that; here every answer to a write goes into the cache at once (`observe`): a
created pod is there, a deleted one is terminating. So there is nothing to wait for, nothing that can wait forever, and
after a restart the first list is complete by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from virtfleet.kube.api import KubeApi, Patch
from virtfleet.kube.cache import Cache
from virtfleet.kube.errors import is_conflict, is_not_found
from virtfleet.kube.resource import PODS, Obj
from virtfleet.local.controllers import pods
from virtfleet.local.controllers.pods import Pod


def _owner(pod: Pod) -> Iterable[str]:
    return (pod.owner_uid,) if pod.owner_uid else ()


def _unowned(pod: Pod) -> Iterable[str]:
    return () if pod.owner_uid else (pod.namespace,)


def _claims(pod: Pod) -> Iterable[str]:
    return (f"{pod.namespace}/{claim}" for claim in pod.template.claims)


class PodStore:
    """Reads are of the cache; writes go to the API server and into the cache."""

    def __init__(self, api: KubeApi) -> None:
        self._api = api
        self.cache: Cache[Pod] = Cache(
            api,
            PODS,
            decode=pods.decode,
            indexes={
                "namespace": lambda pod: (pod.namespace,),
                "owner": _owner,
                "unowned": _unowned,
                "node": lambda pod: (pod.node,) if pod.node else (),
                "claim": _claims,
            },
        )

    def get(self, key: str) -> Pod | None:
        return self.cache.get(key)

    def owned_by(self, uid: str) -> list[Pod]:
        return self.cache.by_index("owner", uid)

    def unowned_in(self, namespace: str) -> list[Pod]:
        return self.cache.by_index("unowned", namespace)

    def in_namespace(self, namespace: str) -> list[Pod]:
        return self.cache.by_index("namespace", namespace)

    def on_node(self, node: str) -> list[Pod]:
        return self.cache.by_index("node", node)

    def using_claim(self, key: str) -> list[Pod]:
        return self.cache.by_index("claim", key)

    async def create(self, obj: Obj, namespace: str) -> str:
        """Create a pod; the answer is the name it got."""
        answer = await self._api.create(PODS, obj, namespace)
        self.cache.observe(answer)
        return str(answer["metadata"]["name"])

    async def patch(
        self, pod: Pod, patch: Obj, *, how: Patch = Patch.STRATEGIC, subresource: str | None = None
    ) -> None:
        """Patch this very pod: a later one of the same name is left alone."""
        patch = {**patch, "metadata": {**patch.get("metadata", {}), "uid": pod.uid}}
        try:
            answer = await self._api.patch(PODS, pod.name, patch, pod.namespace, how=how, subresource=subresource)
        except Exception as error:
            if is_not_found(error) or is_conflict(error):  # gone; or another pod has its name
                return
            raise
        self.cache.observe(answer)

    async def delete(self, pod: Pod, *, grace: int | None = None) -> None:
        """Delete this very pod. One that is gone already is as good."""
        try:
            answer = await self._api.delete(PODS, pod.name, pod.namespace, grace=grace, uid=pod.uid)
        except Exception as error:
            if is_not_found(error) or is_conflict(error):
                return
            raise
        self.cache.observe(answer)


def owners_of(kind: str) -> Callable[[Pod], Iterable[str]]:
    """For `Controller.follow`: the key of the pod's owner, where that is of this kind."""

    def keys(pod: Pod) -> Iterable[str]:
        return (f"{pod.namespace}/{pod.owner_name}",) if pod.owner_kind == kind else ()

    return keys
