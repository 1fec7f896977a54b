"""What the columns of pods show."""

from __future__ import annotations

from dataclasses import dataclass

from virtfleet.api.conditions import holds
from virtfleet.api.names import FINAL
from virtfleet.kube.resource import Obj
from virtfleet.local.apiserver.kinds.pod_spec import is_sidecar
from virtfleet.local.apiserver.tables.ages import since

NONE = "<none>"


@dataclass(frozen=True, slots=True)
class Summary:
    """What `kubectl get pods` says of one pod."""

    word: str
    ready: int
    total: int
    restarts: int
    restarted: str  # when last; "" if never


def summarize(pod: Obj) -> Summary:
    """The status word sums up phase, containers and deletion; nothing else is read as often."""
    spec, status = pod.get("spec", {}), pod.get("status", {})
    word = status.get("reason") or status.get("phase", "")
    if holds(status.get("conditions", ()), "PodScheduled", "False", "SchedulingGated"):
        word = "SchedulingGated"
    sidecars = {c["name"] for c in spec.get("initContainers", ()) if is_sidecar(c)}
    starting = _initialization(spec, status, sidecars)
    counted = [s for s in status.get("initContainerStatuses", ()) if starting or s["name"] in sidecars]
    if not starting or holds(status.get("conditions", ()), "Initialized"):
        counted = [s for s in counted if s["name"] in sidecars] + list(status.get("containerStatuses", ()))
        word = _running(word, status)
    else:
        word = starting
    if pod["metadata"].get("deletionTimestamp"):
        if status.get("reason") == "NodeLost":
            word = "Unknown"
        elif status.get("phase") not in FINAL:
            word = "Terminating"
    ready = [s for s in counted if s.get("ready") and "running" in s.get("state", {})]
    return Summary(
        word,
        len(ready),
        len(spec.get("containers", ())) + len(sidecars),
        sum(s.get("restartCount", 0) for s in counted),
        max((s.get("lastState", {}).get("terminated", {}).get("finishedAt") or "" for s in counted), default=""),
    )


def _initialization(spec: Obj, status: Obj, sidecars: set[str]) -> str:
    """How far the init containers are; empty when they are through."""
    for index, container in enumerate(status.get("initContainerStatuses", ())):
        state = container.get("state", {})
        ended, waiting = state.get("terminated"), state.get("waiting", {}).get("reason")
        if ended is not None and not ended.get("exitCode"):
            continue
        if container["name"] in sidecars and container.get("started"):
            continue
        if ended is not None:
            return f"Init:{_ending(ended)}"
        if waiting and waiting != "PodInitializing":
            return f"Init:{waiting}"
        return f"Init:{index}/{len(spec.get('initContainers', ()))}"
    return ""


def _running(word: str, status: Obj) -> str:
    """The word for a pod whose containers have started: the first container's state decides."""
    running, failure = False, ""
    for container in reversed(status.get("containerStatuses", ())):
        state = container.get("state", {})
        if state.get("waiting", {}).get("reason"):
            word = state["waiting"]["reason"]
        elif "terminated" in state:
            word = _ending(state["terminated"])
            if state["terminated"].get("exitCode"):
                failure = word
        elif container.get("ready") and "running" in state:
            running = True
    if word != "Completed":
        return word
    if running and holds(status.get("conditions", ()), "Ready"):
        return "Running"
    return failure or ("NotReady" if running else word)


def _ending(terminated: Obj) -> str:
    if terminated.get("reason"):
        return str(terminated["reason"])
    if terminated.get("signal"):
        return f"Signal:{terminated['signal']}"
    return f"ExitCode:{terminated.get('exitCode', 0)}"


def pod_ready(pod: Obj) -> str:
    """How many of a pod's containers are ready."""
    summary = summarize(pod)
    return f"{summary.ready}/{summary.total}"


def pod_status(pod: Obj) -> str:
    """What a pod is doing, in one word."""
    return summarize(pod).word


def pod_restarts(pod: Obj) -> str:
    """How often containers were started again, and when last."""
    summary = summarize(pod)
    ago = f" ({since(summary.restarted)} ago)" if summary.restarts and summary.restarted else ""
    return f"{summary.restarts}{ago}"


def pod_gates(pod: Obj) -> str:
    """How many of a pod's readiness gates are passed."""
    gates = pod.get("spec", {}).get("readinessGates", ())
    conditions = pod.get("status", {}).get("conditions", ())
    passed = sum(holds(conditions, gate["conditionType"]) for gate in gates)
    return f"{passed}/{len(gates)}" if gates else NONE
