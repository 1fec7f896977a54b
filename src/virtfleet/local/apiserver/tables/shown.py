"""What the columns of built-in kinds show where a path alone does not do: functions that columns.yaml names.

Those that columns.yaml gives something to show (`of`) take it first.
"""

from __future__ import annotations

import time
from typing import Any, NamedTuple

from virtfleet.api import times
from virtfleet.api.conditions import find, holds
from virtfleet.api.names import FINAL
from virtfleet.api.selectors import from_label_selector
from virtfleet.kube.resource import Obj
from virtfleet.local.apiserver.kinds.pod_spec import is_sidecar
from virtfleet.local.apiserver.kinds.registry import at
from virtfleet.local.apiserver.tables import jsonpath

NONE = "<none>"
_SHOWN = 3  # of a list of addresses
_ACCESS_MODES = {"ReadWriteOnce": "RWO", "ReadOnlyMany": "ROX", "ReadWriteMany": "RWX", "ReadWriteOncePod": "RWOP"}
_ROLE_LABEL = "node-role.kubernetes.io/"
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "y": 365 * 86400}  # seconds
# Below so many seconds, an age is shown in this unit, and with what is left in that one.
_DETAIL = (
    (120, "s", ""),
    (600, "m", "s"),
    (3 * 3600, "m", ""),
    (8 * 3600, "h", "m"),
    (48 * 3600, "h", ""),
    (8 * 86400, "d", "h"),
    (2 * 365 * 86400, "d", ""),
    (8 * 365 * 86400, "y", "d"),
)


def since(timestamp: str | None) -> str:
    """The time that has passed since a timestamp."""
    if not timestamp:
        return "<unknown>"
    try:
        return human(time.time() - times.seconds(timestamp))
    except ValueError:
        return "<invalid>"


def human(seconds: float) -> str:
    """A duration as kubectl shows it, with as much detail as its length deserves: `45s`, `3m12s`, `5h`, `12d`."""
    if seconds < -1:
        return "<invalid>"
    total = max(int(seconds), 0)
    large, small = next((units for below, *units in _DETAIL if total < below), ("y", ""))
    rest = total % _UNITS[large] // _UNITS[small] if small else 0
    return f"{total // _UNITS[large]}{large}" + (f"{rest}{small}" if rest else "")


def labels(path: str, obj: Obj) -> str:
    """The labels at a path."""
    chosen = [pair for values in jsonpath.find(path, obj) for pair in sorted((values or {}).items())]
    return ",".join(f"{key}={value}" for key, value in chosen) or NONE


def selector(obj: Obj) -> str:
    """A workload's label selector as text."""
    return str(from_label_selector(obj["spec"].get("selector") or {})) or NONE


def few(path: str, obj: Obj) -> str:
    """The first of many values."""
    texts = [str(value or "*") for value in jsonpath.find(path, obj)]
    more = f" + {len(texts) - _SHOWN} more..." if len(texts) > _SHOWN else ""
    return (",".join(texts[:_SHOWN]) + more) or "<unset>"


def count(fields: list[str], obj: Obj) -> int:
    """How many entries some fields have."""
    return sum(len(at(field, obj) or ()) for field in fields)


def node_status(node: Obj) -> str:
    """Whether a node is ready, and whether it takes pods."""
    ready = find(node.get("status", {}).get("conditions", ()), "Ready")
    word = "Unknown" if ready is None else "Ready" if ready["status"] == "True" else "NotReady"
    return word + (",SchedulingDisabled" if node.get("spec", {}).get("unschedulable") else "")


def node_roles(node: Obj) -> str:
    """The roles that labels give a node."""
    labels = node["metadata"].get("labels", {})
    roles = {key.removeprefix(_ROLE_LABEL) for key in labels if key.startswith(_ROLE_LABEL)}
    roles.add(labels.get("kubernetes.io/role", ""))
    return ",".join(sorted(roles - {""})) or NONE


def node_kernel(node: Obj) -> str:
    """The kernel and what it runs on."""
    info = node.get("status", {}).get("nodeInfo", {})
    architecture = f" ({info['architecture']})" if info.get("architecture") else ""
    return (info.get("kernelVersion") or "<unknown>") + architecture


def service_external_ip(service: Obj) -> str:
    """Where a service is reached from outside."""
    spec = service["spec"]
    addresses: list[str] = list(spec.get("externalIPs", ()))
    if spec.get("type") == "LoadBalancer":
        ingress = service.get("status", {}).get("loadBalancer", {}).get("ingress", ())
        addresses = [i.get("ip") or i.get("hostname", "") for i in ingress] + addresses
        return ",".join(addresses) or "<pending>"
    return ",".join(addresses) or NONE


def service_ports(service: Obj) -> str:
    """`80:30080/TCP,443/TCP`."""

    def text(port: Obj) -> str:
        node = f":{port['nodePort']}" if port.get("nodePort") else ""
        return f"{port['port']}{node}/{port.get('protocol', 'TCP')}"

    return ",".join(map(text, service["spec"].get("ports", ()))) or NONE


def event_first_seen(event: Obj) -> str:
    """How long ago it happened for the first time."""
    return since(event.get("firstTimestamp") or event.get("eventTime"))


def event_last_seen(event: Obj) -> str:
    """How long ago it happened."""
    last = (event.get("series") or {}).get("lastObservedTime") or event.get("lastTimestamp")
    return since(last) if last else event_first_seen(event)


def event_object(event: Obj) -> str:
    """What it happened to."""
    about = event.get("involvedObject", {})
    return "/".join(part for part in (about.get("kind", "").lower(), about.get("name", "")) if part)


def event_source(event: Obj) -> str:
    """Who said so, and where."""
    source = event.get("source", {})
    component = source.get("component") or event.get("reportingComponent", "")
    host = source.get("host") or event.get("reportingInstance", "")
    return f"{component}, {host}" if host else str(component)


def event_message(event: Obj) -> str:
    """What happened."""
    return str(event.get("message", "")).strip()


def event_count(event: Obj) -> int:
    """How often it happened."""
    return int((event.get("series") or {}).get("count") or event.get("count") or 1)


def bound_role(binding: Obj) -> str:
    """The role that a binding gives."""
    return f"{binding['roleRef'].get('kind', '')}/{binding['roleRef'].get('name', '')}"


def subjects(kind: str, binding: Obj) -> str:
    """Those of one kind to whom a binding gives a role."""
    chosen = [s for s in binding.get("subjects", ()) if s.get("kind") == kind]
    return ", ".join(f"{s['namespace']}/{s['name']}" if kind == "ServiceAccount" else s["name"] for s in chosen)


def access_modes(section: str, obj: Obj) -> str:
    """`RWO,RWX`."""
    modes = obj.get(section, {}).get("accessModes", ())
    return ",".join(short for mode, short in _ACCESS_MODES.items() if mode in modes)


def volume_phase(obj: Obj) -> Any:
    """The phase of a volume or claim."""
    return "Terminating" if obj["metadata"].get("deletionTimestamp") else obj.get("status", {}).get("phase", "")


def volume_claim(volume: Obj) -> str:
    """The claim that has a volume."""
    claim = volume["spec"].get("claimRef")
    return f"{claim.get('namespace', '')}/{claim.get('name', '')}" if claim else ""


def class_name(storage_class: Obj) -> str:
    """The name of a class, and whether it is the default one."""
    meta = storage_class["metadata"]
    default = meta.get("annotations", {}).get("storageclass.kubernetes.io/is-default-class") == "true"
    return f"{meta['name']} (default)" if default else str(meta["name"])


def deployment_ready(deployment: Obj) -> str:
    """`1/3`."""
    return f"{deployment.get('status', {}).get('readyReplicas', 0)}/{deployment['spec'].get('replicas', 0)}"


def job_status(job: Obj) -> str:
    """How far a job is."""
    true = {c["type"] for c in job.get("status", {}).get("conditions", ()) if c["status"] == "True"}
    return next((word for word in ("Complete", "Failed", "Suspended") if word in true), "Running")


def job_completions(job: Obj) -> str:
    """`1/3`; `0/1 of 2` where nobody said how many have to succeed."""
    spec, done = job["spec"], job.get("status", {}).get("succeeded", 0)
    if "completions" in spec:
        return f"{done}/{spec['completions']}"
    return f"{done}/1 of {spec['parallelism']}" if spec.get("parallelism", 1) > 1 else f"{done}/1"


def job_duration(job: Obj) -> str:
    """How long it took, or takes by now."""
    status = job.get("status", {})
    if "completionTime" not in status:
        return since(status["startTime"]) if "startTime" in status else ""
    return human(times.seconds(status["completionTime"]) - times.seconds(status["startTime"]))


def api_service(api_service: Obj) -> str:
    """The service that answers for a group."""
    service = api_service["spec"].get("service")
    return f"{service['namespace']}/{service['name']}" if service else "Local"


def availability(api_service: Obj) -> str:
    """Whether it answers."""
    available = find(api_service.get("status", {}).get("conditions", ()), "Available") or {"status": "Unknown"}
    why = f" ({available['reason']})" if available["status"] != "True" and available.get("reason") else ""
    return f"{available['status']}{why}"


class Summary(NamedTuple):
    """What `kubectl get pods` says of one pod."""

    word: str
    ready: str  # 1/2
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
        f"{len(ready)}/{len(spec.get('containers', ())) + len(sidecars)}",
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
    return summarize(pod).ready


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
