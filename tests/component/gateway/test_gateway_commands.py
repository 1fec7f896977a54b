"""What is asked of the handler of a VMI's node, what is carried out by virt-api, and what is refused."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from component.gateway.gateway_kit import Kit
from virtfleet.gateway import handlers
from virtfleet.gateway.subresources import INSTEAD
from virtfleet.kube.errors import ApiError
from virtfleet.kube.resource import KUBEVIRTS, VMI_MIGRATIONS, VMIS, VMS

AGENT = ["AgentConnected"]


async def test_commands_reach_the_handler_as_they_are(kit: Kit) -> None:
    await kit.vmi("vm", conditions=AGENT)
    await kit.vmi("paused", conditions=["Paused"])
    asked = [
        ("vm", "pause", {}),
        ("paused", "unpause", {}),
        ("vm", "reset", None),
        ("vm", "softreboot", None),
        ("vm", "freeze", {"unfreezeTimeout": "5m"}),
        ("vm", "unfreeze", None),
    ]
    for name, command, body in asked:
        answer = await kit.of_vmi(command, body, name)
        assert (answer.status, answer.body) == (202, ""), command
    sent = [(s.method, s.path.rpartition("/")[2], s.body) for s in kit.handler.seen]
    assert sent == [
        ("PUT", "pause", b"{}"),
        ("PUT", "unpause", b"{}"),
        ("PUT", "reset", b""),
        ("PUT", "softreboot", b""),
        ("PUT", "freeze", b'{"unfreezeTimeout": "5m"}'),
        ("PUT", "unfreeze", b""),
    ]


async def test_questions_are_answered_by_the_handler(kit: Kit) -> None:
    await kit.vmi(conditions=AGENT)
    for question in ("guestosinfo", "userlist", "filesystemlist"):
        answer = await kit.of_vmi(question, method="GET")
        assert (answer.status, answer.body) == (200, {"hostname": "guest"})


async def test_a_refusal_of_the_handler_is_passed_on(kit: Kit) -> None:
    await kit.vmi()
    status = ApiError("Conflict", "the guest is stuck; reset it").status()
    kit.handler.refusal = (409, status)
    answer = await kit.of_vmi("pause", {})
    assert (answer.status, answer.body) == (409, status)


async def test_a_dry_run_asks_nobody(kit: Kit) -> None:
    await kit.vmi()
    assert (await kit.of_vmi("pause", {"dryRun": ["All"]})).status == 202
    assert kit.handler.seen == []


async def test_the_state_of_a_vmi_decides_what_it_can_be_asked(kit: Kit) -> None:
    await kit.vmi("on")
    await kit.vmi("paused", conditions=["Paused"])
    await kit.vmi("waits", phase="Scheduling")
    await kit.vmi("probed", livenessProbe={"tcpSocket": {"port": 80}})
    await kit.vmi("deaf", domain={"features": {"acpi": {"enabled": False}}, "devices": {}})
    expected = {
        ("waits", "pause"): (409, "VM is not running"),
        ("paused", "pause"): (409, "VMI is already paused"),
        ("probed", "pause"): (403, "LivenessProbe"),
        ("on", "unpause"): (409, "VMI is not paused"),
        ("waits", "unpause"): (409, "VMI is not running"),
        ("waits", "reset"): (400, "phase is Scheduling"),
        ("waits", "softreboot"): (409, "VM is not running"),
        ("paused", "softreboot"): (409, "VMI is paused"),
        ("deaf", "softreboot"): (409, "neither"),
        ("waits", "freeze"): (409, "VM is not running"),
        ("waits", "unfreeze"): (409, "VM is not running"),
    }
    for (name, command), (code, words) in expected.items():
        answer = await kit.of_vmi(command, {}, name)
        assert (answer.status, answer.body["kind"]) == (code, "Status"), command
        assert words in answer.body["message"]
    for question in ("guestosinfo", "userlist", "filesystemlist"):
        for name, words in (("waits", "VMI is not running"), ("on", "does not have guest agent connected")):
            answer = await kit.of_vmi(question, None, name, method="GET")
            # Clients ask the first one without looking for a Status in a refusal.
            plain = question == "guestosinfo"
            assert answer.status == (500 if plain else 409)
            assert words in (answer.body if plain else answer.body["message"])
    assert kit.handler.seen == []


async def test_a_vmi_that_is_not_there_is_not_found(kit: Kit) -> None:
    for command in ("pause", "unpause", "reset", "softreboot", "freeze", "unfreeze"):
        answer = await kit.of_vmi(command, {}, "none")
        assert answer.status == 404
        assert answer.body["message"] == 'virtualmachineinstance.kubevirt.io "none" not found in namespace default'


# --- power (the decisions are in tests/unit/gateway)


async def test_start_stop_and_restart_write_what_the_controller_carries_out(kit: Kit) -> None:
    await kit.vm("plain")
    assert (await kit.of_vm("start", {}, "plain")).status == 202
    assert (await kit.get(VMS, "plain"))["spec"]["runStrategy"] == "Always"
    assert (await kit.of_vm("stop", {}, "plain")).status == 202
    assert (await kit.get(VMS, "plain"))["spec"]["runStrategy"] == "Halted"

    await kit.vm("manual", runStrategy="Manual", status={"startFailure": {"consecutiveFailCount": 3}})
    assert (await kit.of_vm("start", {"paused": True}, "manual")).status == 202
    status = (await kit.get(VMS, "manual"))["status"]
    assert status == {"stateChangeRequests": [{"action": "Start", "data": {"paused": "true"}}]}

    _, vmi = await kit.started("on", runStrategy="Always")
    answer = await kit.of_vm("restart", {"gracePeriodSeconds": 0}, "on")
    assert (answer.status, answer.body) == (202, "")
    assert (await kit.get(VMS, "on"))["status"]["stateChangeRequests"] == [
        {"action": "Stop", "uid": vmi["metadata"]["uid"]},
        {"action": "Start"},
    ]
    assert (await kit.get(VMIS, "on"))["spec"]["terminationGracePeriodSeconds"] == 1


async def test_a_vm_that_is_not_there_is_not_found(kit: Kit) -> None:
    for command in ("start", "stop", "restart"):
        answer = await kit.of_vm(command, {}, "none")
        assert answer.status == 404
        assert answer.body["message"] == 'virtualmachine.kubevirt.io "none" not found in namespace default'


# --- migrations


async def refusal_to_migrate(kit: Kit, words: str) -> None:
    """Waits until virt-api has seen the VMI as it is."""
    async with asyncio.timeout(20):
        while True:
            answer = await kit.of_vm("migrate", {"addedNodeSelector": {"zone": "b"}})
            assert answer.status == 422, answer
            if words in answer.body["message"]:
                break
            await asyncio.sleep(0.02)
    assert await kit.server.api.list(VMI_MIGRATIONS, "default") == []


async def test_why_a_vm_cannot_move_is_its_own_conditions_reason(kit: Kit) -> None:
    condition = {"type": "LiveMigratable", "status": "False", "reason": "DisksNotLiveMigratable", "message": "local"}
    await kit.started(runStrategy="Always")
    await kit.server.api.patch(VMIS, "vm", {"status": {"conditions": [condition]}}, "default")
    await kit.guard()
    await refusal_to_migrate(kit, "Cannot migrate VMI, Reason: DisksNotLiveMigratable, Message: local")


async def test_migrate_makes_a_migration(kit: Kit) -> None:
    await kit.started(runStrategy="Always")
    answer = await kit.of_vm("migrate", {"addedNodeSelector": {"zone": "b"}})
    assert (answer.status, answer.body) == (202, "")
    [migration] = await kit.server.api.list(VMI_MIGRATIONS, "default")
    assert migration["metadata"]["name"].startswith("kubevirt-migrate-vm-")
    assert migration["spec"] == {"vmiName": "vm", "addedNodeSelector": {"zone": "b"}}


async def test_only_a_running_vm_migrates(kit: Kit) -> None:
    assert (await kit.of_vm("migrate", {}, "none")).status == 404
    await kit.vm("off")
    assert (await kit.of_vm("migrate", {}, "off")).status == 404
    await kit.started("waits", phase="Scheduled")
    answer = await kit.of_vm("migrate", {}, "waits")
    assert (answer.status, "VM is not running" in answer.body["message"]) == (409, True)
    await kit.started("on")
    assert (await kit.of_vm("migrate", {"dryRun": ["All"]}, "on")).status == 202
    assert await kit.server.api.list(VMI_MIGRATIONS, "default") == []


async def test_an_evacuation_can_be_taken_back(kit: Kit) -> None:
    await kit.started()
    assert (await kit.of_vm("evacuate/cancel", {"evacuationNodeName": "x"})).status == 200  # there is none
    await kit.server.api.patch(VMIS, "vm", {"status": {"evacuationNodeName": "node01"}}, "default")
    assert (await kit.of_vmi("evacuate/cancel", {"evacuationNodeName": "node02"})).status == 409
    assert (await kit.of_vmi("evacuate/cancel", {"evacuationNodeName": "node01"})).status == 200
    assert "evacuationNodeName" not in (await kit.get(VMIS))["status"]


# --- volumes, and what comes later


async def test_volumes_are_plugged_into_a_vm_by_its_status_and_into_a_vmi_by_its_spec(kit: Kit) -> None:
    disk = {"disk": {"bus": "scsi"}, "serial": "data"}
    body = {"name": "data", "disk": disk, "volumeSource": {"persistentVolumeClaim": {"claimName": "data"}}}
    await kit.vm()
    await kit.vmi()
    for ask in (kit.of_vm, kit.of_vmi):
        assert (await ask("addvolume", body, "none")).status == 404
        assert "requires name" in (await ask("addvolume", {})).body["message"]
        answer = await ask("removevolume", {"name": "data"})
        assert (answer.status, "because it does not exist" in answer.body["message"]) == (409, True)
        assert (await ask("addvolume", {**body, "dryRun": ["All"]})).status == 202
    assert "volumeRequests" not in (await kit.get(VMS)).get("status", {})
    assert "data" not in str((await kit.get(VMIS))["spec"])

    assert (await kit.of_vm("addvolume", body)).status == 202
    assert (await kit.get(VMS))["spec"]["template"]["spec"]["volumes"][-1]["name"] == "data"
    assert (await kit.of_vm("removevolume", {"name": "data"})).status == 202

    await kit.configure({"configuration": {"developerConfiguration": {"featureGates": ["HotplugVolumes"]}}})
    assert (await kit.of_vm("addvolume", body)).status == 202
    [request] = (await kit.get(VMS))["status"]["volumeRequests"]
    claim = {"claimName": "data", "hotpluggable": True}
    added = {"name": "data", "disk": {**disk, "name": "data"}, "volumeSource": {"persistentVolumeClaim": claim}}
    assert request == {"addVolumeOptions": added}
    again = await kit.of_vm("addvolume", body)
    assert (again.status, "already exists" in again.body["message"]) == (409, True)

    assert (await kit.of_vmi("addvolume", body)).status == 202
    spec = (await kit.get(VMIS))["spec"]
    assert spec["volumes"][-1] == {"name": "data", "persistentVolumeClaim": claim}
    assert spec["domain"]["devices"]["disks"][-1] == {**disk, "name": "data"}
    assert (await kit.of_vmi("removevolume", {"name": "data"})).status == 202
    assert "data" not in str((await kit.get(VMIS))["spec"])


async def test_what_comes_later_is_refused_with_what_to_do_instead(kit: Kit) -> None:
    for subresource in ("memorydump", "removememorydump"):
        answer = await kit.of_vm(subresource, {"claimName": "dump"})
        assert (answer.status, answer.body["message"]) == (400, INSTEAD[subresource])
    for subresource in ("backup", "redefine-checkpoint", "sev/setupsession", "sev/injectlaunchsecret"):
        assert (await kit.of_vmi(subresource, {})).status == 400
    for subresource in ("sev/fetchcertchain", "sev/querylaunchmeasurement"):
        assert (await kit.of_vmi(subresource, method="GET")).status == 400


# --- what belongs together


async def test_a_vm_is_whole_as_it_is(kit: Kit) -> None:
    vm = await kit.vm()
    assert (await kit.of_vm("expand-spec", method="GET")).body["spec"] == vm["spec"]
    assert (await kit.of_vm("expand-spec", name="none", method="GET")).status == 404


async def test_a_vm_that_is_sent_is_checked_and_comes_back_whole(kit: Kit) -> None:
    path = "namespaces/default/expand-vm-spec"
    vm = {
        "apiVersion": "kubevirt.io/v1",
        "kind": "VirtualMachine",
        "metadata": {"name": "vm"},
        "spec": {"runStrategy": "Halted", "template": {"spec": {"domain": {"devices": {}}}}},
    }
    answer = await kit.call("PUT", path, vm)
    assert (answer.status, answer.body) == (200, {**vm, "metadata": {"name": "vm", "namespace": "default"}})
    for wrong, words in (
        ({**vm, "metadata": {"name": "vm", "namespace": "other"}}, "must be empty or default"),
        ({**vm, "kind": "Pod"}, "not a valid VirtualMachine"),
        ({**vm, "spec": {"runStrategy": 5}}, "not a valid VirtualMachine"),
        ({**vm, "spec": {**vm["spec"], "preference": {"name": "p"}}}, '"p" not found'),  # type: ignore[dict-item]
        (None, "empty request body"),
    ):
        answer = await kit.call("PUT", path, wrong)
        assert answer.status == 400
        assert words in answer.body["message"]


def tree(node: Any) -> Any:
    reference = node["objectReference"]
    return f"{reference['kind']} {reference['namespace']}/{reference['name']}", [
        tree(child) for child in node.get("children", ())
    ]


async def test_the_objects_of_a_vm_are_a_tree(kit: Kit) -> None:
    spec = {
        "domain": {"devices": {}},
        "volumes": [
            {"name": "a", "dataVolume": {"name": "dv"}},
            {"name": "b", "cloudInitNoCloud": {"secretRef": {"name": "users"}}},
        ],
        "networks": [{"name": "n", "multus": {"networkName": "nets/blue"}}],
        "accessCredentials": [
            {
                "sshPublicKey": {
                    "source": {"secret": {"secretName": "keys"}},
                    "propagationMethod": {"noCloud": {}},
                }
            }
        ],
    }
    await kit.vm(template={"spec": spec})
    vmi = await kit.vmi()
    graph = await kit.of_vm("objectgraph", {"includeOptionalNodes": True}, method="GET")
    launcher = f"virt-launcher-vm-{vmi['metadata']['uid'].partition('-')[0]}"
    assert tree(graph.body) == (
        "VirtualMachine default/vm",
        [
            ("VirtualMachineInstance default/vm", [(f"Pod default/{launcher}", [])]),
            ("Secret default/keys", []),
            ("DataVolume default/dv", [("PersistentVolumeClaim default/dv", [])]),
            ("Secret default/users", []),
            ("NetworkAttachmentDefinition nets/blue", []),
        ],
    )
    storage = {"labelSelector": {"matchLabels": {"kubevirt.io/dependency-type": "storage"}}}
    chosen = await kit.of_vm("objectgraph", storage, method="GET")
    assert [name for name, _ in tree(chosen.body)[1]] == ["DataVolume default/dv"]
    needed = await kit.of_vm("objectgraph", {"includeOptionalNodes": False}, method="GET")
    assert len(tree(needed.body)[1]) == 4
    assert tree((await kit.of_vmi("objectgraph", {}, method="GET")).body)[0] == "VirtualMachineInstance default/vm"
    wrong = {"labelSelector": {"matchExpressions": [{"key": "a", "operator": "Near"}]}}
    assert (await kit.of_vm("objectgraph", wrong, method="GET")).status == 400


# --- the installation


async def test_the_installation_describes_itself(kit: Kit) -> None:
    version = (await kit.call("GET", "version")).body
    assert version["gitVersion"].startswith("v")
    assert (await kit.call("GET", "guestfs")).body["registry"] == "virtfleet"
    assert (await kit.call("GET", "healthz")).body == {"apiserver": {"connectivity": "ok"}}
    await kit.server.api.delete(KUBEVIRTS, "kubevirt", "kubevirt")
    async with asyncio.timeout(30):
        while (answer := await kit.call("GET", "guestfs")).status == 200:  # noqa: ASYNC110
            await asyncio.sleep(0.02)
    assert (answer.status, "knows no KubeVirt object" in answer.body["message"]) == (503, True)


async def test_both_versions_serve_the_same(kit: Kit) -> None:
    await kit.vm()
    old = "/apis/subresources.kubevirt.io/v1alpha3/namespaces/default/virtualmachines/vm/start"
    assert (await kit.call("PUT", old, {})).status == 202


async def test_bodies_that_cannot_be_read_are_refused(kit: Kit) -> None:
    await kit.vm()
    answer = await kit.of_vm("start", {"paused": "perhaps"})
    assert (answer.status, "paused" in answer.body["message"]) == (400, True)


async def test_a_handler_that_says_nothing_is_not_waited_for_for_ever(
    kit: Kit, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(handlers, "_PATIENCE", 0.2)
    await kit.vmi()
    kit.handler.silent = asyncio.Event()
    answer = await kit.of_vmi("pause", {})
    assert answer.status == 503
    kit.handler.silent.set()
