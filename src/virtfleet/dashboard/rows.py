"""What lists show of each kind: a few fields of every object, so that ten thousand VMs fit a browser. Pure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from virtfleet.api import names
from virtfleet.kube.resource import (
    CLUSTER_INSTANCETYPES,
    CLUSTER_PREFERENCES,
    EVENTS,
    KUBEVIRTS,
    NAMESPACES,
    NETWORK_ATTACHMENTS,
    NODES,
    PERSISTENT_VOLUME_CLAIMS,
    PODS,
    VMI_MIGRATIONS,
    VMIS,
    VMS,
    Obj,
    Resource,
)

_LONGEST = 2000
"""Characters of a message that people are shown of what anybody can write."""


def _part(obj: Obj, *path: str) -> Any:
    """What is there, or nothing: objects of a real cluster may lack any of it."""
    for step in path:
        obj = obj.get(step) if isinstance(obj, dict) else None  # type: ignore[assignment]
    return obj


def _about(obj: Obj) -> Obj:
    meta = obj["metadata"]
    return {
        "name": meta["name"],
        "namespace": meta.get("namespace", ""),
        "uid": meta.get("uid", ""),
        "created": meta.get("creationTimestamp", ""),
        "deleting": "deletionTimestamp" in meta,
    }


def _size(spec: Obj) -> Obj:
    """CPUs and memory of an instance's spec, as far as it says so."""
    cpu = _part(spec, "domain", "cpu") or {}
    cores = (cpu.get("cores") or 1) * (cpu.get("sockets") or 1) * (cpu.get("threads") or 1)
    requests = _part(spec, "domain", "resources", "requests") or {}
    return {
        "cpus": cores if cpu else requests.get("cpu") or 1,
        "memory": _part(spec, "domain", "memory", "guest") or requests.get("memory") or "",
        "hypervisor": spec.get("hypervisor") or "",
    }


def _conditions(obj: Obj) -> dict[str, str]:
    return {c["type"]: c.get("status", "") for c in _part(obj, "status", "conditions") or () if "type" in c}


def _vm(obj: Obj) -> Obj:
    spec = obj.get("spec") or {}
    conditions = _part(obj, "status", "conditions") or ()
    return {
        **_size(_part(spec, "template", "spec") or {}),
        "status": _part(obj, "status", "printableStatus") or "",
        "strategy": spec.get("runStrategy") or ("Always" if spec.get("running") else "Halted"),
        "instancetype": _part(spec, "instancetype", "name") or "",
        "why": next((str(c.get("message", ""))[:_LONGEST] for c in conditions if c.get("type") == "Failure"), ""),
    }


def _vmi(obj: Obj) -> Obj:
    meta, status = obj["metadata"], obj.get("status") or {}
    labels, annotations = meta.get("labels") or {}, meta.get("annotations") or {}
    conditions, size = _conditions(obj), _size(obj.get("spec") or {})
    move = status.get("migrationState") or {}
    return {
        **size,
        "cpus": (_part(status, "currentCPUTopology", "cores") or 0)
        * (_part(status, "currentCPUTopology", "sockets") or 1)
        * (_part(status, "currentCPUTopology", "threads") or 1)
        or size["cpus"],
        "memory": _part(status, "memory", "guestCurrent") or size["memory"],
        "hypervisor": annotations.get(names.LAUNCHER_HYPERVISOR) or size["hypervisor"],
        "pool": labels.get(names.HANDLER_POOL, ""),
        "phase": status.get("phase", ""),
        "node": status.get("nodeName", ""),
        "ip": next((i["ipAddress"] for i in status.get("interfaces") or () if i.get("ipAddress")), ""),
        "ready": conditions.get("Ready") == "True",
        "paused": conditions.get("Paused") == "True",
        "migratable": conditions.get("LiveMigratable") == "True",
        "outdated": names.OUTDATED_LAUNCHER_IMAGE in labels,
        "moving": bool(move) and not move.get("completed"),
        "target": "" if not move or move.get("completed") else move.get("targetNode", ""),
        "owned": any(o.get("kind") == VMS.kind for o in meta.get("ownerReferences") or ()),
    }


def _node(obj: Obj) -> Obj:
    meta, status = obj["metadata"], obj.get("status") or {}
    labels = meta.get("labels") or {}
    works = [k.removeprefix(names.HYPERVISOR_WORKS) for k in labels if k.startswith(names.HYPERVISOR_WORKS)]
    allocatable = status.get("allocatable") or {}
    return {
        "labels": labels,
        "hypervisors": sorted(works),
        "schedulable": labels.get(names.SCHEDULABLE) == "true",
        "cordoned": bool(_part(obj, "spec", "unschedulable")),
        "ready": _conditions(obj).get("Ready") == "True",
        "cpu": allocatable.get("cpu", ""),
        "memory": allocatable.get("memory", ""),
        "devices": {k: v for k, v in allocatable.items() if "/" in k and not k.startswith(names.DEVICE_PREFIX)},
        "handler": (meta.get("annotations") or {}).get(names.HANDLER_VERSION, ""),
    }


def _pod(obj: Obj) -> Obj:
    status = obj.get("status") or {}
    containers = status.get("containerStatuses") or ()
    return {
        "node": _part(obj, "spec", "nodeName") or "",
        "phase": status.get("phase", ""),
        "ready": bool(containers) and all(c.get("ready") for c in containers),
        "image": next((c.get("image", "") for c in _part(obj, "spec", "containers") or ()), ""),
        "pool": (obj["metadata"].get("labels") or {}).get(names.HANDLER_POOL, ""),
    }


def _migration(obj: Obj) -> Obj:
    state = _part(obj, "status", "migrationState") or {}
    return {
        "vmi": _part(obj, "spec", "vmiName") or "",
        "phase": _part(obj, "status", "phase") or "",
        "from": state.get("sourceNode", ""),
        "to": state.get("targetNode", ""),
        "began": state.get("startTimestamp", ""),
        "ended": state.get("endTimestamp", ""),
        "mode": state.get("mode", ""),
        "why": str(state.get("failureReason", ""))[:_LONGEST],
    }


def _event(obj: Obj) -> Obj:
    return {
        "type": obj.get("type", ""),
        "reason": obj.get("reason", ""),
        "message": str(obj.get("message", ""))[:_LONGEST],
        "count": obj.get("count") or _part(obj, "series", "count") or 1,
        "last": obj.get("lastTimestamp") or obj.get("eventTime") or obj["metadata"].get("creationTimestamp", ""),
        "from": _part(obj, "source", "component") or obj.get("reportingComponent", ""),
        "kind": _part(obj, "involvedObject", "kind") or "",
    }


def whole(obj: Obj) -> Obj:
    """An object for who edits it: all of it but the books of the API server."""
    meta = {k: v for k, v in obj["metadata"].items() if k != "managedFields"}
    return {**obj, "metadata": meta}


def _kubevirt(obj: Obj) -> Obj:
    return {"object": whole(obj)}


def _claim(obj: Obj) -> Obj:
    status = obj.get("status") or {}
    return {"size": _part(status, "capacity", "storage") or "", "phase": status.get("phase") or ""}


def _type(obj: Obj) -> Obj:
    spec = obj.get("spec") or {}
    return {
        "cpus": _part(spec, "cpu", "guest") or 0,
        "memory": _part(spec, "memory", "guest") or "",
        "title": (obj["metadata"].get("annotations") or {}).get("openshift.io/display-name", ""),
    }


@dataclass(frozen=True, slots=True)
class Followed:
    """A kind that pages follow, and what they see of it."""

    resource: Resource
    more: Callable[[Obj], Obj] = lambda _: {}
    labels: str = ""

    def row(self, obj: Obj) -> Obj:
        """What they see of one object."""
        return _about(obj) | self.more(obj)


FOLLOWED = {
    "vms": Followed(VMS, _vm),
    "vmis": Followed(VMIS, _vmi),
    "nodes": Followed(NODES, _node),
    "handlers": Followed(PODS, _pod, f"{names.APP_LABEL}=virt-handler"),
    "migrations": Followed(VMI_MIGRATIONS, _migration),
    "events": Followed(EVENTS, _event),
    KUBEVIRTS.plural: Followed(KUBEVIRTS, _kubevirt),
    "namespaces": Followed(NAMESPACES),
    "claims": Followed(PERSISTENT_VOLUME_CLAIMS, _claim),
    "networks": Followed(NETWORK_ATTACHMENTS),
    "instancetypes": Followed(CLUSTER_INSTANCETYPES, _type),
    "preferences": Followed(CLUSTER_PREFERENCES, _type),
}
WHOLE = ("vms", "vmis")
"""Kinds of which one object by name is shown whole."""
