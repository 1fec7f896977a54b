"""Deployments: roll pods from one template to the next by resizing replica sets.

Each reconcile takes one step (`rolling` says which) and looks again when the replica sets have followed. The replica
set of a template is named after the template's hash, so that a step that was half done when the process died is found
and not done twice. `kubectl rollout` reads what is written on deployments and their sets.

How many replicas each replica set should have next follows from Kubernetes' rules: never more than replicas + maxSurge
pods, never fewer than replicas - maxUnavailable available ones, unhealthy old pods first.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from virtfleet.api import conditions
from virtfleet.kube.cache import key_of
from virtfleet.kube.controller import Controller
from virtfleet.kube.errors import ApiError
from virtfleet.kube.resource import DEPLOYMENTS, REPLICA_SETS, Obj
from virtfleet.local.controllers.caches import Caches, about, controller_of
from virtfleet.local.controllers.pods import Pod, owned, template_hash

HASH = "pod-template-hash"
REVISION = "deployment.kubernetes.io/revision"
NOT_COPIED = {REVISION, "kubectl.kubernetes.io/last-applied-configuration"}
DONE = "NewReplicaSetAvailable"
NEW = ""  # the replica set of the present template, while it does not exist
Amount = int | str | None  # a number, or a percentage such as "25%"
Sizes = dict[str, int]  # replica set -> its next size
_LONGEST = 242  # characters of a deployment's name that leave room for a hash in that of a replica set


def scaled(amount: Amount, total: int, *, up: bool) -> int:
    """The number that an amount means out of `total`."""
    if isinstance(amount, str) and amount.endswith("%"):
        percent = int(amount[:-1])
        return -(-percent * total // 100) if up else percent * total // 100
    return int(amount or 0)


@dataclass(frozen=True, slots=True)
class Bounds:
    """How far a rolling update may leave the wanted number of replicas."""

    replicas: int
    surge: int = 0
    unavailable: int = 0

    @classmethod
    def of(cls, replicas: int, max_surge: Amount, max_unavailable: Amount) -> Bounds:
        surge = scaled(max_surge, replicas, up=True)
        unavailable = scaled(max_unavailable, replicas, up=False)
        if surge == 0 and unavailable == 0:  # percentages that round to nothing must not block the rollout
            unavailable = 1
        return cls(replicas, surge, min(unavailable, replicas))

    @property
    def least(self) -> int:
        return self.replicas - self.unavailable


class Set(NamedTuple):
    """The numbers of one replica set."""

    name: str
    replicas: int  # as asked for
    available: int = 0


def rolling(bounds: Bounds, new: Set, old: list[Set]) -> Sizes:
    """The next step of a rolling update: grow the new set if there is room, else shrink the old ones."""
    grown = grow(bounds, new, old)
    return {new.name: grown} if grown != new.replicas else shrink(bounds, new, old)


def grow(bounds: Bounds, new: Set, old: list[Set]) -> int:
    """The new set's size as far as the surge allows."""
    room = bounds.surge + bounds.replicas - sum(s.replicas for s in (new, *old))
    return min(bounds.replicas, new.replicas + max(room, 0))


def shrink(bounds: Bounds, new: Set, old: list[Set]) -> Sizes:
    """The old sets' sizes as far as availability allows, in their order and unhealthy replicas before healthy ones."""
    sizes = {s.name: s.replicas for s in old if s.replicas}
    available = {s.name: s.available for s in old}
    room = new.available + sum(sizes.values()) - bounds.least
    for name, replicas in sizes.items():
        unhealthy = min(max(room, 0), max(replicas - available[name], 0))
        sizes[name] -= unhealthy
        room -= unhealthy
    spare = min(room, sum(available[name] for name in sizes) + new.available - bounds.least)
    for name, replicas in sizes.items():
        cut = min(max(spare, 0), replicas)
        sizes[name] -= cut
        spare -= cut
    return {s.name: sizes[s.name] for s in old if s.name in sizes and sizes[s.name] != s.replicas}


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
        # Oldest first, so that of several sets of one template always the same one is the new one.
        sets = sorted(self._sets.by_index("owner", deployment["metadata"]["uid"]), key=_age)
        template = deployment["spec"]["template"]
        new = next((s for s in sets if same_template(s["spec"]["template"], template)), None)
        old = [s for s in sets if s is not new]
        if new:
            new = await self._keep_revision(deployment, new, old)
        sizes = self._sizes(deployment, new, old)
        if NEW in sizes:
            new = await self._create_set(deployment, set_for(deployment, old, sizes[NEW]))
        old = [await self._resize(deployment, s, sizes) for s in old]
        new = await self._resize(deployment, new, sizes) if new else None
        if not deployment["spec"].get("paused"):
            await self._prune(deployment, old)
        await self._deployments.write_status(deployment, status_of(deployment, new, old, time.time()))

    def _sizes(self, deployment: Obj, new: Obj | None, old: list[Obj]) -> Sizes:
        """The replica sets that get another size now, a new one among them."""
        bounds, others = bounds_of(deployment), [_numbers(s) for s in old]
        if deployment["spec"].get("paused"):
            # Nothing moves from set to set; where there is only one in use, it follows the deployment's size.
            used = [s for s in (*([_numbers(new)] if new else []), *others) if s.replicas]
            return {used[0].name: bounds.replicas} if len(used) == 1 else {}
        if is_rolling(deployment):
            return rolling(bounds, _numbers(new), others) if new else {NEW: grow(bounds, Set(NEW, 0), others)}
        # Recreate: no new pod before the last old one is gone.
        ending = {s.name: 0 for s in others if s.replicas}
        running = any(not p.terminal for s in old for p in self._pods.by_index("owner", s["metadata"]["uid"]))
        return ending if ending or running else {new["metadata"]["name"] if new else NEW: bounds.replicas}

    async def _keep_revision(self, deployment: Obj, new: Obj, old: list[Obj]) -> Obj:
        """The new set is the newest in the history, and the deployment says which one that is."""
        wanted = annotations_for(deployment, new, old)
        if wanted != (new["metadata"].get("annotations") or {}):
            new = await self._sets.patch(key_of(new), {"metadata": {"annotations": wanted}}) or new
        if revision(deployment) != revision(new):
            patch = {"metadata": {"annotations": {REVISION: str(revision(new))}}}
            await self._deployments.patch(key_of(deployment), patch)
        return new

    async def _create_set(self, deployment: Obj, wanted: Obj) -> Obj:
        name, size = wanted["metadata"]["name"], wanted["spec"]["replicas"]
        try:
            created: Obj = await self._sets.create(wanted, deployment["metadata"]["namespace"])
        except ApiError as error:
            message = f'Failed to create new replica set "{name}": {error.message}'
            self._recorder.warning(about(deployment, DEPLOYMENTS), "ReplicaSetCreateError", message)
            raise
        if size:
            self._say_scaled(deployment, name, 0, size)
        return created

    async def _resize(self, deployment: Obj, replica_set: Obj, sizes: Sizes) -> Obj:
        name, has = replica_set["metadata"]["name"], replica_set["spec"].get("replicas", 1)
        size = sizes.get(name, has)
        if size == has:
            return replica_set
        meta = {"resourceVersion": replica_set["metadata"]["resourceVersion"]}
        patch = {"metadata": meta, "spec": {"replicas": size}}
        resized = await self._sets.patch(key_of(replica_set), patch) or replica_set
        self._say_scaled(deployment, name, has, size)
        return resized

    def _say_scaled(self, deployment: Obj, name: str, has: int, size: int) -> None:
        message = f"Scaled {'up' if size > has else 'down'} replica set {name} from {has} to {size}"
        self._recorder.normal(about(deployment, DEPLOYMENTS), "ScalingReplicaSet", message)

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


def _age(replica_set: Obj) -> tuple[str, str]:
    return replica_set["metadata"].get("creationTimestamp", ""), replica_set["metadata"]["name"]


def _numbers(replica_set: Obj) -> Set:
    available = _total([replica_set], "availableReplicas")
    return Set(replica_set["metadata"]["name"], replica_set["spec"].get("replicas", 1), available)


def same_template(one: Obj, other: Obj) -> bool:
    """Whether two pod templates are the same but for the label that names them."""
    return _without_hash(one) == _without_hash(other)


def _without_hash(template: Obj) -> Obj:
    meta = template.get("metadata") or {}
    labels = {k: v for k, v in (meta.get("labels") or {}).items() if k != HASH}
    rest = {k: v for k, v in meta.items() if k != "labels" and v}
    return {"metadata": {**rest, "labels": labels}, "spec": template.get("spec")}


def bounds_of(deployment: Obj) -> Bounds:
    """How far the rollout may leave the wanted number of replicas; Recreate does not care, so it has no slack."""
    spec = deployment["spec"]
    replicas = spec.get("replicas", 1)
    if not is_rolling(deployment):
        return Bounds(replicas)
    limits = (spec.get("strategy") or {}).get("rollingUpdate") or {}
    return Bounds.of(replicas, limits.get("maxSurge", "25%"), limits.get("maxUnavailable", "25%"))


def is_rolling(deployment: Obj) -> bool:
    strategy: Obj = deployment["spec"].get("strategy") or {}
    return bool(strategy.get("type", "RollingUpdate") == "RollingUpdate")


def revision(obj: Obj) -> int:
    text = (obj["metadata"].get("annotations") or {}).get(REVISION, "")
    return int(text) if text.isdigit() else 0


def annotations_for(deployment: Obj, replica_set: Obj | None, old: list[Obj]) -> dict[str, str]:
    """The annotations of the new replica set: the deployment's, and its number in the history, after all old ones."""
    new = replica_set or {"metadata": {}}
    theirs = deployment["metadata"].get("annotations") or {}
    copied = {k: v for k, v in theirs.items() if k not in NOT_COPIED}
    number = max(1, revision(new), *(revision(s) + 1 for s in old))
    return {**(new["metadata"].get("annotations") or {}), **copied, REVISION: str(number)}


def set_for(deployment: Obj, old: list[Obj], size: int) -> Obj:
    """The replica set of the deployment's present template, named after the template's hash.

    An orphan of an earlier deployment of that name, which is left alone, has another one: the uid counts too.
    """
    meta, spec = deployment["metadata"], deployment["spec"]
    name = template_hash(spec["template"], meta["uid"])
    template_meta = spec["template"].get("metadata") or {}
    labels = {**(template_meta.get("labels") or {}), HASH: name}
    selector = spec["selector"]
    about_it = {"labels": labels, "annotations": annotations_for(deployment, None, old)}
    made = owned(REPLICA_SETS, deployment, DEPLOYMENTS, name=f"{meta['name'][:_LONGEST]}-{name}", **about_it)
    made["spec"] = {
        "replicas": size,
        "selector": {**selector, "matchLabels": {**(selector.get("matchLabels") or {}), HASH: name}},
        "template": {**spec["template"], "metadata": {**template_meta, "labels": labels}},
    }
    return made


def is_complete(deployment: Obj, status: Obj) -> bool:
    replicas = deployment["spec"].get("replicas", 1)
    return bool(
        status.get("updatedReplicas", 0) == status.get("replicas", 0) == status.get("availableReplicas", 0) == replicas
        and status.get("observedGeneration", 0) >= deployment["metadata"].get("generation", 0)
    )


def status_of(deployment: Obj, new: Obj | None, old: list[Obj], now: float) -> Obj:
    """The status that follows from the replica sets."""
    every = [*([new] if new else []), *old]
    available = _total(every, "availableReplicas")
    asked = sum(s["spec"].get("replicas", 1) for s in every)
    status: Obj = {
        "observedGeneration": deployment["metadata"].get("generation", 0),
        "replicas": _total(every, "replicas"),
        "updatedReplicas": _total([new], "replicas") if new else 0,
        "readyReplicas": _total(every, "readyReplicas"),
        "availableReplicas": available,
        "unavailableReplicas": max(asked - available, 0),
    }
    listed = (deployment.get("status") or {}).get("conditions") or []
    enough = available >= bounds_of(deployment).least
    reason = "MinimumReplicasAvailable" if enough else "MinimumReplicasUnavailable"
    message = f"Deployment {'has' if enough else 'does not have'} minimum availability."
    listed = conditions.put(listed, "Available", str(enough), now, reason=reason, message=message)
    return {**status, "conditions": _failures(every, _progress(deployment, new, status, listed, now), now)}


def _total(sets: list[Obj], field: str) -> int:
    return sum((s.get("status") or {}).get(field, 0) for s in sets)


def _progress(deployment: Obj, new: Obj | None, status: Obj, listed: list[Obj], now: float) -> list[Obj]:
    """Say how the rollout goes. One that was done stays so: a resize or a lost pod is no rollout."""
    what = f'ReplicaSet "{new["metadata"]["name"]}"' if new else f'Deployment "{deployment["metadata"]["name"]}"'
    value, reason, message = "True", "ReplicaSetUpdated", f"{what} is progressing."
    updated = status["replicas"] == status["updatedReplicas"]
    if deployment["spec"].get("paused"):
        value, reason, message = "Unknown", "DeploymentPaused", "Deployment is paused"
    elif is_complete(deployment, status) or (updated and conditions.holds(listed, "Progressing", reason=DONE)):
        reason, message = DONE, f"{what} has successfully progressed."
    return conditions.put(listed, "Progressing", value, now, reason=reason, message=message)


def _failures(every: list[Obj], listed: list[Obj], now: float) -> list[Obj]:
    """Pass on why replica sets cannot get their pods; the new set's reason before those of old ones."""
    kind = "ReplicaFailure"
    for replica_set in every:
        failure = conditions.find((replica_set.get("status") or {}).get("conditions") or (), kind)
        if failure:
            return conditions.put(listed, kind, "True", now, reason=failure["reason"], message=failure["message"])
    return conditions.drop(listed, kind)
