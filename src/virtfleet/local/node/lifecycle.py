"""What to do next with a pod's containers. Pure: from the spec and what was seen of each container to a few actions.

Init containers run one after the other; then the ordinary containers run side by side. A sidecar is an init container
that the next ones wait for only until it has started; it is run again whenever it ends, until the ordinary ones have.
Whoever ends is run again as the restart policy says, after a pause that doubles with every try.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from virtfleet.kube.resource import Obj
from virtfleet.local.apiserver.kinds.pod_spec import is_sidecar
from virtfleet.local.node.containers import Container

FIRST_BACKOFF, LAST_BACKOFF = 10.0, 300.0
LONG_RUN = 600.0  # a container that ran this long begins with no back-off again
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
    return [*init_containers(pod), *pod["spec"]["containers"], *debuggers(pod)]


def sidecars(pod: Obj) -> list[Obj]:
    return [container for container in init_containers(pod) if is_sidecar(container)]


def unserved(pod: Obj) -> str:
    """What the pod asks of a Kubernetes node and not of this one, as a message: it fails at once. "" for nothing."""
    fields = list(_fields(pod["spec"]))
    return f"the local cluster has nothing for {', '.join(fields)}; leave that out" if fields else ""


def _fields(spec: Obj) -> Iterator[str]:
    if spec.get("shareProcessNamespace"):
        yield "spec.shareProcessNamespace"
    for kind in ("initContainers", "containers"):
        for number, container in enumerate(spec.get(kind) or ()):
            at = f"spec.{kind}[{number}]"
            if container.get("restartPolicy") and not (kind == "initContainers" and is_sidecar(container)):
                yield f"{at}.restartPolicy"
            if container.get("lifecycle"):
                yield f"{at}.lifecycle"
            yield from (f"{at}.{probe}.grpc" for probe in _PROBES if "grpc" in (container.get(probe) or {}))


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
