"""What may change on a running VMI, and who may change it."""

from __future__ import annotations

from typing import Any

import pytest

from virtfleet.admission.review import complete, complete_update, review_update
from virtfleet.admission.updates import Requester
from virtfleet.api import names

from .machines import BASE, cluster, edited

USER = Requester("jane")
CONTROLLER = Requester("system:serviceaccount:kubevirt:kubevirt-controller")
RUNNING = edited(
    complete(BASE, cluster())[0],
    {"status.nodeName": "n1", "status.phase": "Running", "status.volumeStatus": [{"name": "root"}]},
)
DATA = {
    "spec.domain.devices.disks[1]": {"name": "data", "disk": {"bus": "scsi"}},
    "spec.volumes[1]": {"name": "data", "persistentVolumeClaim": {"claimName": "data"}},
}


MORE = {
    "spec.domain.devices.interfaces[1]": {"name": "more", "bridge": {}},
    "spec.networks[1]": {"name": "more", "multus": {"networkName": "blue"}},
}


def handler(node: str) -> Requester:
    extra = {"authentication.kubernetes.io/node-name": [node]} if node else {}
    return Requester("system:serviceaccount:kubevirt:kubevirt-handler", extra)


def fields(edits: dict[str, Any], user: Requester, old: dict[str, Any] = RUNNING) -> set[str]:
    return {cause.field for cause in review_update(edited(old, edits), old, cluster(), user).causes}


def test_a_user_may_label_and_annotate() -> None:
    assert fields({"metadata.labels": {"team": "web"}, "metadata.annotations": {"note": "x"}}, USER) == set()


def test_a_user_may_not_change_the_spec_or_reserved_labels() -> None:
    assert fields({"spec.hostname": "other"}, USER) == {"spec"}
    assert fields({"metadata.labels": {"kubevirt.io/nodeName": "mine"}}, USER) == {"metadata.labels"}
    labelled = edited(RUNNING, {"metadata.labels": {"kubevirt.io/nodeName": "n1"}})
    assert fields({"metadata.labels": {}}, USER, labelled) == {"metadata.labels"}


def test_what_a_user_writes_into_the_status_is_undone() -> None:
    wished = edited(RUNNING, {"status.phase": "Succeeded", "metadata.labels": {"a": "b"}})
    stored = complete_update(wished, RUNNING, cluster(), USER)
    assert stored["status"] == RUNNING["status"]
    assert stored["metadata"]["labels"] == {"a": "b"}
    assert complete_update(wished, RUNNING, cluster(), CONTROLLER)["status"]["phase"] == "Succeeded"


@pytest.mark.parametrize(
    "edits",
    [
        DATA,
        MORE,
        {"spec.domain.devices.interfaces[0].state": "down"},
        {"spec.domain.cpu.sockets": 2},
        {"spec.domain.memory.guest": "2Gi"},
        {"spec.utilityVolumes": []},
    ],
)
def test_virtfleet_may_plug_things_in(edits: dict[str, Any]) -> None:
    assert fields(edits, CONTROLLER) == set()


@pytest.mark.parametrize(
    ("edits", "field"),
    [
        ({"spec.domain.cpu.maxSockets": 8}, "spec.domain.cpu.maxSockets"),
        ({"spec.domain.memory.maxGuest": "8Gi"}, "spec.domain.memory.maxGuest"),
        ({"spec.volumes": [], "spec.domain.devices.disks": []}, "spec.volumes"),
        ({"spec.volumes[0].containerDisk.image": "other:v2"}, "spec.volumes"),
        ({"spec.domain.devices.disks[0].serial": "x"}, "spec.domain.devices.disks"),
        ({"spec.volumes[1]": {"name": "d", "persistentVolumeClaim": {"claimName": "d"}}}, "spec.volumes"),
        ({**DATA, "spec.volumes[1]": {"name": "data", "emptyDisk": {"capacity": "1Gi"}}}, "spec.volumes"),
        (
            {**DATA, "spec.domain.devices.disks[1]": {"name": "data", "disk": {"bus": "sata"}}},
            "spec.domain.devices.disks",
        ),
        (
            {**DATA, "spec.domain.devices.disks[1]": {"name": "data", "cdrom": {"bus": "sata"}}},
            "spec.domain.devices.disks",
        ),
        ({"spec.utilityVolumes": [{"name": "u", "claimName": "c"}]}, "spec.utilityVolumes"),
    ],
)
def test_not_even_virtfleet_may_change_what_the_machine_was_started_with(edits: dict[str, Any], field: str) -> None:
    assert field in fields(edits, CONTROLLER)


@pytest.mark.parametrize("edits", [MORE, {"spec.domain.devices.interfaces[0].state": "down"}])
def test_a_hypervisor_that_changes_no_interfaces_says_so(edits: dict[str, Any]) -> None:
    container = edited(RUNNING, {"metadata.annotations": {names.LAUNCHER_HYPERVISOR: "lxc"}})
    [cause] = review_update(edited(container, edits), container, cluster(), CONTROLLER).causes
    assert cause.field == "spec.domain.devices.interfaces"
    assert "hypervisor lxc takes no interfaces while a VM runs: libvirt's driver names" in cause.message


def test_what_was_plugged_in_can_be_unplugged() -> None:
    status = {"status.volumeStatus": [{"name": "root"}, {"name": "data", "hotplugVolume": {}}]}
    plugged = edited(RUNNING, {**DATA, **status})
    back = {
        "spec.volumes": RUNNING["spec"]["volumes"],
        "spec.domain.devices.disks": RUNNING["spec"]["domain"]["devices"]["disks"],
    }
    assert fields(back, CONTROLLER, plugged) == set()


def test_a_handler_writes_only_where_its_node_is_involved() -> None:
    status = {"status.guestOSInfo": {"name": "x"}}
    assert fields(status, handler("n1")) == set()
    assert fields(status, handler("n2")) == {""}
    (refusal,) = review_update(edited(RUNNING, status), RUNNING, cluster(), handler("n2")).causes
    assert "virt-handler is only allowed to modify VMIs it owns" in refusal.message
    assert fields(status, handler("")) == {""}
    migrating = edited(RUNNING, {"status.migrationState": {"targetNode": "n2"}})
    assert fields(status, handler("n2"), migrating) == set()
    assert fields({"status.migrationState": {"targetNode": "n2"}}, handler("n1")) == {
        "status.migrationState.targetNode"
    }
    assert fields({"status.nodeName": "n3"}, handler("n1")) == {"status.nodeName"}


@pytest.mark.parametrize("end", ["completed", "failed", "endTimestamp"])
def test_the_handler_of_a_target_writes_until_the_migration_has_ended(end: str) -> None:
    state = {"migrationUid": "m", "sourceNode": "n1", "targetNode": "n2"}
    moving = edited(RUNNING, {"status.migrationState": state})
    come = {"status.nodeName": "n2", "status.migrationState": {**state, "completed": True}}
    assert fields(come, handler("n2"), moving) == set()
    assert fields(come, handler("n1"), moving) == {"status.nodeName"}
    assert fields({"status.nodeName": "n3"}, handler("n2"), moving) == {"status.nodeName"}
    other = {"status.migrationState": {**state, "targetNode": "n3", "sourceNode": "n3"}}
    assert fields(other, handler("n2"), moving) == {
        "status.migrationState.targetNode",
        "status.migrationState.sourceNode",
    }
    ended = edited(
        RUNNING, {"status.migrationState": {**state, end: "2026-01-01T00:00:00Z" if end == "endTimestamp" else True}}
    )
    assert fields({"status.guestOSInfo": {"name": "x"}}, handler("n2"), ended) == {""}
    assert fields({"status.guestOSInfo": {"name": "x"}}, handler("n1"), ended) == set()


def test_claims_change_while_their_data_is_copied_and_back_when_that_is_cancelled() -> None:
    here = edited(RUNNING, {**DATA, "status.volumeStatus": [{"name": "root"}, {"name": "data"}]})
    change = {"spec.volumes[1].persistentVolumeClaim.claimName": "new"}
    copied = {"status.migratedVolumes": [{"volumeName": "data"}]}
    assert fields(change, CONTROLLER, here) == {"spec.volumes"}
    assert fields({**change, **copied}, CONTROLLER, here) == set()
    there = edited(here, {**change, **copied})
    back = {"spec.volumes[1].persistentVolumeClaim.claimName": "data", "status.migratedVolumes": None}
    assert fields(back, CONTROLLER, there) == set()
