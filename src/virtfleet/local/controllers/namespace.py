"""Deletion of namespaces: everything in them goes first, and the namespace says what it still waits for."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping

from virtfleet.api import conditions
from virtfleet.api.conditions import Condition
from virtfleet.kube.controller import Controller
from virtfleet.kube.errors import ApiError, is_not_found
from virtfleet.kube.resource import NAMESPACES, Resource
from virtfleet.local.controllers.caches import Caches

FINALIZER = "kubernetes"
LOOK_AGAIN = 0.5  # seconds; pods need their grace period, finalizers their controllers


def report(
    listed: list[Condition] | None,
    remaining: Mapping[Resource, int],
    finalizers: Mapping[str, int],
    failures: list[str],
    now: float,
) -> list[Condition]:
    """The conditions of a namespace on its way out: what keeps it."""
    contents = [f"{r.plural}.{r.group} has {n} resource instances" for r, n in remaining.items()]
    holders = [f"{name} in {n} resource instances" for name, n in finalizers.items()]
    words = "Some content in the namespace has finalizers remaining"
    failed = f"Failed to delete all resource types, {len(failures)} remaining"
    troubles = [
        ("NamespaceContentRemaining", "SomeResourcesRemain", "Some resources are remaining", contents),
        ("NamespaceFinalizersRemaining", "SomeFinalizersRemain", words, holders),
        ("NamespaceDeletionContentFailure", "ContentDeletionFailed", failed, failures),
    ]
    result = listed or []
    for kind, reason, what, which in troubles:
        message = f"{what}: {', '.join(sorted(which))}"
        put = conditions.put(result, kind, "True", now, reason=reason, message=message)
        result = put if which else conditions.drop(result, kind)
    return result


class Namespaces:
    """The controller. `kinds` are all kinds that are served now, those of custom resources included."""

    def __init__(self, caches: Caches, kinds: Callable[[], Iterable[Resource]]) -> None:
        self._api, self._namespaces, self._kinds = caches.api, caches.namespaces, kinds
        self.controller = Controller("namespace", self.reconcile, workers=4)
        self.controller.follow(self._namespaces)

    async def reconcile(self, name: str) -> float | None:
        """Empty the namespace; when nothing is left, let it go."""
        namespace = self._namespaces.get(name)
        if namespace is None or not namespace["metadata"].get("deletionTimestamp"):
            return None
        if FINALIZER not in (namespace["spec"].get("finalizers") or ()):
            return None
        remaining, finalizers, failures = await self._empty(name)
        if remaining or failures:
            listed = (namespace.get("status") or {}).get("conditions")
            listed = report(listed, remaining, finalizers, failures, time.time())
            await self._namespaces.write_status(namespace, {"conditions": listed})
            return LOOK_AGAIN
        live = await self._api.get(NAMESPACES, name)
        kept = [f for f in live["spec"].get("finalizers") or () if f != FINALIZER]
        spec = {**live["spec"], "finalizers": kept}
        await self._api.replace(NAMESPACES, {**live, "spec": spec}, subresource="finalize")
        return None

    async def _empty(self, name: str) -> tuple[Counter[Resource], Counter[str], list[str]]:
        """Delete what is there; the answer is what still is."""
        remaining, finalizers, failures = Counter[Resource](), Counter[str](), list[str]()
        for resource in (res for res in one_version_each(self._kinds()) if res.namespaced):
            try:
                if await self._api.list(resource, name):
                    await self._api.delete_collection(resource, name)
                    left = await self._api.list(resource, name)
                    remaining[resource] += len(left)
                    finalizers.update(f for obj in left for f in obj["metadata"].get("finalizers") or ())
            except ApiError as error:
                if not is_not_found(error):  # the kind itself went meanwhile
                    failures.append(error.message)
        return +remaining, finalizers, failures


def one_version_each(kinds: Iterable[Resource]) -> list[Resource]:
    """Of kinds that are served in several versions, one; they are the same objects."""
    return list({(r.group, r.plural): r for r in kinds}.values())
