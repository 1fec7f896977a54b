"""What a change of the KubeVirt object would do to VMs and handlers, before it is applied. Pure.

The decisions are those of the components: admission's verdict, the operator's DaemonSets, the controller's outlook for
each VM. Nothing moves a VM that is not in here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from virtfleet.admission import kubevirt as admission
from virtfleet.admission import kubevirt_pools
from virtfleet.admission.findings import Findings
from virtfleet.api.kinds import REPLICA_SET
from virtfleet.api.names import Phase
from virtfleet.cli.look.fleetview import FleetView
from virtfleet.cli.look.poolreport import named
from virtfleet.controller.workloads.outlook import Fate, outlook
from virtfleet.installation import Installation
from virtfleet.kube.resource import VMS
from virtfleet.operator.handlers import CONTENT, VIRT_HANDLER
from virtfleet.operator.render import render
from virtfleet.pools.model import owner

STOPS = "stops"
_Key = tuple[str, str]
DEEDS = (Fate.MOVES, Fate.RESTARTS, STOPS, Fate.STAYS)


def plan(view: FleetView, wanted: Mapping[str, Any], vms: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """`wanted` is the KubeVirt object to be, `vms` are the VMs."""
    new = {**view.kubevirt, "spec": wanted.get("spec") or {}}
    after = Installation(new)
    refused = _refused(new, view)
    if refused:
        return {"refused": refused, "handlers": [], "vms": [], "counts": {}}
    strategies = {_key(vm): (vm.get("spec") or {}) for vm in vms}
    vms = [said for vmi in view.instances if (said := _vm(vmi, after, strategies))]
    vms.sort(key=lambda vm: (DEEDS.index(vm["does"]), vm["namespace"], vm["name"]))
    running = sum(_running(vmi) for vmi in view.instances)
    counts = Counter(str(vm["does"]) for vm in vms)
    counts["up to date"] = running - len(vms)
    return {
        "refused": [],
        "handlers": _handlers(view, Installation(view.kubevirt), after),
        "vms": vms,
        "counts": counts,
    }


def _refused(new: dict[str, Any], view: FleetView) -> list[str]:
    findings = Findings()
    admission.check(new, findings, view.kubevirt)
    kubevirt_pools.check_removal(new, view.kubevirt, view.instances, findings)
    return [f"{cause.field}: {cause.message}" for cause in findings.causes]


def _vm(vmi: dict[str, Any], after: Installation, vms: Mapping[_Key, Mapping[str, Any]]) -> dict[str, Any] | None:
    if not _running(vmi) or not (expected := outlook(vmi, after)):
        return None
    does, why = str(expected.fate), expected.why
    if expected.fate is Fate.RESTARTS and (lost := _stays_down(vmi, vms)):
        does, why = STOPS, f"{why}; {lost}"
    metadata, status = vmi["metadata"], vmi["status"]
    return {
        "namespace": metadata.get("namespace", "default"),
        "name": metadata["name"],
        "node": status.get("nodeName", ""),
        "pool": named(expected.launcher.pool),
        "image": status["launcherContainerImageVersion"],
        "newImage": expected.launcher.image,
        "does": does,
        "why": why,
    }


def _stays_down(vmi: Mapping[str, Any], vms: Mapping[_Key, Mapping[str, Any]]) -> str:
    """Why nobody starts it again; empty where somebody does."""
    owners = [o for o in vmi["metadata"].get("ownerReferences") or () if o.get("controller")]
    if any(o["kind"] == REPLICA_SET.kind for o in owners):
        return ""
    if not any(o["kind"] == VMS.kind for o in owners):
        return "it belongs to no VM that would start it again"
    spec = vms.get(_key(vmi)) or {}
    strategy = spec.get("runStrategy") or ("Always" if spec.get("running") else "Halted")
    return "" if strategy == "Always" else f"its VM has the runStrategy {strategy} and does not start it again"


def _handlers(view: FleetView, before: Installation, after: Installation) -> list[dict[str, str]]:
    """Nodes that get another handler: that of another pool, or a new one of their own."""
    old, new = _contents(before), _contents(after)
    changes = []
    for node in view.nodes or ():
        labels = node["metadata"].get("labels") or {}
        was, will = (_daemon_set(installation, labels) for installation in (before, after))
        if (was, old.get(was)) != (will, new.get(will)):
            changes.append({"node": node["metadata"]["name"], "from": was, "to": will})
    return changes


def _daemon_set(installation: Installation, labels: Mapping[str, str]) -> str:
    pool = owner(installation.fleet.pools, labels)
    return pool.daemon_set if pool else VIRT_HANDLER


def _contents(installation: Installation) -> dict[str, str]:
    sets = [obj for obj in render(installation) if obj["kind"] == "DaemonSet"]
    return {ds["metadata"]["name"]: ds["spec"]["template"]["metadata"]["annotations"][CONTENT] for ds in sets}


def _running(vmi: Mapping[str, Any]) -> bool:
    return (vmi.get("status") or {}).get("phase") == Phase.RUNNING and "deletionTimestamp" not in vmi["metadata"]


def _key(obj: Mapping[str, Any]) -> _Key:
    return obj["metadata"].get("namespace", "default"), obj["metadata"]["name"]
