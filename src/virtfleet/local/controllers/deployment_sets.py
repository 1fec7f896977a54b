"""How a deployment's template, history and sizes are written on its replica sets. Pure."""

from __future__ import annotations

from virtfleet.kube.resource import DEPLOYMENTS, REPLICA_SETS, Obj, owner_reference
from virtfleet.local.controllers import conditions, rollout
from virtfleet.local.controllers.revisions import named, template_hash
from virtfleet.local.controllers.rollout import Bounds

HASH = "pod-template-hash"
REVISION = "deployment.kubernetes.io/revision"
HISTORY = "deployment.kubernetes.io/revision-history"
DESIRED = "deployment.kubernetes.io/desired-replicas"
MAXIMUM = "deployment.kubernetes.io/max-replicas"
NOT_COPIED = {REVISION, HISTORY, DESIRED, MAXIMUM, "kubectl.kubernetes.io/last-applied-configuration"}
HISTORY_LIMIT = 2000  # characters


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


def next_revision(old: list[Obj]) -> int:
    """The number of the present template, after those of the past."""
    return max(map(revision, old), default=0) + 1


def numbers(replica_set: Obj) -> rollout.Set:
    meta, notes = replica_set["metadata"], replica_set["metadata"].get("annotations") or {}

    def number(key: str) -> int | None:
        return int(notes[key]) if notes.get(key, "").isdigit() else None

    return rollout.Set(
        name=meta["name"],
        replicas=replica_set["spec"].get("replicas", 1),
        available=(replica_set.get("status") or {}).get("availableReplicas", 0),
        created=conditions.seconds(meta.get("creationTimestamp")),
        desired=number(DESIRED),
        maximum=number(MAXIMUM),
    )


def annotations_for(deployment: Obj, replica_set: Obj | None, number: int) -> dict[str, str]:
    """The annotations of the new replica set: the deployment's, and its place in the history."""
    mine = dict((replica_set or {"metadata": {}})["metadata"].get("annotations") or {})
    theirs = deployment["metadata"].get("annotations") or {}
    result = {**mine, **{k: v for k, v in theirs.items() if k not in NOT_COPIED}}
    before = mine.get(REVISION, "")
    if int(before or 0) < number:
        result[REVISION] = str(number)
        if before:  # this template was current before: remember as what
            history = [*filter(None, mine.get(HISTORY, "").split(",")), before]
            while len(",".join(history)) > HISTORY_LIMIT:
                history.pop(0)
            result[HISTORY] = ",".join(history)
    return result


def set_for(deployment: Obj, old: list[Obj], size: int) -> Obj:
    """The replica set of the deployment's present template, named after the template's hash."""
    meta, spec = deployment["metadata"], deployment["spec"]
    name = template_hash(spec["template"], (deployment.get("status") or {}).get("collisionCount"))
    template_meta = spec["template"].get("metadata") or {}
    labels = {**(template_meta.get("labels") or {}), HASH: name}
    selector = spec["selector"]
    notes = annotations_for(deployment, None, next_revision(old))
    return {
        "apiVersion": REPLICA_SETS.api_version,
        "kind": REPLICA_SETS.kind,
        "metadata": {
            "name": named(meta["name"], name),
            "namespace": meta["namespace"],
            "labels": labels,
            "annotations": {**notes, **sized_for(bounds_of(deployment))},
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


def sized_for(bounds: Bounds) -> dict[str, str]:
    """What a set's size was worked out from, so that a resize of the deployment is told from a rollout."""
    return {DESIRED: str(bounds.replicas), MAXIMUM: str(bounds.most)}
