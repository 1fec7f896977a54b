"""What the columns of built-in kinds show where a path alone does not do: functions that columns.yaml names.

Those that columns.yaml gives something to show (`of`) take it first.
"""

from __future__ import annotations

from typing import Any

from virtfleet.api.conditions import find
from virtfleet.api.selectors import from_label_selector
from virtfleet.api.times import seconds
from virtfleet.kube.resource import Obj
from virtfleet.local.apiserver.kinds.registry import at
from virtfleet.local.apiserver.tables import jsonpath
from virtfleet.local.apiserver.tables.ages import human, since

NONE = "<none>"
_SHOWN = 3  # of a list of addresses
_ACCESS_MODES = {"ReadWriteOnce": "RWO", "ReadOnlyMany": "ROX", "ReadWriteMany": "RWX", "ReadWriteOncePod": "RWOP"}
_ROLE_LABEL = "node-role.kubernetes.io/"


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
    if "startTime" not in status:
        return ""
    if "completionTime" not in status:
        return since(status["startTime"])
    return human(seconds(status["completionTime"]) - seconds(status["startTime"]))


def api_service(api_service: Obj) -> str:
    """The service that answers for a group."""
    service = api_service["spec"].get("service")
    return f"{service['namespace']}/{service['name']}" if service else "Local"


def availability(api_service: Obj) -> str:
    """Whether it answers."""
    available = find(api_service.get("status", {}).get("conditions", ()), "Available")
    if available is None:
        return "Unknown"
    return "True" if available["status"] == "True" else f"{available['status']} ({available.get('reason', '')})"
