"""How a deployment's template and history are written on its replica sets, and what it says of them. Pure.

`kubectl rollout` reads these words.
"""

from __future__ import annotations

from typing import Any

from virtfleet.api import conditions, times
from virtfleet.kube.resource import DEPLOYMENTS, REPLICA_SETS, Obj, owner_reference
from virtfleet.local.controllers import rollout
from virtfleet.local.controllers.revisions import named, template_hash
from virtfleet.local.controllers.rollout import Bounds

HASH = "pod-template-hash"
REVISION = "deployment.kubernetes.io/revision"
NOT_COPIED = {REVISION, "kubectl.kubernetes.io/last-applied-configuration"}
DONE = "NewReplicaSetAvailable"


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


def numbers(replica_set: Obj) -> rollout.Set:
    created = replica_set["metadata"].get("creationTimestamp")
    return rollout.Set(
        name=replica_set["metadata"]["name"],
        replicas=replica_set["spec"].get("replicas", 1),
        available=(replica_set.get("status") or {}).get("availableReplicas", 0),
        created=times.seconds(created) if created else 0.0,
    )


def annotations_for(deployment: Obj, replica_set: Obj | None, old: list[Obj]) -> dict[str, str]:
    """The annotations of the new replica set: the deployment's, and its number in the history, after all old ones."""
    mine = (replica_set or {"metadata": {}})["metadata"].get("annotations") or {}
    theirs = deployment["metadata"].get("annotations") or {}
    number = max([revision(s) + 1 for s in old] + ([revision(replica_set)] if replica_set else []), default=1)
    return {**mine, **{k: v for k, v in theirs.items() if k not in NOT_COPIED}, REVISION: str(max(number, 1))}


def set_for(deployment: Obj, old: list[Obj], size: int) -> Obj:
    """The replica set of the deployment's present template, named after the template's hash."""
    meta, spec = deployment["metadata"], deployment["spec"]
    name = template_hash(spec["template"], (deployment.get("status") or {}).get("collisionCount"))
    template_meta = spec["template"].get("metadata") or {}
    labels = {**(template_meta.get("labels") or {}), HASH: name}
    selector = spec["selector"]
    return {
        "apiVersion": REPLICA_SETS.api_version,
        "kind": REPLICA_SETS.kind,
        "metadata": {
            "name": named(meta["name"], name),
            "namespace": meta["namespace"],
            "labels": labels,
            "annotations": annotations_for(deployment, None, old),
            "ownerReferences": [owner_reference(deployment, DEPLOYMENTS)],
        },
        "spec": {
            "replicas": size,
            "minReadySeconds": spec.get("minReadySeconds", 0),
            "selector": {**selector, "matchLabels": {**(selector.get("matchLabels") or {}), HASH: name}},
            "template": {**spec["template"], "metadata": {**template_meta, "labels": labels}},
        },
    }


def by_age(sets: list[Obj]) -> list[Obj]:
    """Oldest first, so that of several sets of one template always the same one is the new one."""
    return sorted(sets, key=lambda s: (s["metadata"].get("creationTimestamp", ""), s["metadata"]["name"]))


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
    status: dict[str, Any] = {
        "observedGeneration": deployment["metadata"].get("generation", 0),
        "replicas": _total(every, "replicas"),
        "updatedReplicas": _total([new], "replicas") if new else 0,
        "readyReplicas": _total(every, "readyReplicas"),
        "availableReplicas": available,
        "unavailableReplicas": max(asked - available, 0),
    }
    listed = (deployment.get("status") or {}).get("conditions") or []
    enough = available >= bounds_of(deployment).least
    listed = conditions.put(
        listed,
        "Available",
        "True" if enough else "False",
        now,
        reason="MinimumReplicasAvailable" if enough else "MinimumReplicasUnavailable",
        message=f"Deployment {'has' if enough else 'does not have'} minimum availability.",
    )
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
