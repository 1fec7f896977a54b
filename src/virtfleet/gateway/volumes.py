"""Requests to plug volumes in and out: checked as KubeVirt checks them, and written where they are carried out.

Of a VM, a request goes into its status, from where virt-controller takes it into template and instance; or into the
template at once, where the cluster plugs by what templates say. Of a VMI, it goes into the spec of the running VMI.
What admission would say to the change is asked first, so that whoever asks gets to know.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec

from virtfleet.admission.findings import Findings
from virtfleet.admission.names import dns_subdomain_error
from virtfleet.admission.updates import check_pluggable
from virtfleet.api import hotplug
from virtfleet.api.disks import Volume
from virtfleet.api.view import fields, given
from virtfleet.gateway.vms import VMI_NOT_RUNNING, Options, Vm, Vmi, Vms, bad_request
from virtfleet.installation import Installation
from virtfleet.kube.api import KubeApi
from virtfleet.kube.resource import VMIS, VMS, Obj


class AddVolumeOptions(Options):
    """The body of a request to attach a volume."""

    name: str = ""
    disk: dict[str, Any] | None = None
    volume_source: Volume | None = None

    def request(self) -> Obj:
        """What is written into a VM's status."""
        named: Obj = msgspec.to_builtins(self.volume_source)
        source = {kind: {**named[kind], "hotpluggable": True} for kind in hotplug.SOURCES if kind in named}
        add = {"name": self.name, "disk": {**(self.disk or {}), "name": self.name}, "volumeSource": source}
        return {"addVolumeOptions": add}


class RemoveVolumeOptions(Options):
    """The body of a request to detach a volume."""

    name: str = ""

    def request(self) -> Obj:
        """What is written into a VM's status."""
        return {"removeVolumeOptions": {"name": self.name}}


def check_add(machine: Vm | Vmi, options: AddVolumeOptions) -> None:
    """Whether a volume can be added, as far as the machine itself tells."""
    if not options.name:
        raise bad_request("AddVolumeOptions requires name to be set")
    if options.disk is None:
        raise bad_request("AddVolumeOptions requires disk to not be nil")
    source = options.volume_source or Volume()
    if others := [kind for kind in given(source, fields(Volume)) if kind not in ("name", *hotplug.SOURCES)]:
        raise bad_request(
            f"AddVolumeOptions requires VolumeSource to be a claim or a DataVolume, not {others[0]}: to give the VM"
            " one, add it to the VM's volumes and disks and restart the VM, or put its content into a claim"
        )
    claim = _source(source)
    if not claim:
        raise bad_request("AddVolumeOptions requires VolumeSource to not be nil: name a claim or a DataVolume in it")
    if why := dns_subdomain_error(options.name):
        raise bad_request(f"{options.name!r} cannot be the name of a volume: {why}")
    findings = Findings()
    check_pluggable(options.disk, options.name, "disk", findings)
    if not findings.allowed:
        raise bad_request(findings.causes[0].message)
    for volume in _volumes(machine):
        if volume.name == options.name:
            raise machine.conflict(
                f"Unable to add volume [{options.name}] because volume with that name already exists"
            )
        if claim == _source(volume):
            raise machine.conflict(f"Unable to add volume source [{claim}] because it already exists")


def check_remove(machine: Vm | Vmi, options: RemoveVolumeOptions) -> None:
    """Whether a volume can be removed."""
    if not options.name:
        raise bad_request("RemoveVolumeOptions requires name to be set")
    volume = next((v for v in _volumes(machine) if options.name in (v.name, _source(v))), None)
    if volume is None:
        raise machine.conflict(f"Unable to remove volume [{options.name}] because it does not exist")
    source = volume.data_volume or volume.persistent_volume_claim
    if source is None or not source.hotpluggable:
        raise machine.conflict(f"Unable to remove volume [{volume.name}] because it is not hotpluggable")


@dataclass
class Plugging:
    """Carries such requests out."""

    _api: KubeApi
    _vms: Vms

    async def add(self, machine: Vm | Vmi, options: AddVolumeOptions, cluster: Installation) -> None:
        check_add(machine, options)
        await self._write(machine, options, cluster)

    async def remove(self, machine: Vm | Vmi, options: RemoveVolumeOptions, cluster: Installation) -> None:
        check_remove(machine, options)
        await self._write(machine, options, cluster)

    async def _write(
        self, machine: Vm | Vmi, options: AddVolumeOptions | RemoveVolumeOptions, cluster: Installation
    ) -> None:
        request, dry_run = options.request(), bool(options.dry_run)
        if isinstance(machine, Vmi):
            owned = any(owner.kind == VMS.kind for owner in machine.view.metadata.owner_references)
            if owned and cluster.plugs_by_template:
                raise bad_request(f"VMI {machine.namespace}/{machine.name} is owned by a VM; change the VM instead")
            if not machine.running:
                raise machine.conflict(f"{VMI_NOT_RUNNING}; volumes are plugged while it runs")
            await self._change(machine, request, dry_run=dry_run)
            return
        await self._change(machine, request, dry_run=dry_run or not cluster.plugs_by_template)
        if cluster.plugs_by_template:
            return
        vmi = await self._vms.vmi_if_any(machine.namespace, machine.name)
        if vmi and vmi.running:
            await self._change(vmi, request, dry_run=True)
        await self._request(machine, request, dry_run=dry_run)

    async def _change(self, machine: Vm | Vmi, request: Obj, *, dry_run: bool) -> None:
        """Change the spec of a VMI, or that of a VM's template. Lists are everybody's: nothing unseen is undone."""
        spec, resource = machine.object["spec"], VMIS
        if isinstance(machine, Vm):
            spec, resource = spec["template"]["spec"], VMS
        change = hotplug.with_request(spec, request)
        patch = machine.patch(spec={"template": {"spec": change}} if isinstance(machine, Vm) else change)
        await self._api.patch(resource, machine.name, patch, machine.namespace, dry_run=dry_run)

    async def _request(self, vm: Vm, request: Obj, *, dry_run: bool) -> None:
        """Put a request behind those that wait."""
        waiting = (vm.object.get("status") or {}).get("volumeRequests") or []
        kind, name = next(iter(request)), next(iter(request.values()))["name"]
        if any((other.get(kind) or {}).get("name") == name for other in waiting):
            what = "add" if kind == "addVolumeOptions" else "remove"
            raise vm.conflict(f"{what} volume request for volume [{name}] already exists; wait for it")
        patch = vm.patch(status={"volumeRequests": [*waiting, request]})
        await self._api.patch(VMS, vm.name, patch, vm.namespace, subresource="status", dry_run=dry_run)


def _volumes(machine: Vm | Vmi) -> list[Volume]:
    return machine.view.spec.template.spec.volumes if isinstance(machine, Vm) else machine.view.spec.volumes


def _source(volume: Volume) -> str | None:
    if volume.data_volume:
        return volume.data_volume.name
    return volume.persistent_volume_claim.claim_name if volume.persistent_volume_claim else None
