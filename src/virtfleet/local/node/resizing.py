"""Pods that get other processors and memory while they run: what is due, and whether the node has room. Pure.

The words are those of Kubernetes: a pod waits (`Deferred`) for others to go, or asks for more than the node has at all
(`Infeasible`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final

from virtfleet.api.names import FINAL
from virtfleet.api.quantity import Quantity
from virtfleet.kube.resource import Obj
from virtfleet.local.node.containers import Container
from virtfleet.local.node.lifecycle import Why, lasting

PENDING: Final = "PodResizePending"
DEFERRED, INFEASIBLE = "Deferred", "Infeasible"
_RESIZABLE: Final = ("cpu", "memory")


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
    asked, used = requests(pod), Counter[str]()
    for other in pods:
        over = (other.get("status") or {}).get("phase") in FINAL
        if other["metadata"]["uid"] != pod["metadata"]["uid"] and not over:
            used.update(held(other))
    for name in _RESIZABLE:
        most = Quantity.parse(allocatable.get(name, "0")).milli()
        if asked[name] > most:
            said = f"Node didn't have enough capacity: {name}, requested: {asked[name]}, capacity: {most}"
            return Why(INFEASIBLE, said)
        if asked[name] + used[name] > most:
            said = f"Node didn't have enough resource: {name}, requested: {asked[name]}, used: {used[name]}"
            return Why(DEFERRED, f"{said}, capacity: {most}")
    return None


def requests(pod: Obj) -> Counter[str]:
    """What a pod's spec asks for, in thousandths."""
    return _sum(amounts(container).get("requests") or {} for container in lasting(pod))


def held(pod: Obj) -> Counter[str]:
    """What a pod has, as far as its node has said; else what it asks for."""
    names, status = {container["name"] for container in lasting(pod)}, pod.get("status") or {}
    every = (*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ()))
    said = [s.get("allocatedResources") for s in every if s["name"] in names]
    return _sum(said) if said and all(s is not None for s in said) else requests(pod)


def _sum(parts: Iterable[Mapping[str, str] | None]) -> Counter[str]:
    total = Counter[str]()
    for part in parts:
        total.update({name: Quantity.parse((part or {}).get(name, "0")).milli() for name in _RESIZABLE})
    return total
