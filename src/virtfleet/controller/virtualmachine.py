"""VMs: an instance as the run strategy wants it, started and stopped on request, and what has become of it."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from functools import partial, reduce

from virtfleet.api import conditions, hotplug, interfaceplug, kinds, names
from virtfleet.api.names import Phase, VMICondition
from virtfleet.controller import liveupdate, strategy, templates, vmstatus, vmtypes, volumeupdate
from virtfleet.controller.datavolumes import records as datavolumes
from virtfleet.controller.datavolumes.records import DataVolume
from virtfleet.controller.following import Following
from virtfleet.controller.lifecycle import FAILED_CREATE, Trouble
from virtfleet.controller.records.cluster import Claim
from virtfleet.controller.records.instance import Instance
from virtfleet.controller.records.vm import Vm, claim_keys
from virtfleet.controller.shared import Part, Shared
from virtfleet.controller.strategy import Act
from virtfleet.controller.vmstatus import View
from virtfleet.controller.vmtypes import Untyped
from virtfleet.instancetypes import applying
from virtfleet.instancetypes.applying import Conflict
from virtfleet.instancetypes.matching import PARTS, Types, marks
from virtfleet.kube.controller import Controller
from virtfleet.kube.errors import ApiError, ignoring, is_already_exists, is_conflict, is_not_found
from virtfleet.kube.resource import CONTROLLER_REVISIONS, VMIS, VMS, Obj, owner_reference

WORKERS = 10
FAILED_DELETE = "FailedDelete"
TYPE_PAUSE = 5.0
"""Seconds after which is looked again for an instance type that is not there."""
_REMEMBERED = 1000  # VMs whose types are
_ORPHAN = "orphan"  # the garbage collector's finalizer for an owner whose dependents are to stay


def _is_behind(vm: Vm, vmi: Instance) -> bool:
    """The VM has changed since this instance was started."""
    started = vmi.metadata.annotations.vm_generation
    known = bool(vmi.status.virtual_machine_revision_name) and not vmi.deleting and not vmi.final
    return known and started != str(vm.metadata.generation)


def _busy(vmi: Obj) -> list[str]:
    """Volumes that the status still has something to say of: they may be on their way out."""
    return [entry["name"] for entry in (vmi.get("status") or {}).get("volumeStatus") or ()]


def _followed(vmi: Obj, following: Following) -> Obj:
    """The patch of an instance that follows its template, and says at once what it waits for."""
    held = vmi["status"].get("conditions") or []
    for kind, message in following.pending.items():
        # Whether it has to move is not known yet; KubeVirt's word for that.
        status, reason = (
            ("False", "AutoMigrationPending") if kind == VMICondition.MIGRATION_REQUIRED else ("True", "Pending")
        )
        held = conditions.put(held, kind, status, time.time(), reason=reason, message=message)
    about = {"resourceVersion": vmi["metadata"]["resourceVersion"], "uid": vmi["metadata"]["uid"]}
    return {"metadata": about, "spec": following.spec, "status": {"conditions": held}}


class ForeignInstance(Exception):
    """The VM's name is taken by an instance that is not its own."""


class VirtualMachines(Part):
    """The controller. A VM and its instance have the same name, and so the same key."""

    def __init__(self, shared: Shared) -> None:
        super().__init__(shared)
        self._types: dict[str, tuple[object, Types]] = {}  # what is kept of types never changes
        self.controller = Controller(kinds.VM.singular, self.reconcile, workers=WORKERS)
        self._follow_vms(self.controller)

    async def reconcile(self, key: str) -> float | None:
        """Do what the run strategy asks for, say how it stands, let an instance go whose end was noted."""
        vm = self._vms.get(key)
        if vm is None:
            return None
        if vm.deleting:
            await self._end(vm)
            return None
        if names.VM_FINALIZER not in vm.metadata.finalizers:
            vm = await self._patch(vm, {"metadata": {"finalizers": [*vm.metadata.finalizers, names.VM_FINALIZER]}})
        decision = strategy.Decision(Act.NOTHING)
        vmi, trouble, types = None, None, None
        try:
            vm, types = await self._typed(vm)
        except (Untyped, Conflict) as error:
            trouble = Trouble(getattr(error, "reason", FAILED_CREATE), str(error))
        try:
            await self._make_volumes(vm)
            vmi = await self._instance_of(vm)
            decision = strategy.decide(vm, vmi, time.time())
            if decision.act is not Act.START or (types is not None and not self._unfilled(vm)):
                vm, vmi = await self._act(decision.act, vm, vmi, types)
            vm = await self._keep_topology(vm, vmi)
            vm, vmi = await self._plug(vm, vmi)
            vm, vmi = await self._connect(vm, vmi)
        except (ApiError, ForeignInstance, Conflict) as error:
            if is_conflict(error):
                raise
            trouble = Trouble(FAILED_DELETE if decision.act in (Act.STOP, Act.RERUN) else FAILED_CREATE, str(error))
        changes: list[str] = []
        if vmi and types is not None and _is_behind(vm, vmi):
            vmi, changes, current = await self._follow(vm, vmi, types)
            if current:
                newest = {names.VM_GENERATION: str(vm.metadata.generation)}
                vmi = await self._patch_instance(vmi, {"metadata": {"annotations": newest}})
            elif changes and not vmi.ran:  # nothing is lost, and most often the change is what it takes to run
                vm, vmi = await self._act(Act.RESTART, vm, vmi)
                changes = []
        obstacle = self._volume_obstacle(vm, vmi) if vmi and changes else ""
        view = View(vm, vmi, self._claims_of(vm), trouble, tuple(changes), self._unfilled(vm), obstacle)
        await self._write_status(view)
        if vmi and vmi.final:
            await self._release(vmi)
        if types is None:
            return TYPE_PAUSE
        if trouble:
            raise ApiError("InternalError", trouble.message)
        return decision.look_again

    # -- its instance type and preference

    async def _typed(self, vm: Vm) -> tuple[Vm, Types]:
        """What the VM names, once it is kept and its status says where. Raises Untyped, or Conflict."""
        if not any(vm.types):
            return vm, Types()
        policy = self._settings.reference_policy
        if (known := self._types.get(vm.key)) and known[0] == (policy, vm.types):
            return vm, known[1]
        types = await vmtypes.find(self._api, vm.object())
        named, kept = any(vm.types[:2]), any(vm.types[2:])
        if named and (policy == "expandAll" or (policy == "expand" and not kept)):
            return await self._expanded(vm, types), Types()
        before = vm.object()
        if change := await vmtypes.keep(self._api, before):
            vm = await self._patch(vm, {"status": change}, "status")
            await vmtypes.forget(self._api, before, vm.object())
            types = await vmtypes.find(self._api, vm.object())
        vmtypes.whole(vm.object(), types)
        if len(self._types) >= _REMEMBERED:
            self._types.clear()
        self._types[vm.key] = (policy, vm.types), types
        return vm, types

    async def _expanded(self, vm: Vm, types: Types) -> Vm:
        """The VM takes over what they say, and names none any more."""
        before = vm.object()
        template = applying.standing_alone(before, types, self._settings)["spec"]["template"]
        named = dict.fromkeys(part.field for part in PARTS)
        vm = await self._patch(vm, {"spec": {**named, "template": template}})
        vm = await self._patch(vm, {"status": dict.fromkeys(part.ref for part in PARTS)}, "status")
        await vmtypes.forget(self._api, before, vm.object())
        return vm

    # -- DataVolumes, which are filled before it starts

    async def _make_volumes(self, vm: Vm) -> None:
        """Those of its templates, where neither they nor claims of their names are there."""
        for template in vm.spec.data_volume_templates:
            wanted = templates.data_volume(vm.object(), template)
            key = f"{vm.namespace}/{wanted['metadata']['name']}"
            if self._volumes.get(key) or self._claims.get(key):
                continue
            with ignoring(is_already_exists):
                made = await self._volumes.create(wanted)
                self._recorder.normal(vm.reference, "SuccessfulDataVolumeCreate", f"Created DataVolume {made.name}")

    def _unfilled(self, vm: Vm) -> tuple[DataVolume, ...]:
        return tuple(datavolumes.unfilled(self._volumes, self._claims, claim_keys(vm)))

    # -- starting and stopping

    async def _act(
        self, act: Act, vm: Vm, vmi: Instance | None, types: Types | None = None
    ) -> tuple[Vm, Instance | None]:
        """The VM and its instance afterwards."""
        match act:
            case Act.START:
                vmi = await self._start(vm, types or Types())
            case Act.STOP if vmi:
                vmi = await self._stop(vm, vmi)
            case Act.RERUN | Act.RESTART if vmi:
                stop = [{"action": strategy.STOP, "uid": vmi.uid}] if act is Act.RESTART else []
                requests = [*stop, {"action": strategy.START}]
                vm = await self._patch(vm, {"status": {"stateChangeRequests": requests}}, "status")
                vmi = await self._stop(vm, vmi)
            case Act.SWITCH_ON:
                on = {"runStrategy": "Always"} if vm.spec.running is None else {"running": True}
                vm = await self._patch(vm, {"spec": on})
        return vm, vmi

    async def _start(self, vm: Vm, types: Types) -> Instance | None:
        obj = vm.object()
        with ignoring(is_already_exists):  # from an earlier attempt to start
            await self._api.create(CONTROLLER_REVISIONS, templates.revision(vmtypes.whole(obj, types)))
        if types != Types():
            template = applying.expanded(obj["spec"]["template"], types, self._settings)
            obj = applying.with_template(obj, template)
        wanted = templates.instance_of_vm(obj, paused=strategy.wants_start_paused(vm))
        wanted["metadata"]["annotations"] |= marks(obj)
        with ignoring(is_already_exists):
            vmi = await self._instances.create(wanted)
            what = f"Started the virtual machine by creating the new virtual machine instance {vm.name}"
            self._recorder.normal(vm.reference, "SuccessfulCreate", what)
            return vmi
        await self._instances.fetch(vm.key)
        return await self._instance_of(vm)

    async def _stop(self, vm: Vm, vmi: Instance) -> Instance | None:
        if not vmi.deleting:
            if not await self._instances.remove(vmi.key, vmi.uid):
                return vmi
            what = f"Stopped the virtual machine by deleting the virtual machine instance {vmi.uid}"
            self._recorder.normal(vm.reference, "SuccessfulDelete", what)
        return self._instances.get(vm.key)

    async def _end(self, vm: Vm) -> None:
        """Take the instance away before the VM, unless somebody wants to keep it."""
        vmi = self._instances.get(vm.key)
        owned = vmi is not None and vmi.controlled_by(vm.uid)
        if not vmi or not owned or _ORPHAN in vm.metadata.finalizers:
            left = [f for f in vm.metadata.finalizers if f != names.VM_FINALIZER]
            if left != vm.metadata.finalizers:
                await self._patch(vm, {"metadata": {"finalizers": left}})
            return
        now = await self._stop(vm, vmi)
        await self._write_status(View(vm, now, self._claims_of(vm)))
        if now and now.final:
            await self._release(now)

    # -- the instance

    async def _instance_of(self, vm: Vm) -> Instance | None:
        """The VM's instance; one that nobody controls becomes the VM's."""
        vmi = self._instances.get(vm.key)
        if vmi is None or vmi.controlled_by(vm.uid):
            return vmi
        if vmi.controller is None and not vmi.deleting and not vmi.final:
            owners = [owner_reference(vm.object(), VMS)]
            return await self._patch_instance(vmi, {"metadata": {"ownerReferences": owners}})
        raise ForeignInstance(f"VMI {vmi.name} exists and is not this VM's; the VM starts when it is gone")

    async def _release(self, vmi: Instance) -> None:
        """How the instance ended is in the VM's status now: it may go."""
        left = [f for f in vmi.metadata.finalizers if f != names.VM_FINALIZER]
        if left == vmi.metadata.finalizers:
            return
        if vmi.status.virtual_machine_revision_name:
            with ignoring(is_not_found):
                await self._api.delete(CONTROLLER_REVISIONS, vmi.status.virtual_machine_revision_name, vmi.namespace)
        await self._patch_instance(vmi, {"metadata": {"finalizers": left}})

    async def _keep_topology(self, vm: Vm, vmi: Instance | None) -> Vm:
        """The layout of PCI ports that the guest knows outlives the instance."""
        notes = vmi and not vmi.deleting and vmi.metadata.annotations
        if not notes or not notes.pci_topology or vm.spec.template.pci_topology:
            return vm
        kept = {names.PCI_TOPOLOGY_VERSION: notes.pci_topology, names.PCI_INTERFACE_SLOTS: notes.pci_slots}
        return await self._patch(vm, {"spec": {"template": {"metadata": {"annotations": kept}}}})

    # -- volumes that are plugged in and out

    async def _plug(self, vm: Vm, vmi: Instance | None) -> tuple[Vm, Instance | None]:
        """Carry requests out in the template and in the instance, or what an edited template says in the latter."""
        requests = vm.status.volume_requests
        declared = self._settings.plugs_by_template
        running = vmi is not None and vmi.phase == Phase.RUNNING and not vmi.deleting
        if requests:
            try:
                change = reduce(hotplug.with_request, requests, vm.object()["spec"]["template"]["spec"])
                vm = await self._patch(vm, {"spec": {"template": {"spec": change}}})
                if vmi and running:
                    vmi = await self._patch_spec(vmi, lambda o: reduce(hotplug.with_request, requests, o["spec"]))
            except ApiError as error:
                if error.code not in (400, 403, 422):
                    raise
                self._recorder.warning(vm.reference, "HotplugFailed", error.message)  # it will not get any better
            left = vm.status.volume_requests[len(requests) :]
            vm = await self._patch(vm, {"status": {"volumeRequests": left}}, "status")
        elif vmi and running and declared and vm.spec.template.spec.plugged != vmi.spec.plugged:
            template = vm.object()["spec"]["template"]["spec"]
            vmi = await self._patch_spec(vmi, lambda o: hotplug.as_declared(o["spec"], template, _busy(o)))
        return vm, vmi

    async def _connect(self, vm: Vm, vmi: Instance | None) -> tuple[Vm, Instance | None]:
        """Carry interfaces of an edited template over to the instance; what has gone from that leaves the template."""
        here, there = vm.spec.template.spec.connections, vmi.spec.connections if vmi else {}
        going = any(state == interfaceplug.ABSENT for _, state in (*here.values(), *there.values()))
        live = next((i.live_update for i in self._installations.list()), False)
        settled = here.items() <= there.items() and not going
        if settled or not live or (vmi and (vmi.phase != Phase.RUNNING or vmi.deleting)):
            return vm, vmi
        template = vm.object()["spec"]["template"]["spec"]
        attached = [status.name for status in vmi.status.interfaces] if vmi else []
        try:
            if vmi:
                declared = partial(interfaceplug.as_declared, template=template, attached=attached)
                moves = vmi.migratable
                vmi = await self._patch_spec(vmi, lambda o: declared(o["spec"], moves=moves), interfaceplug.differs)
            there = vmi.spec.connections if vmi else {}
            if left := interfaceplug.without_gone(template, [*there, *attached]):
                vm = await self._patch(vm, {"spec": {"template": {"spec": left}}})
        except ApiError as error:
            if error.code not in (400, 403, 422):
                raise
            self._recorder.warning(vm.reference, "HotPlugNetworkInterfaceError", error.message)
        return vm, vmi

    async def _patch_spec(
        self, vmi: Instance, change: Callable[[Obj], Obj], differs: Callable[[Obj, Obj], bool] = hotplug.differs
    ) -> Instance:
        whole = await self._whole(vmi)
        spec = change(whole)
        return await self._patch_instance(vmi, {"spec": spec}, whole) if differs(whole["spec"], spec) else vmi

    # -- changes that the instance follows, and those that wait for a restart

    async def _follow(self, vm: Vm, vmi: Instance, types: Types) -> tuple[Instance, list[str], bool]:
        """Give the instance what a running one can have of the template; the rest is what waits for a restart.

        Whether it is all that the template says now comes last: other labels or annotations of the template ask for no
        restart, and an instance gets them with the next.
        """
        name = vmi.status.virtual_machine_revision_name
        refused: Mapping[str, str] = {}
        with ignoring(is_not_found, lambda error: isinstance(error, Conflict)):
            whole = await self._whole(vmi)
            started_with = await self._api.get(CONTROLLER_REVISIONS, name, vmi.namespace)
            before, now = started_with["data"]["spec"], vmtypes.whole(vm.object(), types)["spec"]
            if vmi.phase == Phase.RUNNING and whole["metadata"]["uid"] == vmi.uid:
                following = liveupdate.follow(whole, now["template"]["spec"], self._settings)
                refused = following.refused
                if following.spec:
                    whole = await self._api.patch(VMIS, vmi.name, _followed(whole, following), vmi.namespace)
                    self._instances.observe(whole)
            if vm.spec.update_volumes_strategy == volumeupdate.STRATEGY:
                before = volumeupdate.as_of_now(before, vm, vmi)
            changes = templates.template_changes(before, now, whole["spec"])
            known = self._instances.get(vmi.key) or vmi
            named = [f"{path} ({refused[path]})" if path in refused else path for path in changes]
            return known, named, not changes and templates.same_metadata(before, now)
        return vmi, [], True  # nobody can tell any more

    def _volume_obstacle(self, vm: Vm, vmi: Instance) -> str:
        changed = volumeupdate.asked(vm, vmi) if vm.spec.update_volumes_strategy == volumeupdate.STRATEGY else {}
        if not changed or vmi.status.migrated_volumes:
            return ""
        claims = volumeupdate.involved(vm, vmi, changed, self._claims)
        return volumeupdate.obstacle(vm.object(), vmi, changed, claims)

    # -- writing

    async def _write_status(self, view: View) -> None:
        change = vmstatus.change(view, time.time())
        if not change:
            return
        await self._patch(view.vm, {"status": change}, "status")
        if view.trouble and "conditions" in change:  # not at every attempt that fails in the same way
            self._recorder.warning(view.vm.reference, view.trouble.reason, view.trouble.message)

    async def _patch(self, vm: Vm, patch: Obj, subresource: str | None = None) -> Vm:
        """Requests are added by others, and finalizers are everybody's: no write over what was not seen."""
        patch = {**patch, "metadata": {**patch.get("metadata", {}), "resourceVersion": vm.metadata.resource_version}}
        await self._vms.change(vm.key, patch, subresource=subresource)
        return self._vms.get(vm.key) or vm

    def _claims_of(self, vm: Vm) -> tuple[Claim, ...]:
        claims = (self._claims.get(key) for key in claim_keys(vm))
        return tuple(claim for claim in claims if claim)
