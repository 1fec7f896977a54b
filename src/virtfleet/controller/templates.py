"""Instances out of templates, and what of a template has changed since. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from hashlib import blake2s
from typing import Any

from virtfleet.api import names
from virtfleet.controller import liveupdate
from virtfleet.kube.resource import (
    CONTROLLER_REVISIONS,
    DATA_VOLUMES,
    VMI_REPLICA_SETS,
    VMIS,
    VMS,
    Obj,
    Resource,
    owner_reference,
)


def _instance(template: Obj, owner: Obj, resource: Resource, name: str) -> Obj:
    of_template = template.get("metadata") or {}
    meta = {
        "name": name,
        "namespace": owner["metadata"]["namespace"],
        "ownerReferences": [owner_reference(owner, resource)],
        **{key: dict(of_template[key]) for key in ("labels", "annotations") if of_template.get(key)},
    }
    return VMIS.object(meta, spec=template["spec"])


def instance_of_vm(vm: Obj, *, paused: bool = False) -> Obj:
    """The instance of a VM. It has the VM's name, so that there is never a second one."""
    meta = vm["metadata"]
    vmi = _instance(vm["spec"]["template"], vm, VMS, meta["name"])
    vmi["metadata"].setdefault("annotations", {})[names.VM_GENERATION] = str(meta.get("generation", 0))
    vmi["metadata"]["finalizers"] = [names.VM_FINALIZER]
    vmi["status"] = {"virtualMachineRevisionName": revision_name(vm)}
    if known := (vm.get("status") or {}).get("guestABI"):
        vmi["status"]["guestABI"] = known
    domain = _with_input(vmi["spec"].get("domain") or {})
    # The firmware's UUID is what a guest knows its machine by: it stays the same over all starts of a VM.
    firmware = domain.get("firmware") or {}
    firmware = {**firmware, "uuid": firmware.get("uuid") or meta["uid"]}
    vmi["spec"] = {**vmi["spec"], "domain": {**domain, "firmware": firmware}}
    if paused:
        vmi["spec"]["startStrategy"] = "Paused"
    return vmi


def _with_input(domain: Obj) -> Obj:
    """A tablet, where the VM wants an input device and lists none; admission chooses its bus."""
    devices = domain.get("devices") or {}
    if not devices.get("autoattachInputDevice") or devices.get("inputs"):
        return domain
    return {**domain, "devices": {**devices, "inputs": [{"name": "default-0", "type": "tablet"}]}}


def instance_of_replica_set(replica_set: Obj, slot: int) -> Obj:
    """The instance in one slot of a set. The slot decides its name, so that two controllers cannot both fill it."""
    meta, template = replica_set["metadata"], replica_set["spec"]["template"]
    named = template.get("metadata") or {}
    base = named.get("name") or named.get("generateName") or meta["name"]
    digest = blake2s(f"{meta['uid']}/{slot}".encode(), digest_size=4).hexdigest()
    return _instance(template, replica_set, VMI_REPLICA_SETS, f"{base[:54].rstrip('-.')}-{digest}")


def data_volume(vm: Obj, template: Obj) -> Obj:
    """A DataVolume of a VM's template, which goes with the VM."""
    of_template = template.get("metadata") or {}
    meta = {
        "name": str(of_template.get("name") or ""),
        "namespace": vm["metadata"]["namespace"],
        "labels": {**(of_template.get("labels") or {}), names.CREATED_BY: vm["metadata"]["uid"]},
        "annotations": dict(of_template.get("annotations") or {}),
        "ownerReferences": [owner_reference(vm, VMS)],
    }
    return DATA_VOLUMES.object(meta, spec=template.get("spec") or {})


# --- what a VM was started with


def revision_name(vm: Obj) -> str:
    meta = vm["metadata"]
    return f"revision-start-vm-{meta['uid']}-{meta.get('generation', 0)}"


def revision(vm: Obj) -> Obj:
    """A record of the VM as it is when it starts."""
    of_vm, owners = vm["metadata"], [owner_reference(vm, VMS)]
    meta = {"name": revision_name(vm), "namespace": of_vm["namespace"], "ownerReferences": owners}
    return CONTROLLER_REVISIONS.object(meta, data={"spec": vm["spec"]}, revision=of_vm.get("generation", 0))


def template_changes(started_with: Obj, now: Obj, instance: Mapping[str, Any] = {}) -> list[str]:
    """Paths in the template's spec that differ between two specs of a VM, but for what the `instance` has followed."""
    old, new = ((spec.get("template") or {}).get("spec") or {} for spec in (started_with, now))
    return list(_differences(*liveupdate.settled(old, new, instance)))


def same_metadata(started_with: Obj, now: Obj) -> bool:
    """Whether the templates of two specs of a VM give an instance the same labels and annotations.

    The layout of PCI ports does not count, which comes from the instance.
    """
    old, new = ((spec.get("template") or {}).get("metadata") or {} for spec in (started_with, now))
    ports = dict.fromkeys((names.PCI_TOPOLOGY_VERSION, names.PCI_INTERFACE_SLOTS))
    return all(
        {**(old.get(key) or {}), **ports} == {**(new.get(key) or {}), **ports} for key in ("labels", "annotations")
    )


def _differences(old: Any, new: Any, path: str = "") -> Iterator[str]:
    if isinstance(old, dict) and isinstance(new, dict):
        for key in sorted(old.keys() | new.keys()):
            yield from _differences(old.get(key), new.get(key), f"{path}.{key}" if path else key)
    elif old != new:
        yield path
