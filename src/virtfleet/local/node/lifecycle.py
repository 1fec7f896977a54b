"""What to do next with a pod's containers. Pure: from the spec and what was seen of each container to a few actions.

Init containers run one after the other; then the ordinary containers run side by side. A sidecar is an init container
that the next ones wait for only until it has started; it is run again whenever it ends, until the ordinary ones have.
Whoever ends is run again as the restart policy says, after a pause that doubles with every try.

Containers that run get other processors and memory if the node has room. The words are those of Kubernetes: a pod waits
(`Deferred`) for others to go, or asks for more than the node has at all (`Infeasible`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from virtfleet.api.names import FINAL
from virtfleet.kube.resource import Obj
from virtfleet.local.apiserver.kinds.pod_spec import containers, is_sidecar
from virtfleet.local.controllers.pods import amounts as counted
from virtfleet.local.controllers.pods import total_requests
from virtfleet.local.node.containers import Container

FIRST_BACKOFF, LAST_BACKOFF = 10.0, 300.0
LONG_RUN = 600.0  # a container that ran this long begins with no back-off again
PENDING, DEFERRED, INFEASIBLE = "PodResizePending", "Deferred", "Infeasible"
_PROBES = ("startupProbe", "livenessProbe", "readinessProbe")


class Why(NamedTuple):
    """Why a pod or container is as it is, in Kubernetes' words."""

    reason: str = ""
    message: str = ""


@dataclass(frozen=True, slots=True)
class Seen:
    """What is known of one container of the pod."""

    run: Container | None = None  # the latest
    previous: Container | None = None
    started: bool = False  # running, startup probe passed
    ready: bool = False
    waiting: Why | None = None  # while there is no run
    unhealthy: str = ""  # why it must be ended


@dataclass(slots=True)
class Plan:
    """`start` and `kill` name containers; `paused` those that wait for a moment; `done` when none will run again."""

    start: list[str] = field(default_factory=list)
    kill: dict[str, str] = field(default_factory=dict)
    paused: dict[str, float] = field(default_factory=dict)
    done: bool = False


def init_containers(pod: Obj) -> list[Obj]:
    return list(pod["spec"].get("initContainers") or ())


def debuggers(pod: Obj) -> list[Obj]:
    """Ephemeral containers: added to a pod that runs, run once, and of no weight in what becomes of it."""
    return list(pod["spec"].get("ephemeralContainers") or ())


def all_containers(pod: Obj) -> list[Obj]:
    return [container for _, container in containers(pod["spec"])]


def unserved(pod: Obj) -> str:
    """What the pod asks of a Kubernetes node and not of this one, as a message: it fails at once. "" for nothing."""
    fields = list(_fields(pod["spec"]))
    return f"the local cluster has nothing for {', '.join(fields)}; leave that out" if fields else ""


def _fields(spec: Obj) -> Iterator[str]:
    if spec.get("shareProcessNamespace"):
        yield "spec.shareProcessNamespace"
    for place, container in containers(spec):
        if container.get("restartPolicy") and not (place.startswith("init") and is_sidecar(container)):
            yield f"spec.{place}.restartPolicy"
        if container.get("lifecycle"):
            yield f"spec.{place}.lifecycle"
        yield from (f"spec.{place}.{probe}.grpc" for probe in _PROBES if "grpc" in (container.get(probe) or {}))


def plan(pod: Obj, seen: Mapping[str, Seen], now: float) -> Plan:
    result = Plan()
    policy = pod["spec"].get("restartPolicy") or "Always"
    before = init_containers(pod)
    ordered = enumerate((*before, *pod["spec"]["containers"]))
    last = max((number for number, c in ordered if seen[c["name"]].run), default=-1)  # that has begun
    result.start += [c["name"] for c in debuggers(pod) if not seen[c["name"]].run]
    for number, container in enumerate(before):
        view = seen[container["name"]]
        if is_sidecar(container):
            _keep(container, view, "Always", now, result)
            if number >= last and not view.started:
                return result
        elif last < len(before) and not has_succeeded(view):
            # A failed init container is run again unless the pod never restarts anything; then the pod has failed.
            result.done = _keep(container, view, "Never" if policy == "Never" else "OnFailure", now, result)
            return result
    over = [_keep(c, seen[c["name"]], policy, now, result) for c in pod["spec"]["containers"]]
    result.done = all(over)
    return result


def has_succeeded(view: Seen) -> bool:
    return bool(view.run and view.run.finished and view.run.exit_code == 0)


def _keep(container: Obj, view: Seen, policy: str, now: float, result: Plan) -> bool:
    """Plan for one container under a restart policy; True when it has ended for good."""
    name, run = container["name"], view.run
    if run is None:
        result.start.append(name)
        return False
    if not run.finished:
        if view.unhealthy:
            result.kill[name] = view.unhealthy
        elif run.version != container["image"]:
            result.kill[name] = f"Container {name} definition changed, will be restarted"
        return False
    if policy == "Never" or (policy == "OnFailure" and run.exit_code == 0):
        return True
    until = restart_at(run)
    if until > now >= run.finished:  # else the clock was set back since then
        result.paused[name] = until
    else:
        result.start.append(name)
    return False


def restart_at(run: Container) -> float:
    """The earliest moment at which a container that ended may run again."""
    return run.finished if _ran_long(run) else run.finished + run.backoff


def next_backoff(run: Container | None) -> float:
    """The pause after the run that follows `run`. The first restart comes at once."""
    if run is None:
        return 0.0
    if _ran_long(run):
        return FIRST_BACKOFF
    return min(max(FIRST_BACKOFF, 2 * run.backoff), LAST_BACKOFF)


def _ran_long(run: Container) -> bool:
    return bool(run.started) and run.finished - run.started >= LONG_RUN


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
