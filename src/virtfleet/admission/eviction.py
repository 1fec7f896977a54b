"""What becomes of the eviction of a launcher's Pod: the VM moves instead, stays, or is shut down. Pure.

Answers are KubeVirt's: a VM that is to move, or that somebody else is to move, is marked as leaving its node, and the
eviction is refused as one too many, so that a drain asks again until the Pod has gone. The words about an evacuation
that was begun are what the descheduler looks for.
"""

from __future__ import annotations

from dataclasses import dataclass

from virtfleet.admission.sections import Obj, read
from virtfleet.api import conditions, kinds, names
from virtfleet.api.names import FINAL, VMICondition
from virtfleet.installation import Installation

_DESCHEDULER = "sigs.k8s.io/descheduler"


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether the Pod may go now, and why not."""

    allowed: bool
    message: str = ""
    leaves: str = ""
    """The node that its VMI is to be marked as leaving."""


_GRANTED = Verdict(True)


def owner(pod: Obj) -> tuple[str, str]:
    """Name and UID of the VMI whose launcher a Pod is; empty where it is none that still runs."""
    meta = pod["metadata"]
    launcher = read(meta, "labels").get(names.APP_LABEL) == names.LAUNCHER_APP
    if not launcher or meta.get("deletionTimestamp") or read(pod, "status").get("phase") in FINAL:
        return "", ""
    owners = (o for o in meta.get("ownerReferences") or () if o.get("controller"))
    return next(((o["name"], o["uid"]) for o in owners if o["kind"] == kinds.VMI.kind), ("", ""))


def judge(pod: Obj, vmi: Obj, cluster: Installation) -> Verdict:
    """The verdict on a Pod that its owner reference says to be the VMI's.

    Anybody may write such a reference. The Pods that a guest can be in are those that the VMI's status names.
    """
    meta, status = vmi["metadata"], read(vmi, "status")
    node = read(status, "activePods").get(pod["metadata"]["uid"])
    strategy = read(vmi, "spec").get("evictionStrategy") or cluster.eviction_strategy
    if node is None or status.get("phase") in FINAL or strategy == "None":
        return _GRANTED
    fixed = conditions.find(status.get("conditions") or [], VMICondition.LIVE_MIGRATABLE)
    if strategy != "External" and not (fixed and fixed["status"] == "True"):
        return _GRANTED if strategy == "LiveMigrateIfPossible" else Verdict(False, _stuck(meta["name"], fixed))
    evacuation = f'Eviction triggered evacuation of VMI "{meta["namespace"]}/{meta["name"]}"'
    here = status.get("nodeName")
    if here and status.get("evacuationNodeName") == here:
        return Verdict(False, f"Evacuation in progress: {evacuation}")
    if node != here:
        return Verdict(False, f"VMI {meta['name']} is migrating, and both of its pods stay until that is over")
    return Verdict(False, evacuation, here)


def _stuck(name: str, fixed: Obj | None) -> str:
    why = ": ".join(filter(None, ((fixed or {}).get("reason"), (fixed or {}).get("message"))))
    return (
        f"VMI {name} is configured with an eviction strategy but is not live-migratable"
        f" ({why or 'its guest has not started yet'}); stop the VM, or wait until it can migrate"
    )


def dry_run(request: Obj) -> bool:
    """Whether an eviction is only tried out."""
    return bool(request.get("dryRun")) or bool(read(request, "object", "deleteOptions").get("dryRun"))


def marks(vmi: Obj, verdict: Verdict, eviction: Obj) -> Obj:
    """The patch by which a VMI is to leave its node."""
    by_descheduler = read(eviction, "metadata", "annotations").get("requested-by") == _DESCHEDULER
    source = {names.EVICTION_SOURCE: names.DESCHEDULER if by_descheduler else None}
    seen = {"resourceVersion": vmi["metadata"]["resourceVersion"], "annotations": source}
    return {"metadata": seen, "status": {"evacuationNodeName": verdict.leaves}}
