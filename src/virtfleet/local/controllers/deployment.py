"""Deployments: roll pods from one template to the next by resizing replica sets.

Each reconcile takes one step (`rollout` says which) and looks again when the replica sets have followed. The replica
set of a template is named after the template's hash, so that a step that was half done when the process died is found
and not done twice.
"""

from __future__ import annotations

import time
from collections.abc import Iterable

from virtfleet.kube.cache import key_of
from virtfleet.kube.controller import Controller
from virtfleet.kube.errors import ApiError, is_already_exists
from virtfleet.kube.resource import DEPLOYMENTS, Obj
from virtfleet.local.controllers import rollout
from virtfleet.local.controllers.caches import Caches
from virtfleet.local.controllers.collection import about, controller_of, is_controlled_by
from virtfleet.local.controllers.deployment_sets import (
    REVISION,
    annotations_for,
    bounds_of,
    by_age,
    is_complete,
    is_rolling,
    numbers,
    revision,
    same_template,
    set_for,
    status_of,
)
from virtfleet.local.controllers.pods import Pod
from virtfleet.local.controllers.rollout import Set, Sizes

NEW = ""  # the replica set of the present template, while it does not exist


class Deployments:
    """The controller."""

    def __init__(self, caches: Caches) -> None:
        self._deployments, self._sets, self._pods = caches.deployments, caches.replica_sets, caches.pods
        self._recorder = caches.recorder("deployment-controller")
        self.controller = Controller("deployment", self.reconcile, [caches.pods], workers=5)
        self.controller.follow(self._deployments)
        self.controller.follow(self._sets, _deployment_of)
        self._pods.on_change(self._pod_changed)

    def _pod_changed(self, _key: str, old: Pod | None, new: Pod | None) -> None:
        """Recreate waits for the end of old pods, which their replica set counts no more once they are terminating."""
        if old and new is None and old.owner_kind == "ReplicaSet":
            replica_set = self._sets.get(f"{old.namespace}/{old.owner_name}")
            for key in _deployment_of(replica_set) if replica_set else ():
                self.controller.queue.add(key)

    async def reconcile(self, key: str) -> None:
        """Find the replica sets, take one step, say how it stands."""
        deployment = self._deployments.get(key)
        if deployment is None or deployment["metadata"].get("deletionTimestamp"):
            return
        sets, template = self._sets.by_index("owner", deployment["metadata"]["uid"]), deployment["spec"]["template"]
        new = next((s for s in by_age(sets) if same_template(s["spec"]["template"], template)), None)
        old = [s for s in sets if s is not new]
        if new:
            new = await self._keep_revision(deployment, new, old)
        sizes = self._sizes(deployment, new, old)
        if NEW in sizes:
            deployment, new = await self._create_set(deployment, old, sizes[NEW])
        old = [await self._resize(deployment, s, sizes) for s in old]
        new = await self._resize(deployment, new, sizes) if new else None
        if not deployment["spec"].get("paused"):
            await self._prune(deployment, old)
        await self._deployments.write_status(deployment, status_of(deployment, new, old, time.time()))

    def _sizes(self, deployment: Obj, new: Obj | None, old: list[Obj]) -> Sizes:
        """The replica sets that get another size now, a new one among them."""
        bounds, others = bounds_of(deployment), [numbers(s) for s in old]
        if deployment["spec"].get("paused"):
            return rollout.paused(bounds, [*([numbers(new)] if new else []), *others])
        if is_rolling(deployment):
            return (
                rollout.rolling(bounds, numbers(new), others)
                if new
                else {NEW: rollout.grow(bounds, Set(NEW, 0), others)}
            )
        # Recreate: no new pod before the last old one is gone.
        ending = {s.name: 0 for s in others if s.replicas}
        running = any(not p.terminal for s in old for p in self._pods.by_index("owner", s["metadata"]["uid"]))
        return ending if ending or running else {new["metadata"]["name"] if new else NEW: bounds.replicas}

    async def _keep_revision(self, deployment: Obj, new: Obj, old: list[Obj]) -> Obj:
        """The new set is the newest in the history, and the deployment says which one that is."""
        wanted = annotations_for(deployment, new, old)
        min_ready = deployment["spec"].get("minReadySeconds", 0)
        if wanted != (new["metadata"].get("annotations") or {}) or new["spec"].get("minReadySeconds", 0) != min_ready:
            patch = {"metadata": {"annotations": wanted}, "spec": {"minReadySeconds": min_ready}}
            new = await self._sets.patch(key_of(new), patch) or new
        if revision(deployment) != revision(new):
            patch = {"metadata": {"annotations": {REVISION: str(revision(new))}}}
            await self._deployments.patch(key_of(deployment), patch)
        return new

    async def _create_set(self, deployment: Obj, old: list[Obj], size: int) -> tuple[Obj, Obj | None]:
        """The replica set of the present template; None where its name is taken, and the next try has another one."""
        replica_set = set_for(deployment, old, size)
        name = replica_set["metadata"]["name"]
        try:
            created = await self._sets.create(replica_set, deployment["metadata"]["namespace"])
        except ApiError as error:
            if is_already_exists(error):
                return await self._existing(deployment, key_of(replica_set)), None
            message = f'Failed to create new replica set "{name}": {error.message}'
            self._recorder.warning(about(deployment, DEPLOYMENTS), "ReplicaSetCreateError", message)
            raise
        if size:
            message = f"Scaled up replica set {name} from 0 to {size}"
            self._recorder.normal(about(deployment, DEPLOYMENTS), "ScalingReplicaSet", message)
        return deployment, created

    async def _existing(self, deployment: Obj, key: str) -> Obj:
        """A set of that name is there: ours, which the cache is about to show, or somebody else's."""
        there = await self._sets.find(key)
        if there is None:
            raise ApiError("Conflict", f"replica set {key} has gone just now")
        ours = is_controlled_by(there, deployment["metadata"]["uid"])
        if ours and same_template(there["spec"]["template"], deployment["spec"]["template"]):
            self._sets.observe(there)
            return deployment
        count = ((deployment.get("status") or {}).get("collisionCount") or 0) + 1
        return await self._deployments.write_status(deployment, {"collisionCount": count})

    async def _resize(self, deployment: Obj, replica_set: Obj, sizes: Sizes) -> Obj:
        name, has = replica_set["metadata"]["name"], replica_set["spec"].get("replicas", 1)
        size = sizes.get(name, has)
        if size == has:
            return replica_set
        patch = {
            "metadata": {"resourceVersion": replica_set["metadata"]["resourceVersion"]},
            "spec": {"replicas": size},
        }
        resized = await self._sets.patch(key_of(replica_set), patch) or replica_set
        message = f"Scaled {'up' if size > has else 'down'} replica set {name} from {has} to {size}"
        self._recorder.normal(about(deployment, DEPLOYMENTS), "ScalingReplicaSet", message)
        return resized

    async def _prune(self, deployment: Obj, old: list[Obj]) -> None:
        """Forget the oldest templates beyond the history's limit, once nothing of them is left."""
        if not is_complete(deployment, deployment.get("status") or {}):
            return
        limit = deployment["spec"].get("revisionHistoryLimit", 10)
        for replica_set in sorted(old, key=revision)[: max(len(old) - limit, 0)]:
            meta, status = replica_set["metadata"], replica_set.get("status") or {}
            observed = status.get("observedGeneration", 0) >= meta.get("generation", 0)
            if observed and not replica_set["spec"].get("replicas", 1) and not status.get("replicas"):
                await self._sets.remove(key_of(replica_set), meta["uid"])


def _deployment_of(replica_set: Obj) -> Iterable[str]:
    ref = controller_of(replica_set)
    ours = ref is not None and ref["kind"] == "Deployment"
    return [f"{replica_set['metadata']['namespace']}/{ref['name']}"] if ref and ours else []
