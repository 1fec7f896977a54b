"""Pods that get other processors and memory while they run: what is due, and whether the node has room. Pure.

The words are those of Kubernetes: a pod waits (`Deferred`) for others to go, or asks for more than the node has at all
(`Infeasible`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final

from virtfleet.api.names import FINAL
from virtfleet.kube.resource import Obj
from virtfleet.local.controllers.pods import amounts as counted
from virtfleet.local.controllers.pods import total_requests
from virtfleet.local.node.containers import Container
from virtfleet.local.node.lifecycle import Why

PENDING: Final = "PodResizePending"
DEFERRED, INFEASIBLE = "Deferred", "Infeasible"


def amounts(container: Obj) -> dict[str, dict[str, str]]:
    """Requests and limits of a container."""
    declared = container.get("resources") or {}
    return {kind: dict(declared[kind]) for kind in ("requests", "limits") if declared.get(kind)}


def due(pod: Obj, latest: Callable[[str], Container | None]) -> Iterator[tuple[Obj, Container]]:
    """Containers that run with other resources than their spec asks for."""
    for container in pod["spec"]["containers"]:
        run = latest(container["name"])
        if run and run.running and run.resources is not None and run.resources != amounts(container):
            yield container, run


def shortage(pod: Obj, pods: Iterable[Obj], allocatable: Mapping[str, str]) -> Why | None:
    """What the node lacks for the resources that a pod asks for, so that it keeps those that it has."""
    asked, used, most = Counter(total_requests(pod["spec"])), Counter[str](), Counter(counted(allocatable))
    for other in pods:
        over = (other.get("status") or {}).get("phase") in FINAL
        if other["metadata"]["uid"] != pod["metadata"]["uid"] and not over:
            used.update(total_requests(_as_it_is(other)))
    for name in ("cpu", "memory"):
        if asked[name] > most[name]:
            said = f"Node didn't have enough capacity: {name}, requested: {asked[name]}, capacity: {most[name]}"
            return Why(INFEASIBLE, said)
        if asked[name] + used[name] > most[name]:
            said = f"Node didn't have enough resource: {name}, requested: {asked[name]}, used: {used[name]}"
            return Why(DEFERRED, f"{said}, capacity: {most[name]}")
    return None


def _as_it_is(pod: Obj) -> Obj:
    """The spec with the requests that the pod's containers have, as far as its node has said."""
    status = pod.get("status") or {}
    every = (*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ()))
    has = {s["name"]: {"requests": s["allocatedResources"]} for s in every if s.get("allocatedResources") is not None}
    kinds = {kind: pod["spec"].get(kind) or () for kind in ("initContainers", "containers")}
    return {
        kind: [{**c, "resources": has.get(c["name"], c.get("resources"))} for c in cs] for kind, cs in kinds.items()
    }
