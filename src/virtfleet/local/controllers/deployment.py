"""Deployments: roll pods from one template to the next by resizing replica sets.

Each reconcile takes one step (`rollout` says which) and looks again when the replica sets have followed. The replica
set of a template is named after the template's hash, so that a step that was half done when the process died is found
and not done twice.
"""

from __future__ import annotations

import time
from collections.abc import Iterable

from virtfleet.api.selectors import from_label_selector
from virtfleet.kube.api import KubeApi, Patch
from virtfleet.kube.cache import Cache
from virtfleet.kube.controller import Controller
from virtfleet.kube.errors import ApiError, is_already_exists
from virtfleet.kube.events import Recorder
from virtfleet.kube.resource import DEPLOYMENTS, REPLICA_SETS, Obj
from virtfleet.local.controllers import conditions, ownership, rollout
from virtfleet.local.controllers import deployment_status as words
from virtfleet.local.controllers.claiming import may_adopt
from virtfleet.local.controllers.conditions import Condition
from virtfleet.local.controllers.deployment_sets import (
    REVISION,
    annotations_for,
    bounds_of,
    by_age,
    is_rolling,
    next_revision,
    numbers,
    revision,
    same_template,
    set_for,
    sized_for,
)
from virtfleet.local.controllers.pods import Pod
from virtfleet.local.controllers.podstore import PodStore
from virtfleet.local.controllers.presence import remove
from virtfleet.local.controllers.rollout import Bounds


class Deployments:
    """The controller."""

    def __init__(
        self, api: KubeApi, deployments: Cache[Obj], sets: Cache[Obj], pods: PodStore, recorder: Recorder
    ) -> None:
        self._api = api
        self._deployments = deployments
        self._sets = sets
        self._pods = pods
        self._recorder = recorder
        self._controller = Controller("deployment", self.reconcile, [pods.cache], workers=5)
        self._controller.follow(deployments)
        self._controller.follow(sets, self._deployments_of)
        pods.cache.on_change(self._pod_changed)

    async def run(self) -> None:
        await self._controller.run()

    def _deployments_of(self, replica_set: Obj) -> Iterable[str]:
        namespace = replica_set["metadata"]["namespace"]
        ref = ownership.controller_of(replica_set)
        if ref:
            return [f"{namespace}/{ref['name']}"] if ref["kind"] == "Deployment" else []
        labels = replica_set["metadata"].get("labels")
        return [
            f"{namespace}/{d['metadata']['name']}"
            for d in self._deployments.by_index("namespace", namespace)
            if from_label_selector(d["spec"]["selector"]).matches(labels)
        ]

    def _pod_changed(self, _key: str, old: Pod | None, new: Pod | None) -> None:
        """Recreate waits for the end of old pods, which their replica set counts no more once they are terminating."""
        if old and new is None and old.owner_kind == "ReplicaSet":
            replica_set = self._sets.get(f"{old.namespace}/{old.owner_name}")
            for key in self._deployments_of(replica_set) if replica_set else ():
                self._controller.queue.add(key)

    async def reconcile(self, key: str) -> float | None:
        """Find the replica sets, take one step, say how it stands."""
        deployment = self._deployments.get(key)
        if deployment is None:
            return None
        sets = await self._claim(deployment)
        new = next(
            (s for s in by_age(sets) if same_template(s["spec"]["template"], deployment["spec"]["template"])), None
        )
        old = [s for s in sets if s is not new]
        if deployment["metadata"].get("deletionTimestamp"):
            return await self._report(deployment, new, old, rolling_out=False)
        deployment = await self._note_pause(deployment)
        if new:
            new = await self._keep_revision(deployment, new, old)
        bounds = bounds_of(deployment)
        resized = rollout.is_scaling(bounds.replicas, [numbers(s) for s in sets])
        if deployment["spec"].get("paused") or resized:
            if sets:
                was = (deployment.get("status") or {}).get("replicas", 0)
                sizes = rollout.resized(
                    bounds,
                    numbers(new) if new else None,
                    [numbers(s) for s in old],
                    was=was,
                    rolling=is_rolling(deployment),
                )
                new, old = await self._resize(deployment, bounds, new, old, sizes, mark=True)
            return await self._report(deployment, new, old, rolling_out=False)
        if is_rolling(deployment):
            deployment, new, old = await self._roll(deployment, bounds, new, old)
        else:
            deployment, new, old = await self._recreate(deployment, bounds, new, old)
        await self._prune(deployment, old)
        return await self._report(deployment, new, old, rolling_out=True)

    # -- steps

    async def _claim(self, deployment: Obj) -> list[Obj]:
        """The deployment's replica sets, after adopting what matches and releasing what does not."""
        meta = deployment["metadata"]
        selector = from_label_selector(deployment["spec"]["selector"])
        owned = []
        for found in self._sets.by_index("namespace", meta["namespace"]):
            matches = selector.matches(found["metadata"].get("labels"))
            if ownership.is_controlled_by(found, meta["uid"]):
                if matches or found["metadata"].get("deletionTimestamp"):
                    owned.append(found)
                else:
                    await self._patch_set(found, ownership.release(meta["uid"]))
            elif (
                matches
                and not ownership.controller_of(found)
                and not found["metadata"].get("deletionTimestamp")
                and await may_adopt(self._api, deployment, DEPLOYMENTS)
            ):
                owned.append(await self._patch_set(found, ownership.adoption(deployment, DEPLOYMENTS)))
        return owned

    async def _note_pause(self, deployment: Obj) -> Obj:
        """A pause stops the clock of the progress deadline."""
        if not words.has_deadline(deployment):
            return deployment
        listed = (deployment.get("status") or {}).get("conditions") or []
        reason = (conditions.find(listed, "Progressing") or {}).get("reason")
        paused = bool(deployment["spec"].get("paused"))
        if reason == words.TIMED_OUT or paused == (reason == words.PAUSED):
            return deployment
        word = words.PAUSED if paused else words.RESUMED
        message = f"Deployment is {'paused' if paused else 'resumed'}"
        return await self._write_conditions(
            deployment, words.progressing(listed, "Unknown", word, message, time.time())
        )

    async def _keep_revision(self, deployment: Obj, new: Obj, old: list[Obj]) -> Obj:
        """The new set is the newest in the history, and the deployment says which one that is."""
        wanted = annotations_for(deployment, new, next_revision(old))
        min_ready = deployment["spec"].get("minReadySeconds", 0)
        if wanted != (new["metadata"].get("annotations") or {}) or new["spec"].get("minReadySeconds", 0) != min_ready:
            new = await self._patch_set(
                new, {"metadata": {"annotations": wanted}, "spec": {"minReadySeconds": min_ready}}
            )
        if revision(deployment) != revision(new):
            meta = deployment["metadata"]
            patch = {"metadata": {"annotations": {REVISION: str(revision(new))}}}
            self._deployments.observe(await self._api.patch(DEPLOYMENTS, meta["name"], patch, meta["namespace"]))
        return new

    async def _roll(
        self, deployment: Obj, bounds: Bounds, new: Obj | None, old: list[Obj]
    ) -> tuple[Obj, Obj | None, list[Obj]]:
        old_numbers = [numbers(s) for s in old]
        if new is None:
            size = rollout.grow(bounds, rollout.Set("", 0), old_numbers)
            deployment, new = await self._create_set(deployment, old, size)
            return deployment, new, old
        sizes = rollout.rolling(bounds, numbers(new), old_numbers)
        return deployment, *await self._resize(deployment, bounds, new, old, sizes)

    async def _recreate(
        self, deployment: Obj, bounds: Bounds, new: Obj | None, old: list[Obj]
    ) -> tuple[Obj, Obj | None, list[Obj]]:
        """No new pod before the last old one is gone."""
        sizes = {s["metadata"]["name"]: 0 for s in old if s["spec"].get("replicas", 1)}
        running = any(not pod.terminal for s in old for pod in self._pods.owned_by(s["metadata"]["uid"]))
        if sizes or running:
            return deployment, *await self._resize(deployment, bounds, new, old, sizes)
        if new is None:
            deployment, new = await self._create_set(deployment, old, bounds.replicas)
            return deployment, new, old
        sizes = {new["metadata"]["name"]: bounds.replicas}
        return deployment, *await self._resize(deployment, bounds, new, old, sizes)

    async def _create_set(self, deployment: Obj, old: list[Obj], size: int) -> tuple[Obj, Obj | None]:
        """The replica set of the present template."""
        meta, status = deployment["metadata"], deployment.get("status") or {}
        replica_set = set_for(deployment, old, size)
        set_name = replica_set["metadata"]["name"]
        about = ownership.about(deployment, DEPLOYMENTS)
        try:
            created = await self._api.create(REPLICA_SETS, replica_set, meta["namespace"])
        except ApiError as error:
            if is_already_exists(error):
                return await self._existing(deployment, set_name), None
            message = f'Failed to create new replica set "{set_name}": {error.message}'
            self._recorder.warning(about, words.CREATE_FAILED, message)
            if words.has_deadline(deployment):
                listed = status.get("conditions") or []
                failed = words.progressing(listed, "False", words.CREATE_FAILED, message, time.time())
                await self._write_conditions(deployment, failed)
            raise
        self._sets.observe(created)
        if size:
            self._recorder.normal(about, "ScalingReplicaSet", f"Scaled up replica set {set_name} from 0 to {size}")
        if words.has_deadline(deployment):
            message = f'Created new replica set "{set_name}"'
            listed = words.progressing(status.get("conditions") or [], "True", words.NEW_CREATED, message, time.time())
            deployment = await self._write_conditions(deployment, listed)
        return deployment, created

    async def _existing(self, deployment: Obj, name: str) -> Obj:
        """A set of that name is there: ours, which the cache is about to show, or two templates share a hash."""
        meta = deployment["metadata"]
        there = await self._api.get(REPLICA_SETS, name, meta["namespace"])
        template = deployment["spec"]["template"]
        if ownership.is_controlled_by(there, meta["uid"]) and same_template(there["spec"]["template"], template):
            self._sets.observe(there)
            return deployment
        count = ((deployment.get("status") or {}).get("collisionCount") or 0) + 1
        return await self._patch_status(deployment, {"collisionCount": count})

    async def _resize(
        self,
        deployment: Obj,
        bounds: Bounds,
        new: Obj | None,
        old: list[Obj],
        sizes: rollout.Sizes,
        *,
        mark: bool = False,
    ) -> tuple[Obj | None, list[Obj]]:
        """Give replica sets their sizes. `mark` also notes what they were sized for where the size stays."""
        resized = []
        for replica_set in [*old, *([new] if new else [])]:
            name, has = replica_set["metadata"]["name"], replica_set["spec"].get("replicas", 1)
            size = sizes.get(name, has)
            notes = replica_set["metadata"].get("annotations") or {}
            marked = sized_for(bounds).items() <= notes.items()
            if size != has or (mark and has and not marked):
                patch = {
                    "metadata": {
                        "annotations": sized_for(bounds),
                        "resourceVersion": replica_set["metadata"]["resourceVersion"],
                    },
                    "spec": {"replicas": size},
                }
                replica_set = await self._patch_set(replica_set, patch)
            if size != has:
                how = "up" if size > has else "down"
                message = f"Scaled {how} replica set {name} from {has} to {size}"
                self._recorder.normal(ownership.about(deployment, DEPLOYMENTS), "ScalingReplicaSet", message)
            resized.append(replica_set)
        return (resized[-1], resized[:-1]) if new else (None, resized)

    async def _prune(self, deployment: Obj, old: list[Obj]) -> None:
        """Forget the oldest templates beyond the history's limit, once nothing of them is left."""
        if not words.is_complete(deployment, deployment.get("status") or {}):
            return
        limit = deployment["spec"].get("revisionHistoryLimit", 10)
        excess = max(len(old) - limit, 0)
        for replica_set in sorted(old, key=revision)[:excess]:
            meta, status = replica_set["metadata"], replica_set.get("status") or {}
            observed = status.get("observedGeneration", 0) >= meta.get("generation", 0)
            if replica_set["spec"].get("replicas", 1) or status.get("replicas") or not observed:
                continue
            await remove(self._api, REPLICA_SETS, replica_set)

    async def _report(self, deployment: Obj, new: Obj | None, old: list[Obj], *, rolling_out: bool) -> float | None:
        """Write the status; the answer is when to look whether the rollout is stuck."""
        now = time.time()
        listed = (deployment.get("status") or {}).get("conditions") or []
        status = words.status_of(deployment, bounds_of(deployment), new, old, listed, rollout=rolling_out, now=now)
        if status != deployment.get("status"):
            await self._patch_status(deployment, status)
        current = conditions.find(status["conditions"], "Progressing")
        stuck = (
            words.has_deadline(deployment)
            and current
            and current["reason"]
            not in (
                words.NEW_AVAILABLE,
                words.TIMED_OUT,
                words.PAUSED,
            )
        )
        return max(words.remaining(deployment, current, now), 0) + 1 if stuck and current else None

    # -- writes

    async def _patch_set(self, replica_set: Obj, patch: Obj) -> Obj:
        meta = replica_set["metadata"]
        answer = await self._api.patch(REPLICA_SETS, meta["name"], patch, meta["namespace"], how=Patch.STRATEGIC)
        self._sets.observe(answer)
        return answer

    async def _write_conditions(self, deployment: Obj, listed: list[Condition]) -> Obj:
        return await self._patch_status(deployment, {"conditions": listed})

    async def _patch_status(self, deployment: Obj, status: Obj) -> Obj:
        meta = deployment["metadata"]
        answer = await self._api.patch(
            DEPLOYMENTS, meta["name"], {"status": status}, meta["namespace"], subresource="status"
        )
        self._deployments.observe(answer)
        return answer
