"""A tenant who writes what only VirtFleet's components may say of a VM: where it runs, and where it is reached."""

from __future__ import annotations

from typing import Any

import pytest

from virtfleet.admission.review import complete, complete_update, review, review_update
from virtfleet.admission.updates import Requester
from virtfleet.gateway.guestaddress import why_not_a_pods
from virtfleet.installation import Installation

Obj = dict[str, Any]
CLUSTER = Installation({"metadata": {"namespace": "kubevirt"}})
TENANT = Requester("system:serviceaccount:default:tenant")
CONTROLLER = Requester("system:serviceaccount:kubevirt:kubevirt-controller")
# The same names in a namespace of the tenant's own, or nearly the same.
LIKE_OURS = [
    TENANT,
    Requester(),
    Requester("system:serviceaccount:default:kubevirt-controller"),
    Requester("kubevirt-controller"),
    Requester("system:serviceaccount:kubevirt:kubevirt-controller2"),
]
FORGED = {
    "phase": "Running",
    "nodeName": "node-a",
    "activePods": {"../../..": "node-a"},
    "interfaces": [{"ipAddress": "127.0.0.1"}],
    "migrationState": {"targetNode": "node-a"},
    "runtimeUser": 0,
}


def machine(kind: str, **fields: Any) -> Obj:
    instance = {"spec": {"domain": {"memory": {"guest": "64Mi"}, "devices": {}}}}
    specs: dict[str, Obj] = {
        "VirtualMachineInstance": instance["spec"],
        "VirtualMachine": {"runStrategy": "Halted", "template": instance},
        "VirtualMachineInstanceReplicaSet": {
            "selector": {"matchLabels": {"a": "b"}},
            "template": {"metadata": {"labels": {"a": "b"}}, **instance},
        },
        "VirtualMachineInstanceMigration": {"vmiName": "vm"},
    }
    return {"apiVersion": "kubevirt.io/v1", "kind": kind, "metadata": {"name": "vm"}, "spec": specs[kind], **fields}


@pytest.mark.parametrize("user", LIKE_OURS)
@pytest.mark.parametrize(
    "kind",
    [
        "VirtualMachineInstance",
        "VirtualMachine",
        "VirtualMachineInstanceReplicaSet",
        "VirtualMachineInstanceMigration",
    ],
)
def test_the_status_of_a_new_object_is_dropped(kind: str, user: Requester) -> None:
    completed, found = complete(machine(kind, status=FORGED), CLUSTER, user)
    assert found.allowed
    told = completed.get("status") or {}
    assert told.keys() <= {"phase", "memory", "currentCPUTopology", "runtimeUser", "phaseTransitionTimestamps"}
    assert (told.get("phase"), told.get("runtimeUser")) in [("Pending", 107), (None, None)]


def test_what_a_component_says_of_a_new_instance_stays() -> None:
    wanted = machine("VirtualMachineInstance", status={"virtualMachineRevisionName": "r1"})
    completed, _ = complete(wanted, CLUSTER, CONTROLLER)
    assert completed["status"]["virtualMachineRevisionName"] == "r1"


@pytest.mark.parametrize("user", LIKE_OURS)
@pytest.mark.parametrize(
    "old", [None, {}, {"phase": "Scheduling"}, {"nodeName": "node-b", "activePods": {"u": "node-b"}}]
)
def test_the_status_of_an_instance_stays_as_it_is(old: Obj | None, user: Requester) -> None:
    before = machine("VirtualMachineInstance", **({} if old is None else {"status": old}))
    for status in (FORGED, {}, None):
        wanted = {**before, "status": status}
        stored = complete_update(wanted, before, CLUSTER, user)
        assert stored.get("status") == before.get("status")


@pytest.mark.parametrize(
    "label", ["kubevirt.io/nodeName", "kubevirt.io/created-by", "kubevirt.io/migrationTargetNodeName"]
)
def test_labels_that_steer_components_are_theirs(label: str) -> None:
    plain = machine("VirtualMachineInstance")
    labelled = machine("VirtualMachineInstance", metadata={"name": "vm", "labels": {label: "node-a"}})
    assert not review(complete(labelled, CLUSTER, TENANT)[0], CLUSTER, TENANT).allowed
    assert not review_update(labelled, plain, CLUSTER, TENANT).allowed
    assert not review_update(plain, labelled, CLUSTER, TENANT).allowed
    assert review_update(labelled, plain, CLUSTER, CONTROLLER).allowed


@pytest.mark.parametrize(
    "address",
    ["", "node-a", "127.0.0.1", "127.8.8.8", "::1", "::ffff:127.0.0.1", "0.0.0.0", "::", "169.254.169.254", "fe80::1",
     "224.0.0.1", "ff02::1", "255.255.255.255", "10.0.0.1/8", "0x7f000001", "2130706433", "127.1"],
)  # fmt: skip
def test_some_addresses_are_no_pods(address: str) -> None:
    assert why_not_a_pods(address)


@pytest.mark.parametrize("address", ["10.244.1.7", "192.168.3.4", "172.16.0.9", "fd00:10:244::7", "8.8.4.4"])
def test_others_can_be(address: str) -> None:
    assert why_not_a_pods(address) == ""
