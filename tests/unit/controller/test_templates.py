"""Instances out of templates."""

from __future__ import annotations

from typing import Any

from virtfleet.api import names
from virtfleet.controller import templates


def machine(**spec: Any) -> dict[str, Any]:
    template = {
        "metadata": {"labels": {"app": "web"}, "annotations": {"note": "x"}, "creationTimestamp": None},
        "spec": {"domain": {"cpu": {"cores": 2}}, **spec},
    }
    meta = {"name": "web", "namespace": "ns", "uid": "8f14e45f-ceea-467f-a8f2-1f7a0e1c5a51", "generation": 4}
    return {"metadata": meta, "spec": {"runStrategy": "Always", "template": template}}


def test_an_instance_has_its_vms_name_labels_and_owner() -> None:
    vm = machine()
    vmi = templates.instance_of_vm(vm)
    assert vmi["metadata"] == {
        "name": "web",
        "namespace": "ns",
        "labels": {"app": "web"},
        "annotations": {"note": "x", names.VM_GENERATION: "4"},
        "finalizers": [names.VM_FINALIZER],
        "ownerReferences": [
            {
                "apiVersion": "kubevirt.io/v1",
                "kind": "VirtualMachine",
                "name": "web",
                "uid": vm["metadata"]["uid"],
                "controller": True,
                "blockOwnerDeletion": True,
            }
        ],
    }
    assert vmi["status"] == {"virtualMachineRevisionName": templates.revision(vm)["metadata"]["name"]}


def test_a_guest_knows_its_machine_over_all_starts() -> None:
    first, second = (templates.instance_of_vm(machine()) for _ in range(2))
    assert first["spec"]["domain"]["firmware"] == second["spec"]["domain"]["firmware"]
    chosen = templates.instance_of_vm(machine(domain={"firmware": {"uuid": "mine", "serial": "s"}}))
    assert chosen["spec"]["domain"]["firmware"] == {"uuid": "mine", "serial": "s"}


def test_a_new_instance_begins_with_the_machine_that_the_guest_knows() -> None:
    known = {"machine": "pc-q35-7.2", "devices": [{"name": "disk/virtio/root", "address": "0000:04:00.0"}]}
    vmi = templates.instance_of_vm({**machine(), "status": {"guestABI": known}})
    assert vmi["status"]["guestABI"] == known


def test_a_vm_that_wants_an_input_device_and_lists_none_gets_a_tablet() -> None:
    def inputs(**devices: Any) -> Any:
        made = templates.instance_of_vm(machine(domain={"devices": devices}))
        return made["spec"]["domain"]["devices"].get("inputs")

    assert inputs(autoattachInputDevice=True) == [{"name": "default-0", "type": "tablet"}]
    own = [{"name": "mine", "type": "tablet", "bus": "virtio"}]
    assert inputs(autoattachInputDevice=True, inputs=own) == own
    assert inputs(autoattachInputDevice=False) is None


def test_the_template_is_left_as_it_is() -> None:
    vm, same = machine(), machine()
    templates.instance_of_vm(vm, paused=True)["metadata"]["labels"]["more"] = "x"
    assert vm == same


def test_a_paused_start_is_a_start_strategy() -> None:
    assert templates.instance_of_vm(machine(), paused=True)["spec"]["startStrategy"] == "Paused"
    assert "startStrategy" not in templates.instance_of_vm(machine())["spec"]


def test_changes_are_named_by_their_path() -> None:
    old = machine()["spec"]
    new = machine(domain={"cpu": {"cores": 4}, "devices": {"rng": {}}}, hostname="h")["spec"]
    assert templates.template_changes(old, new) == ["domain.cpu.cores", "domain.devices", "hostname"]
    assert templates.template_changes(old, old) == []
    assert templates.template_changes(new, old) == ["domain.cpu.cores", "domain.devices", "hostname"]


def test_a_change_outside_of_the_template_is_none() -> None:
    assert templates.template_changes(machine()["spec"], {**machine()["spec"], "runStrategy": "Manual"}) == []


def replica_set(name: str = "web", uid: str = "u", **template: Any) -> dict[str, Any]:
    spec = {"template": {"metadata": {"labels": {"app": "web"}, **template}, "spec": {"domain": {}}}}
    return {"metadata": {"name": name, "namespace": "ns", "uid": uid}, "spec": spec}


def test_slots_have_names_of_their_own_that_never_change() -> None:
    names_of = [templates.instance_of_replica_set(replica_set(), i)["metadata"]["name"] for i in range(100)]
    again = [templates.instance_of_replica_set(replica_set(), i)["metadata"]["name"] for i in range(100)]
    assert names_of == again
    assert len(set(names_of)) == 100
    assert templates.instance_of_replica_set(replica_set(uid="other"), 0)["metadata"]["name"] not in names_of


def test_names_in_a_set_stay_short_enough_for_a_host_name() -> None:
    assert len(templates.instance_of_replica_set(replica_set("x" * 200), 0)["metadata"]["name"]) <= 63
    assert templates.instance_of_replica_set(replica_set(generateName="db-"), 0)["metadata"]["name"].startswith("db-")
