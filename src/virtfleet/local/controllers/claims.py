"""Decisions about claims and volumes: which volume fits which claim, and where a pod may go because of them."""

from __future__ import annotations

from collections.abc import Iterable

from virtfleet.api.selectors import from_label_selector, node_selector_matches
from virtfleet.kube.resource import Obj
from virtfleet.local.controllers.caches import Caches
from virtfleet.local.controllers.nodes import NodeView
from virtfleet.local.controllers.placement import Volumes
from virtfleet.local.controllers.pods import Pod, amounts

SELECTED_NODE = "volume.kubernetes.io/selected-node"
NO_PROVISIONER = "kubernetes.io/no-provisioner"
LOST = "node(s) unavailable due to one or more pvc(s) bound to non-existent pv(s)"


def mode_of(obj: Obj) -> str:
    """Of a claim or a volume: Filesystem or Block."""
    return str(obj["spec"].get("volumeMode") or "Filesystem")


def size_of(volume: Obj) -> int:
    return amounts(volume["spec"].get("capacity")).get("storage", 0)


def selected_node(claim: Obj) -> str:
    """Where the scheduler needs it."""
    return str((claim["metadata"].get("annotations") or {}).get(SELECTED_NODE, ""))


def is_bound(claim: Obj) -> bool:
    return (claim.get("status") or {}).get("phase") == "Bound"


def waits(storage_class: Obj | None) -> bool:
    """Whether claims wait for the first pod that uses them, so that the volume comes to be where the pod can go."""
    return bool(storage_class and storage_class.get("volumeBindingMode") == "WaitForFirstConsumer")


def admits(volume: Obj, node: NodeView) -> bool:
    return node_selector_matches((volume["spec"].get("nodeAffinity") or {}).get("required"), node.labels, node.name)


def is_for(volume: Obj, claim: Obj) -> bool:
    """Whether the volume is this claim's, or promised to a claim of its name: then it does not say the uid."""
    ref, meta = volume["spec"].get("claimRef") or {}, claim["metadata"]
    named = (ref.get("namespace"), ref.get("name")) == (meta["namespace"], meta["name"])
    return named and ref.get("uid") in (None, "", meta["uid"])


def satisfies(volume: Obj, claim: Obj) -> bool:
    """Whether a volume that nobody has could serve the claim."""
    want, have = claim["spec"], volume["spec"]
    return (
        not volume["metadata"].get("deletionTimestamp")
        and (not have.get("claimRef") or is_for(volume, claim))
        and (have.get("storageClassName") or "") == (want.get("storageClassName") or "")
        and mode_of(volume) == mode_of(claim)
        and set(want.get("accessModes") or ()) <= set(have.get("accessModes") or ())
        and size_of(volume) >= amounts((want.get("resources") or {}).get("requests")).get("storage", 0)
        and (
            want.get("selector") is None
            or from_label_selector(want["selector"]).matches(volume["metadata"].get("labels"))
        )
    )


def best_match(claim: Obj, volumes: Iterable[Obj], node: NodeView | None) -> Obj | None:
    """The volume that was promised to the claim, else the smallest one that is large enough, within a node's reach.

    One that was made for the claim is its own wherever that is: the node may have been chosen anew since.
    """
    fitting = [v for v in volumes if satisfies(v, claim) and (node is None or admits(v, node) or _is_own(v, claim))]
    return min(fitting, key=lambda v: (not v["spec"].get("claimRef"), size_of(v), v["metadata"]["name"]), default=None)


def _is_own(volume: Obj, claim: Obj) -> bool:
    return bool((volume["spec"].get("claimRef") or {}).get("uid") == claim["metadata"]["uid"])


def constraints(pod: Pod, caches: Caches) -> tuple[Volumes, list[Obj]]:
    """Where the pod's claims let it go, and the claims that wait to hear which node it will be."""
    bound: list[Obj] = []
    waiting: list[tuple[Obj, Obj]] = []  # with their classes
    for name in pod.template.claims:
        claim = caches.claims.get(f"{pod.namespace}/{name}")
        if claim is None or claim["metadata"].get("deletionTimestamp"):
            state = "is being deleted" if claim else "not found"
            return Volumes(blocker=f'persistentvolumeclaim "{name}" {state}'), []
        storage_class = caches.classes.get(claim["spec"].get("storageClassName") or "")
        if is_bound(claim):
            volume = caches.volumes.get(claim["spec"]["volumeName"])
            if volume is None:
                return Volumes(admits=lambda node: LOST), []
            bound.append(volume)
        elif storage_class and waits(storage_class) and not claim["spec"].get("volumeName"):
            waiting.append((claim, storage_class))
        else:
            return Volumes(blocker="pod has unbound immediate PersistentVolumeClaims"), []

    def refuse(node: NodeView) -> str:
        if not all(admits(volume, node) for volume in bound):
            return "node(s) didn't match PersistentVolume's node affinity"
        for claim, storage_class in waiting:
            made = storage_class.get("provisioner") != NO_PROVISIONER
            if not made and not best_match(claim, caches.volumes.list(), node):
                return "node(s) didn't find available persistent volumes to bind"
        return ""

    return Volumes(admits=refuse), [claim for claim, _ in waiting]
