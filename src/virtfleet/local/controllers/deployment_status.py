"""What a deployment says about itself: numbers and conditions, with Kubernetes' reasons. Pure.

`kubectl rollout status` and `kubectl wait` read these words.
"""

from __future__ import annotations

from typing import Any

from virtfleet.api.times import timestamp
from virtfleet.kube.resource import Obj
from virtfleet.local.controllers import conditions
from virtfleet.local.controllers.conditions import Condition
from virtfleet.local.controllers.rollout import Bounds

NO_DEADLINE = 2**31 - 1

NEW_CREATED = "NewReplicaSetCreated"
NEW_FOUND = "FoundNewReplicaSet"
NEW_AVAILABLE = "NewReplicaSetAvailable"
UPDATED = "ReplicaSetUpdated"
TIMED_OUT = "ProgressDeadlineExceeded"
CREATE_FAILED = "ReplicaSetCreateError"
PAUSED = "DeploymentPaused"
RESUMED = "DeploymentResumed"


def has_deadline(deployment: Obj) -> bool:
    return int(deployment["spec"].get("progressDeadlineSeconds") or NO_DEADLINE) != NO_DEADLINE


def progressing(listed: list[Condition], status: str, reason: str, message: str, now: float) -> list[Condition]:
    """The conditions with a Progressing one, whose lastUpdateTime is the last sign of progress."""
    condition = {"type": "Progressing", "status": status, "reason": reason, "message": message}
    return conditions.put(listed, {**condition, "lastUpdateTime": timestamp(now)}, now)


def _set(listed: list[Condition], condition: Condition, now: float) -> list[Condition]:
    """Like `put`, but a condition that says the same keeps its times."""
    old = conditions.find(listed, condition["type"])
    if old and (old.get("status"), old.get("reason")) == (condition["status"], condition["reason"]):
        return listed
    return conditions.put(listed, {**condition, "lastUpdateTime": timestamp(now)}, now)


def _numbers(sets: list[Obj], field: str) -> int:
    return sum((s.get("status") or {}).get(field, 0) for s in sets)


def is_complete(deployment: Obj, status: Obj) -> bool:
    replicas = deployment["spec"].get("replicas", 1)
    return bool(
        status.get("updatedReplicas", 0) == status.get("replicas", 0) == status.get("availableReplicas", 0) == replicas
        and status.get("observedGeneration", 0) >= deployment["metadata"].get("generation", 0)
    )


def status_of(
    deployment: Obj,
    bounds: Bounds,
    new: Obj | None,
    old: list[Obj],
    listed: list[Condition],
    *,
    rollout: bool,
    now: float,
) -> Obj:
    """The status that follows from the replica sets. `listed` are the conditions so far; a `rollout` is judged."""
    every = [*old, *([new] if new else [])]
    available = _numbers(every, "availableReplicas")
    asked = sum(s["spec"].get("replicas", 1) for s in every)
    status: dict[str, Any] = {
        "observedGeneration": deployment["metadata"].get("generation", 0),
        "replicas": _numbers(every, "replicas"),
        "updatedReplicas": _numbers([new], "replicas") if new else 0,
        "readyReplicas": _numbers(every, "readyReplicas"),
        "availableReplicas": available,
        "unavailableReplicas": max(asked - available, 0),
    }
    collisions = (deployment.get("status") or {}).get("collisionCount")
    if collisions is not None:
        status["collisionCount"] = collisions
    enough = available >= bounds.least
    listed = _set(
        listed,
        {
            "type": "Available",
            "status": "True" if enough else "False",
            "reason": "MinimumReplicasAvailable" if enough else "MinimumReplicasUnavailable",
            "message": f"Deployment {'has' if enough else 'does not have'} minimum availability.",
        },
        now,
    )
    if rollout:
        listed = _judge(deployment, new, status, listed, now)
        listed = _failures(new, every, listed, now)
    return {**status, "conditions": listed}


def _judge(deployment: Obj, new: Obj | None, status: Obj, listed: list[Condition], now: float) -> list[Condition]:
    """Say how the rollout goes: done, moving, or stuck for too long."""
    if not has_deadline(deployment):
        return conditions.drop(listed, "Progressing")
    current = conditions.find(listed, "Progressing")
    was = deployment.get("status") or {}
    if current and current["reason"] == NEW_AVAILABLE and status["replicas"] == status["updatedReplicas"]:
        return listed  # done before: a resize or a lost pod is no rollout
    what = f'ReplicaSet "{new["metadata"]["name"]}"' if new else f'Deployment "{deployment["metadata"]["name"]}"'
    if is_complete(deployment, status):
        message = f"{what} has successfully progressed."
        done = {"type": "Progressing", "status": "True", "reason": NEW_AVAILABLE, "message": message}
        return _set(listed, done, now)
    if _moved(was, status):
        return progressing(listed, "True", UPDATED, f"{what} is progressing.", now)
    if current and current["reason"] != NEW_AVAILABLE and timed_out(deployment, current, now):
        late = {"type": "Progressing", "status": "False", "reason": TIMED_OUT}
        return _set(listed, {**late, "message": f"{what} has timed out progressing."}, now)
    return listed


def _moved(was: Obj, now: Obj) -> bool:
    def outdated(status: Obj) -> int:
        return int(status.get("replicas", 0)) - int(status.get("updatedReplicas", 0))

    grew = any(now[f] > was.get(f, 0) for f in ("updatedReplicas", "readyReplicas", "availableReplicas"))
    return grew or outdated(now) < outdated(was)


def timed_out(deployment: Obj, condition: Condition, now: float) -> bool:
    return condition["reason"] == TIMED_OUT or remaining(deployment, condition, now) < 0


def remaining(deployment: Obj, condition: Condition, now: float) -> float:
    """Seconds that the rollout still has to show progress."""
    allowed = float(deployment["spec"]["progressDeadlineSeconds"])
    return conditions.seconds(condition.get("lastUpdateTime")) + allowed - now


def _failures(new: Obj | None, every: list[Obj], listed: list[Condition], now: float) -> list[Condition]:
    """Pass on why replica sets cannot get their pods; the new set's reason before those of old ones."""
    for replica_set in [*([new] if new else []), *every]:
        failure = conditions.find((replica_set.get("status") or {}).get("conditions"), "ReplicaFailure")
        if failure:
            passed: Condition = {k: failure[k] for k in ("type", "status", "reason", "message") if k in failure}
            return _set(listed, passed, now)
    return conditions.drop(listed, "ReplicaFailure")
