"""VMs, replica sets and migrations."""

from __future__ import annotations

from typing import Any

import pytest

from virtfleet.admission.findings import Findings
from virtfleet.admission.mobility import check_migration_target
from virtfleet.admission.review import complete, complete_update, review, review_update
from virtfleet.admission.updates import Requester

from .machines import BASE, GONE, cluster, edited, verdict

VM: dict[str, Any] = {
    "apiVersion": "kubevirt.io/v1",
    "kind": "VirtualMachine",
    "metadata": {"name": "vm", "namespace": "default"},
    "spec": {"runStrategy": "Always", "template": {"metadata": {"labels": {"app": "web"}}, "spec": BASE["spec"]}},
}
REPLICA_SET: dict[str, Any] = {
    "apiVersion": "kubevirt.io/v1",
    "kind": "VirtualMachineInstanceReplicaSet",
    "metadata": {"name": "rs", "namespace": "default"},
    "spec": {
        "replicas": 2,
        "selector": {"matchLabels": {"app": "web"}},
        "template": {"metadata": {"labels": {"app": "web"}}, "spec": BASE["spec"]},
    },
}
MIGRATION: dict[str, Any] = {
    "apiVersion": "kubevirt.io/v1",
    "kind": "VirtualMachineInstanceMigration",
    "metadata": {"name": "move", "namespace": "default"},
    "spec": {"vmiName": "vm"},
}
TEMPLATE = "spec.template.spec"
DATA_VOLUME = {"metadata": {"name": "data"}, "spec": {"storage": {}, "source": {"blank": {}}}}


def fields(obj: dict[str, Any], **configuration: Any) -> set[str]:
    return {cause.field for cause in verdict(obj, cluster(**configuration)).causes}


@pytest.mark.parametrize("obj", [VM, REPLICA_SET, MIGRATION], ids=lambda obj: obj["kind"])
def test_sound_objects_are_accepted(obj: dict[str, Any]) -> None:
    assert fields(obj) == set()


@pytest.mark.parametrize(
    ("edits", "field"),
    [
        ({"spec.runStrategy": GONE}, "spec.running"),
        ({"spec.running": True}, "spec.running"),
        ({"spec.runStrategy": "Sometimes"}, "spec.runStrategy"),
        ({"spec.template": GONE}, "spec.template"),
        ({f"{TEMPLATE}.hostname": "No_"}, f"{TEMPLATE}.hostname"),
        ({f"{TEMPLATE}.hypervisor": "parallels"}, f"{TEMPLATE}.hypervisor"),
        ({f"{TEMPLATE}.domain.devices.disks[0].disk.bus": "ide"}, f"{TEMPLATE}.domain.devices.disks[0].disk.bus"),
        ({f"{TEMPLATE}.domain.cpu": {"sockets": 4, "maxSockets": 2}}, f"{TEMPLATE}.domain.cpu.sockets"),
        ({f"{TEMPLATE}.domain.memory.maxGuest": "1537Mi"}, f"{TEMPLATE}.domain.memory.guest"),
        ({f"{TEMPLATE}.domain.devices.interfaces[0].slirp": {}}, "spec.domain.devices.interfaces[0].slirp"),
        ({"spec.template.metadata.labels": {"kubevirt.io/nodeName": "n"}}, "spec.template.metadata.labels"),
        ({"spec.dataVolumeTemplates": [DATA_VOLUME]}, "spec.dataVolumeTemplate[0]"),
        ({"spec.dataVolumeTemplates": [{"metadata": {}, "spec": {}}]}, "spec.dataVolumeTemplate[0].name"),
        (
            {"spec.dataVolumeTemplates": [edited(DATA_VOLUME, {"metadata.namespace": "other"})]},
            "spec.dataVolumeTemplates[0]",
        ),
        (
            {"spec.dataVolumeTemplates": [edited(DATA_VOLUME, {"spec.storage": GONE})]},
            "spec.dataVolumeTemplate[0].PVC.Storage",
        ),
        (
            {"spec.dataVolumeTemplates": [edited(DATA_VOLUME, {"spec.source": GONE})]},
            "spec.dataVolumeTemplate[0].source.sourceRef",
        ),
        (
            {"spec.dataVolumeTemplates": [edited(DATA_VOLUME, {"spec.source.http": {"url": "x"}})]},
            "spec.dataVolumeTemplate[0].source",
        ),
    ],
)
def test_wrong_vms_are_refused(edits: dict[str, Any], field: str) -> None:
    assert field in fields(edited(VM, edits))


def test_a_data_volume_that_is_used_is_accepted() -> None:
    edits = {
        "spec.dataVolumeTemplates": [DATA_VOLUME],
        f"{TEMPLATE}.volumes[1]": {"name": "d", "dataVolume": {"name": "data"}},
    }
    assert fields(edited(VM, edits)) == set()


def test_a_vm_may_leave_memory_to_an_instance_type() -> None:
    assert fields(edited(VM, {f"{TEMPLATE}.domain.memory": GONE})) == set()


def test_the_old_switch_works_with_a_warning() -> None:
    found = verdict(edited(VM, {"spec.runStrategy": GONE, "spec.running": True}))
    assert found.allowed
    assert "runStrategy" in found.warnings[0]


def test_a_vm_cannot_change_under_a_snapshot() -> None:
    stored, _ = complete(VM, cluster())
    during = edited(stored, {"status.snapshotInProgress": "snap"})
    assert review_update(during, stored, cluster()).allowed
    changed = edited(during, {f"{TEMPLATE}.volumes[0].containerDisk.image": "other:v2"})
    assert {c.field for c in review_update(changed, stored, cluster()).causes} == {"spec"}
    stopped = edited(during, {"spec.runStrategy": "Halted"})
    assert {c.field for c in review_update(stopped, stored, cluster()).causes} == {"spec"}


def test_a_vm_that_is_being_deleted_can_always_lose_its_finalizer() -> None:
    broken = edited(VM, {"spec.runStrategy": "Sometimes", "metadata.deletionTimestamp": "2026-01-01T00:00:00Z"})
    assert review_update(broken, VM, cluster()).allowed


def test_an_update_keeps_the_machine_of_a_vm_settled() -> None:
    updated = complete_update(VM, VM, cluster())
    assert updated["spec"]["template"]["spec"]["domain"]["machine"] == {"type": "q35"}
    assert "firmware" not in updated["spec"]["template"]["spec"]["domain"], "identity is given at birth only"


@pytest.mark.parametrize(
    ("edits", "field"),
    [
        ({"spec.selector": {"matchLabels": {"app": "other"}}}, "spec.selector"),
        ({"spec.selector": {"matchExpressions": [{"key": "app", "operator": "Like"}]}}, "spec.selector"),
        ({"spec.template": GONE}, "spec.template"),
        ({"spec.replicas": -1}, "spec.replicas"),
        ({f"{TEMPLATE}.subdomain": "No_"}, f"{TEMPLATE}.subdomain"),
    ],
)
def test_wrong_replica_sets_are_refused(edits: dict[str, Any], field: str) -> None:
    assert field in fields(edited(REPLICA_SET, edits))


def test_a_migration_names_its_vmi_and_leaves_priority_to_the_controller() -> None:
    assert fields(edited(MIGRATION, {"spec.vmiName": ""})) == {"spec.vmiName"}
    urgent = edited(MIGRATION, {"spec.priority": "system-critical"})
    assert fields(urgent) == {"spec.migrationPriority"}
    controller = Requester("system:serviceaccount:kubevirt:kubevirt-controller")
    assert review(urgent, cluster(), controller).allowed


IMMOBILE = {"type": "LiveMigratable", "status": "False"}


@pytest.mark.parametrize(
    ("vmi", "others", "words"),
    [
        (None, [], 'the VMI "default/vm" does not exist'),
        ({"status": {"phase": "Failed"}}, [], "Cannot migrate VMI in finalized state"),
        (
            {"status": {"conditions": [{**IMMOBILE, "reason": "DisksNotLiveMigratable", "message": "local disk"}]}},
            [],
            "Cannot migrate VMI, Reason: DisksNotLiveMigratable, Message: local disk",
        ),
        (
            {"metadata": {"annotations": {"virtfleet.io/hypervisor": "lxc"}}},
            [],
            "Reason: NotMigratable, Message: hypervisor lxc cannot migrate: libvirt's LXC driver cannot migrate",
        ),
        (
            {"spec": {"hypervisor": "cloud-hypervisor"}, "status": {"phase": "Scheduling"}},
            [],
            "Reason: NotMigratable, Message: hypervisor cloud-hypervisor cannot migrate",
        ),
        (
            {},
            [{"metadata": {"name": "first"}, "status": {"phase": "Running"}}],
            "in-flight migration detected. spec.vmiName: first moves VMI vm",
        ),
    ],
)
def test_a_migration_needs_a_vmi_that_can_move(vmi: dict[str, Any] | None, others: list[Any], words: str) -> None:
    found = Findings()
    check_migration_target(MIGRATION, vmi, others, cluster(), found)
    assert [words in cause.message for cause in found.causes] == [True]


def test_one_that_has_ended_is_in_nobodys_way() -> None:
    found = Findings()
    runs, ended = {"status": {"phase": "Running"}}, {"status": {"phase": "Succeeded"}}
    check_migration_target(MIGRATION, runs, [ended], cluster(), found)
    assert found.allowed


def test_a_migration_cannot_be_redirected() -> None:
    stored, _ = complete(MIGRATION, cluster())
    assert review_update(stored, stored, cluster()).allowed
    assert not review_update(edited(stored, {"spec.vmiName": "other"}), stored, cluster()).allowed
    assert not review_update(edited(stored, {"metadata.labels": {}}), stored, cluster()).allowed
    ended = edited(stored, {"metadata.labels": {}, "status.phase": "Succeeded"})
    assert review_update(ended, stored, cluster()).allowed


POLICY: dict[str, Any] = {
    "apiVersion": "migrations.kubevirt.io/v1alpha1",
    "kind": "MigrationPolicy",
    "metadata": {"name": "slow"},
    "spec": {"selectors": {"namespaceSelector": {"team": "a"}}, "bandwidthPerMigration": "64Mi", "allowPostCopy": True},
}


@pytest.mark.parametrize(
    ("edits", "field"),
    [
        ({}, None),
        ({"spec": {}}, "spec.selectors"),
        ({"spec.bandwidthPerMigration": "fast"}, "spec.bandwidthPerMigration"),
        ({"spec.bandwidthPerMigration": "-1Mi"}, "spec.bandwidthPerMigration"),
        ({"spec.completionTimeoutPerGiB": -1}, "spec.completionTimeoutPerGiB"),
        ({"spec.maxDowntimeMs": -1}, "spec.maxDowntimeMs"),
        ({"spec.allowPostCopy": "yes"}, "spec.allowPostCopy"),
        ({"spec.selectors": {"namespaceSelector": {"no label": "x"}}}, "spec.selectors.namespaceSelector"),
    ],
)
def test_a_policy_for_migrations_is_checked(edits: dict[str, Any], field: str | None) -> None:
    changed = edited(POLICY, edits)
    assert fields(changed) == ({field} if field else set())
    assert {cause.field for cause in review_update(changed, POLICY, cluster()).causes} == fields(changed)
