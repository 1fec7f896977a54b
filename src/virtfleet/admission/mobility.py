"""Whether the VM that a new migration names can move now, by what the cluster has of it."""

from __future__ import annotations

from collections.abc import Sequence

from virtfleet.admission.findings import Findings
from virtfleet.admission.sections import Section, read
from virtfleet.api import names
from virtfleet.api.view import read as read_view
from virtfleet.api.vmi import VirtualMachineInstance as VMI
from virtfleet.hypervisors import features, registry
from virtfleet.installation import Installation


def check_migration_target(
    migration: Section, vmi: Section | None, others: Sequence[Section], cluster: Installation, findings: Findings
) -> None:
    """What a new migration finds in the cluster: its VMI, and other migrations of that VMI.

    Tools of KubeVirt tell the refusals apart by how they begin.
    """
    name = read(migration, "spec").get("vmiName")
    if vmi is None:
        namespace = read(migration, "metadata").get("namespace") or "default"
        findings.not_found("spec.vmiName", f'the VMI "{namespace}/{name}" does not exist; check the name')
        return
    status = read(vmi, "status")
    if status.get("phase") in names.FINAL:
        findings.invalid("spec.vmiName", f"Cannot migrate VMI in finalized state: {name} has ended; start its VM again")
    decentralized = any(read(migration, "spec").get(f) is not None for f in ("sendTo", "receive"))
    for condition in status.get("conditions") or ():
        blocked = condition.get("type") == names.VMICondition.LIVE_MIGRATABLE and condition.get("status") == "False"
        reason = condition.get("reason") or names.NotMigratable.OTHER
        copied = reason == names.NotMigratable.DISKS and decentralized
        if blocked and not copied:
            said = f"Cannot migrate VMI, Reason: {reason}, Message: {condition.get('message') or ''}"
            findings.invalid("spec.vmiName", said)
            break
    else:
        if why := _stays(vmi, cluster):
            said = f"Cannot migrate VMI, Reason: {names.NotMigratable.OTHER}, Message: {why}"
            findings.invalid("spec.vmiName", said)
    for other in others:
        if read(other, "status").get("phase") not in names.FINAL:
            already = f"{read(other, 'metadata').get('name')} moves VMI {name}; wait, or delete that one"
            findings.invalid("spec.vmiName", f"in-flight migration detected. spec.vmiName: {already}")


def _stays(vmi: Section, cluster: Installation) -> str:
    """Why a VM never moves that has not said so yet: its hypervisor may not be able to."""
    view = read_view(VMI, vmi)
    chosen = view.metadata.annotations.get(names.LAUNCHER_HYPERVISOR) or cluster.fleet.launcher(vmi).hypervisor
    if chosen not in registry.names():
        return ""
    obstacles = features.obstacles(registry.get(chosen), view)
    return next((o.message for o in obstacles if o.reason == names.NotMigratable.OTHER), "")
