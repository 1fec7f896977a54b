"""A pod's status from what was seen of its containers. Pure; the words are those of Kubernetes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from virtfleet.api.names import FINAL
from virtfleet.api.times import timestamp
from virtfleet.kube.resource import Obj
from virtfleet.local.apiserver.kinds.pod_spec import is_sidecar, qos_class
from virtfleet.local.node.containers import Container
from virtfleet.local.node.lifecycle import PENDING, Seen, Why, debuggers, has_succeeded, init_containers


@dataclass(frozen=True, slots=True)
class PodFacts:
    """What is known of the pod beside its containers."""

    host_ips: tuple[str, ...]
    addresses: tuple[str, ...] = ()
    sandboxed: bool = False  # network and volumes are there
    over: bool = False  # nothing runs and nothing will
    outcome: Why | None = None  # it has failed as a whole: evicted, past its deadline, refused by the node
    pending: Why | None = None  # why it does not have the resources that its spec asks for


def status(pod: Obj, seen: Mapping[str, Seen], facts: PodFacts, now: float) -> Obj:
    """The status as this node sees it. Conditions of others are left out: the patch merges by type."""
    ahead = _ahead(pod, seen)
    own = [_container_status(c, seen, initialized=not ahead, init=False) for c in pod["spec"]["containers"]]
    init = [_container_status(c, seen) for c in init_containers(pod)]
    beside = [s for s, c in zip(init, init_containers(pod), strict=True) if is_sidecar(c)]
    phase = "Failed" if facts.outcome else _phase(pod, own, [s for s in init if s not in beside], beside, facts.over)
    old = pod.get("status") or {}
    result: Obj = {
        "phase": phase,
        "conditions": _conditions(pod, [*beside, *own], ahead, facts, phase, now),
        "startTime": old.get("startTime") or timestamp(now),
        "hostIP": facts.host_ips[0],
        "hostIPs": [{"ip": address} for address in facts.host_ips],
        "containerStatuses": own,
        "qosClass": old.get("qosClass") or qos_class(pod["spec"]),
    }
    if pod["metadata"].get("generation"):
        result["observedGeneration"] = pod["metadata"]["generation"]
    if init:
        result["initContainerStatuses"] = init
    if added := [_container_status(c, seen) for c in debuggers(pod)]:
        result["ephemeralContainerStatuses"] = [{**s, "ready": False} for s in added]
    addresses = facts.host_ips if pod["spec"].get("hostNetwork") and facts.sandboxed else facts.addresses
    if addresses:
        result |= {"podIP": addresses[0], "podIPs": [{"ip": address} for address in addresses]}
    if facts.outcome:
        result |= {"reason": facts.outcome.reason, "message": facts.outcome.message}
    return result


def _ahead(pod: Obj, seen: Mapping[str, Seen]) -> list[str]:
    """The init containers that the ordinary ones wait for."""
    if any(seen[c["name"]].run for c in pod["spec"]["containers"]):
        return []
    views = [(c, seen[c["name"]]) for c in init_containers(pod)]
    return [c["name"] for c, view in views if not (view.started if is_sidecar(c) else has_succeeded(view))]


def _container_status(container: Obj, seen: Mapping[str, Seen], *, initialized: bool = True, init: bool = True) -> Obj:
    view = seen[container["name"]]
    run, previous = view.run, view.previous
    result: Obj = {
        "name": container["name"],
        "image": run.image if run else container.get("image", ""),
        "imageID": run.image_id if run else "",
        "restartCount": run.attempt if run else 0,
        "ready": has_succeeded(view) if init and not is_sidecar(container) else view.ready,
        "started": view.started,
        "state": {},
        "lastState": {},
    }
    if run:
        result["containerID"] = f"virtfleet://{run.id}"
    if run and run.running and run.resources is not None:
        result |= {"resources": run.resources, "allocatedResources": run.resources.get("requests") or {}}
    if run and run.running:
        result["state"] = {"running": {"startedAt": timestamp(run.started)}}
    elif run and run.finished and not view.waiting:
        result["state"] = {"terminated": _terminated(run)}
    else:
        reason, message = view.waiting or ("ContainerCreating" if initialized else "PodInitializing", "")
        result["state"] = {"waiting": {"reason": reason, **({"message": message} if message else {})}}
        previous = run if run and run.finished else previous
    if previous and previous.finished:
        result["lastState"] = {"terminated": _terminated(previous)}
    return result


def _terminated(run: Container) -> Obj:
    result: Obj = {
        "exitCode": run.exit_code,
        "reason": run.reason or ("Error" if run.exit_code else "Completed"),
        "startedAt": timestamp(run.started) if run.started else None,
        "finishedAt": timestamp(run.finished),
        "containerID": f"virtfleet://{run.id}",
    }
    if run.message:
        result["message"] = run.message
    return result


def _phase(pod: Obj, own: list[Obj], init: list[Obj], beside: list[Obj], over: bool) -> str:
    policy = "Never" if over else pod["spec"].get("restartPolicy") or "Always"
    ended = [s["state"].get("terminated") or s["lastState"].get("terminated") for s in own]
    running = any("running" in s["state"] for s in own)
    accompanied = not over and any("running" in s["state"] for s in beside)  # it is not over before they are
    if not running and not any(ended):
        failed = [s for s in init if (s["state"].get("terminated") or {}).get("exitCode")]
        return "Failed" if over or (failed and policy == "Never" and not accompanied) else "Pending"
    if running:
        return (
            "Pending" if any("waiting" in s["state"] and not e for s, e in zip(own, ended, strict=True)) else "Running"
        )
    if not all(ended):
        return "Failed" if over else "Pending"
    succeeded = all(e["exitCode"] == 0 for e in ended)
    if policy == "Always" or accompanied:
        return "Running"
    if succeeded and not any("waiting" in s["state"] for s in own):
        return "Succeeded"
    return "Failed" if policy == "Never" else "Running"


def _conditions(pod: Obj, lasting: list[Obj], ahead: list[str], facts: PodFacts, phase: str, now: float) -> list[Obj]:
    old = {c["type"]: c for c in (pod.get("status") or {}).get("conditions") or ()}
    unready = [s["name"] for s in lasting if not s["ready"]]
    if phase in FINAL:
        containers = ("False", "PodCompleted" if phase == "Succeeded" else "PodFailed", "")
    elif unready:
        containers = ("False", "ContainersNotReady", f"containers with unready status: [{' '.join(unready)}]")
    else:
        containers = ("True", "", "")
    gates = [g["conditionType"] for g in pod["spec"].get("readinessGates") or ()]
    closed = [g for g in gates if (old.get(g) or {}).get("status") != "True"]
    ready = containers
    if containers[0] == "True" and closed:
        listed = ", ".join(f'the status of pod readiness gate "{g}" is not "True"' for g in closed)
        ready = ("False", "ReadinessGatesNotReady", f"{listed}, but was not set" if closed[0] not in old else listed)
    verdicts = {
        "PodReadyToStartContainers": (str(facts.sandboxed and phase not in FINAL), "", ""),
        "Initialized": ("True", "PodCompleted" if phase == "Succeeded" else "", "")
        if not ahead
        else ("False", "ContainersNotInitialized", f"containers with incomplete status: [{' '.join(ahead)}]"),
        "Ready": ready,
        "ContainersReady": containers,
        "PodScheduled": ("True", "", ""),
    }
    if facts.pending:
        verdicts[PENDING] = ("True", facts.pending.reason, facts.pending.message)
    elif PENDING in old:
        verdicts[PENDING] = ("False", "", "")
    return [_condition(kind, verdict, old.get(kind) or {}, now) for kind, verdict in verdicts.items()]


def _condition(kind: str, verdict: tuple[str, str, str], old: Obj, now: float) -> Obj:
    value, reason, message = verdict
    return {
        "type": kind,
        "status": value,
        "lastProbeTime": None,
        "lastTransitionTime": old.get("lastTransitionTime") if old.get("status") == value else timestamp(now),
        # Named even when empty, so that the merge takes away what was there before.
        "reason": reason or None,
        "message": message or None,
    }


def is_part_of(wanted: Any, there: Any) -> bool:
    """Whether writing `wanted` as a merge over `there` would change nothing. Conditions are compared by type."""
    if isinstance(wanted, dict):
        return isinstance(there, dict) and all(is_part_of(value, there.get(key)) for key, value in wanted.items())
    if isinstance(wanted, list):
        if not isinstance(there, list):
            return False
        if wanted and "type" in wanted[0]:
            named = {entry["type"]: entry for entry in there}
            return all(is_part_of(entry, named.get(entry["type"])) for entry in wanted)
        return len(wanted) == len(there) and all(map(is_part_of, wanted, there))
    return bool(wanted == there)
