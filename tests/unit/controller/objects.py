"""Small objects as the controllers keep them, with what a test wants to say about them."""

from __future__ import annotations

from typing import Any

import orjson

from virtfleet.api import names
from virtfleet.controller.launcherpod import LauncherPod, decode_pod
from virtfleet.controller.records.cluster import Claim, NodeRecord, decode_claim, decode_node
from virtfleet.controller.records.instance import Instance, decode_instance
from virtfleet.controller.records.vm import Vm, decode_vm

NOW = 1_800_000_000.0
THEN = "2026-01-01T00:00:00Z"
VMI_UID = "0f6a1a24-4061-4607-8bf4-a39963d0c589"


def meta(name: str, uid: str, deleting: bool, **more: Any) -> dict[str, Any]:
    made = {"name": name, "namespace": "ns", "uid": uid, "resourceVersion": "7", "creationTimestamp": THEN, **more}
    return {**made, "deletionTimestamp": THEN} if deleting else made


def vmi(
    phase: str = "Pending",
    *,
    uid: str = VMI_UID,
    name: str = "vm",
    deleting: bool = False,
    through: tuple[str, ...] = (),
    pods: dict[str, str] | None = None,
    spec: dict[str, Any] | None = None,
    conditions: list[dict[str, Any]] | None = None,
    status: dict[str, Any] | None = None,
    **metadata: Any,
) -> Instance:
    """`through` are the phases that it went through, `pods` those that its status names."""
    metadata.setdefault("finalizers", [names.VMI_FINALIZER])
    transitions = [{"phase": p, "phaseTransitionTimestamp": THEN} for p in through]
    told = {"phase": phase, "phaseTransitionTimestamps": transitions, "conditions": conditions or [], **(status or {})}
    if pods:
        told |= {"activePods": pods, "nodeName": next(iter(pods.values()))}
    obj = {"metadata": meta(name, uid, deleting, **metadata), "spec": spec or {}, "status": told}
    return decode_instance(orjson.dumps(obj))


def pod(
    phase: str = "Pending",
    *,
    uid: str = "pod-1",
    node: str = "",
    deleting: bool = False,
    containers: dict[str, dict[str, Any]] | None = None,
    conditions: list[dict[str, Any]] | None = None,
    status: dict[str, Any] | None = None,
    owner: str = VMI_UID,
    arguments: list[str] | None = None,
    gates: list[str] | None = None,
    **metadata: Any,
) -> LauncherPod:
    """`containers` are their states by name; a Pod that runs has a compute container that does."""
    if containers is None:
        containers = {"compute": {"running": {}}} if phase == "Running" else {}
    reference = {"kind": "VirtualMachineInstance", "name": "vm", "uid": owner, "controller": True}
    obj = {
        "metadata": meta("virt-launcher-vm", uid, deleting, ownerReferences=[reference], **metadata),
        "spec": {
            "nodeName": node,
            "containers": [{"name": "compute", "image": "launcher:1", "args": arguments or []}],
            "readinessGates": [{"conditionType": gate} for gate in gates or ()],
        },
        "status": {
            "phase": phase,
            "conditions": conditions or [],
            "containerStatuses": [
                {"name": n, "ready": "running" in state, "state": state} for n, state in containers.items()
            ],
            **(status or {}),
        },
    }
    return decode_pod(orjson.dumps(obj))


def condition(kind: str, status: str, reason: str = "", message: str = "") -> dict[str, Any]:
    return {"type": kind, "status": status, "reason": reason, "message": message, "lastTransitionTime": THEN}


def vm(
    strategy: str = "Always",
    *requests: dict[str, Any],
    deleting: bool = False,
    status: dict[str, Any] | None = None,
    spec: dict[str, Any] | None = None,
    **metadata: Any,
) -> Vm:
    told = {**(status or {}), **({"stateChangeRequests": list(requests)} if requests else {})}
    metadata.setdefault("generation", 1)
    wanted = {"runStrategy": strategy, "template": {"spec": {"domain": {}}}} if spec is None else spec
    return decode_vm(
        orjson.dumps({"metadata": meta("vm", "vm-uid", deleting, **metadata), "spec": wanted, "status": told})
    )


START = {"action": "Start"}


def stop(uid: str = VMI_UID) -> dict[str, Any]:
    return {"action": "Stop", "uid": uid}


def claim(name: str, *, phase: str = "Bound", mode: str = "Filesystem") -> Claim:
    requests = {"requests": {"storage": "1Gi"}}
    spec = {"volumeMode": mode, "accessModes": ["ReadWriteOnce"], "resources": requests}
    obj = {
        "metadata": meta(name, name, False),
        "spec": spec,
        "status": {"phase": phase, "capacity": {"storage": "1Gi"}},
    }
    return decode_claim(orjson.dumps(obj))


def node(heartbeat: str | None, *, schedulable: str = "true") -> NodeRecord:
    notes = {} if heartbeat is None else {names.HANDLER_HEARTBEAT: heartbeat}
    obj = {"metadata": {"name": "node1", "labels": {names.SCHEDULABLE: schedulable}, "annotations": notes}}
    return decode_node(orjson.dumps(obj))
