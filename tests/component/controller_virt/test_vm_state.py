"""What a VM's firmware and TPM remember: the claim that holds it, through starts, migrations and their failures."""

from __future__ import annotations

from typing import Any

from test_migrations import failed, hold, moves, reached, settled
from virt_plane import Plane, a_vm, a_vmi

from bench.simulator import NAMESPACE
from virtfleet.api import names
from virtfleet.kube.resource import KUBEVIRTS, PERSISTENT_VOLUME_CLAIMS, STORAGE_CLASSES, VMIS, VMS, Obj

REMEMBERS = {"bootloader": {"efi": {"persistent": True}}}


def remembering(made: Obj) -> Obj:
    template: Obj = made["spec"].get("template", made)
    template["spec"]["domain"]["firmware"] = REMEMBERS
    return made


async def a_class(virt: Plane, name: str = "plain", **annotations: str) -> None:
    metadata = {"name": name, "annotations": {mark.replace("_", "/", 1): "true" for mark in annotations.values()}}
    about: dict[str, Any] = {"apiVersion": STORAGE_CLASSES.api_version, "kind": STORAGE_CLASSES.kind}
    await virt.api.create(STORAGE_CLASSES, {**about, "metadata": metadata, "provisioner": "example.org/none"})


async def claims(virt: Plane) -> dict[str, Obj]:
    """Those that stay; nobody here takes the finalizer of one away that a Pod may use."""
    listed = await virt.api.list(PERSISTENT_VOLUME_CLAIMS, NAMESPACE)
    return {c["metadata"]["name"]: c for c in listed if "deletionTimestamp" not in c["metadata"]}


async def state_claims(virt: Plane) -> set[str]:
    """Claims that the Pods of VMs have for their state."""
    volumes = [volume for pod in await virt.pods() for volume in pod["spec"]["volumes"]]
    return {v["persistentVolumeClaim"]["claimName"] for v in volumes if v["name"] == "vm-state"}


async def shown(virt: Plane) -> str:
    entries = (await virt.vmi())["status"].get("volumeStatus") or ()
    infos = [e["persistentVolumeClaimInfo"] for e in entries if e["name"] == "persistent-state-for-this-vm"]
    return str(infos[0]["claimName"]) if infos else ""


async def test_a_vm_gets_a_claim_that_goes_with_it_and_not_with_a_run_of_it(virt: Plane) -> None:
    await a_class(virt, "ordinary", default="storageclass.kubernetes.io_is-default-class")
    await a_class(virt, "for-vms", default="storageclass.kubevirt.io_is-default-virt-class")
    await virt.create(VMS, remembering(a_vm()))
    first = await virt.phase("Running")
    (claim,) = (await claims(virt)).values()
    assert claim["metadata"]["name"] == "persistent-state-for-vm" == await shown(virt)
    assert claim["metadata"]["labels"]["persistent-state-for"] == "vm"
    assert [(o["kind"], o["name"]) for o in claim["metadata"]["ownerReferences"]] == [("VirtualMachine", "vm")]
    assert claim["spec"]["storageClassName"] == "for-vms"
    assert claim["spec"]["accessModes"] == ["ReadWriteOnce"]
    await virt.api.delete(VMIS, "vm", NAMESPACE)

    async def again() -> bool:
        return (await virt.vmi())["metadata"]["uid"] != first["metadata"]["uid"]

    await virt.until(again)
    await virt.phase("Running")
    assert await state_claims(virt) == {"persistent-state-for-vm"}
    assert (await claims(virt)).keys() == {"persistent-state-for-vm"}


async def test_without_a_class_it_says_what_to_do_and_goes_on_when_that_is_done(virt: Plane) -> None:
    await virt.create(VMIS, remembering(a_vmi()))
    said = await virt.condition("Synchronized", "False")
    assert "configuration.vmStateStorageClass" in said["message"]
    (kubevirt,) = await virt.api.list(KUBEVIRTS)
    change = {"spec": {"configuration": {"vmStateStorageClass": "shared"}}}
    meta = kubevirt["metadata"]
    await virt.api.patch(KUBEVIRTS, meta["name"], change, meta["namespace"])
    await virt.phase("Running")
    (claim,) = (await claims(virt)).values()
    assert (claim["spec"]["storageClassName"], claim["spec"]["accessModes"]) == ("shared", ["ReadWriteMany"])


async def test_a_migration_takes_the_state_into_a_claim_that_is_the_vms_from_then_on(virt: Plane) -> None:
    await a_class(virt, default="storageclass.kubernetes.io_is-default-class")
    await virt.create(VMS, remembering(a_vm()))
    await virt.phase("Running")
    await moves(virt)
    await reached(virt, "Succeeded")
    await settled(virt)

    async def one() -> Obj | None:
        left = [*(await claims(virt)).values()]
        return left[0] if len(left) == 1 else None

    claim = await virt.until(one)
    name = claim["metadata"]["name"]
    assert name.startswith("persistent-state-for-vm-")
    assert claim["metadata"]["labels"]["persistent-state-for"] == "vm"
    assert names.STATE_MIGRATION not in claim["metadata"]["labels"]
    state = (await virt.vmi())["status"]["migrationState"]
    assert state["sourcePersistentStatePVCName"] == "persistent-state-for-vm"
    assert state["targetPersistentStatePVCName"] == name == await shown(virt)
    await virt.api.delete(VMIS, "vm", NAMESPACE)

    async def restarted() -> bool:
        return not (await virt.vmi())["status"].get("migrationState") and await state_claims(virt) == {name}

    await virt.until(restarted)
    await virt.phase("Running")
    assert (await claims(virt)).keys() == {name}


async def test_a_migration_that_fails_leaves_the_state_where_it_was(virt: Plane) -> None:
    await a_class(virt, default="storageclass.kubernetes.io_is-default-class")
    await virt.create(VMIS, remembering(a_vmi()))
    await virt.phase("Running")
    hold(virt, "start")
    await moves(virt)
    await reached(virt, "TargetReady")
    assert len(await claims(virt)) == 2
    state = {"failed": True, "failureReason": "the wire is cut", "endTimestamp": "2026-01-01T00:00:00Z"}
    await virt.api.patch(VMIS, "vm", {"status": {"migrationState": state}}, NAMESPACE)
    assert await failed(virt) == "the wire is cut"
    assert (await claims(virt)).keys() == {"persistent-state-for-vm"}
    assert await shown(virt) == "persistent-state-for-vm"


async def test_a_guest_that_ended_right_after_its_move_has_what_it_took_along(virt: Plane) -> None:
    """Nobody but the VMI's status knew of the move yet: its controller was away."""
    await a_class(virt, default="storageclass.kubernetes.io_is-default-class")
    await virt.create(VMS, remembering(a_vm()))
    first = await virt.phase("Running")
    hold(virt, "arrive")
    await moves(virt)
    await reached(virt, "Running")
    moved = (await virt.vmi())["status"]["migrationState"]["targetPersistentStatePVCName"]
    await virt.stop()
    hold(virt)

    async def arrived() -> bool:
        return bool((await virt.vmi())["status"]["migrationState"].get("completed"))

    await virt.until(arrived)
    await virt.api.delete(VMIS, "vm", NAMESPACE)
    await virt.phase("Succeeded")
    virt.start()

    async def again() -> bool:
        return (await virt.vmi())["metadata"]["uid"] != first["metadata"]["uid"]

    await virt.until(again)
    await virt.phase("Running")
    assert await state_claims(virt) == {moved}
    assert (await claims(virt)).keys() == {moved}


async def test_the_claim_of_an_earlier_vm_is_not_taken_over(virt: Plane) -> None:
    await a_class(virt, default="storageclass.kubernetes.io_is-default-class")
    owner = {"apiVersion": VMS.api_version, "kind": VMS.kind, "name": "vm", "uid": "gone", "controller": True}
    labels = {"persistent-state-for": "vm"}
    spec = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "10Mi"}}}
    metadata = {"name": "persistent-state-for-vm", "labels": labels, "ownerReferences": [owner]}
    about = {"apiVersion": "v1", "kind": PERSISTENT_VOLUME_CLAIMS.kind}
    await virt.create(PERSISTENT_VOLUME_CLAIMS, {**about, "metadata": metadata, "spec": spec})
    await virt.create(VMIS, remembering(a_vmi()))
    assert "earlier VM of the same name" in (await virt.condition("Synchronized", "False"))["message"]
    released = {"metadata": {"finalizers": None}}
    await virt.api.patch(PERSISTENT_VOLUME_CLAIMS, "persistent-state-for-vm", released, NAMESPACE)
    await virt.api.delete(PERSISTENT_VOLUME_CLAIMS, "persistent-state-for-vm", NAMESPACE)
    await virt.phase("Running")
    (claim,) = (await claims(virt)).values()
    assert claim["metadata"]["ownerReferences"][0]["kind"] == VMIS.kind
