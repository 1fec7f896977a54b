"""Volumes of a running VM whose claims are changed: their data goes to the new ones, by a migration that copies disks.

`updateVolumesStrategy: Migration` asks for it. One write tells the VMI of the new claims and of the old ones
(`status.migratedVolumes`), so that a Pod made for it from then on has the new ones; the target's handler takes that
back when the guest has arrived with its data. Before that write the VM's status names the claims, and as long as it
does, the VM is not started on claims that may hold half of its data.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from hashlib import blake2s

from virtfleet.api import conditions, hotplug, kinds, names
from virtfleet.api.names import Phase, VMICondition
from virtfleet.controller.datavolumes import records as datavolumes
from virtfleet.controller.lifecycle import claim_info
from virtfleet.controller.migration import retries
from virtfleet.controller.migration.records import Migration, migration_of
from virtfleet.controller.records.cluster import Claim
from virtfleet.controller.records.instance import Instance, Migrated
from virtfleet.controller.records.vm import Vm
from virtfleet.controller.shared import Part, Shared
from virtfleet.kube.cache import Cache
from virtfleet.kube.controller import Controller
from virtfleet.kube.errors import ignoring, is_already_exists
from virtfleet.kube.resource import VMS, Obj, owner_reference

STRATEGY = "Migration"
_CANCELLED = "VolumesChangeCancellation"
_SHARED = "ReadWriteMany"
_REVERT = "The volume can only be reverted to the previous version during the update"


def asked(vm: Vm, vmi: Instance) -> dict[str, str]:
    """Volumes that the template has on other claims than the instance, and these claims."""
    here = vmi.spec.claims
    return {name: claim for name, claim in vm.spec.template.spec.claims.items() if here.get(name, claim) != claim}


def involved(vm: Vm, vmi: Instance, changed: Mapping[str, str], claims: Cache[Claim]) -> dict[str, Claim]:
    """The claims by which a change is judged, by name: those that the VM has and those that it is to have."""
    of_either = {*changed.values(), *vmi.spec.claims.values()}
    return {name: claim for name in of_either if (claim := claims.get(f"{vm.namespace}/{name}"))}


def obstacle(vm: Obj, vmi: Instance, changed: Collection[str], claims: Mapping[str, Claim]) -> str:
    """Why data cannot go to other claims, in KubeVirt's words; a restart uses them as they are."""
    spec = vm["spec"]["template"]["spec"]
    devices = spec["domain"].get("devices") or {}
    disks = {disk["name"]: disk for disk in devices.get("disks") or () if disk["name"] in changed}
    kinds_of = {
        "hotplugged": [v["name"] for v in spec.get("volumes") or () if v["name"] in changed and hotplug.claim_of(v)],
        "filesystems": [f["name"] for f in devices.get("filesystems") or () if f["name"] in changed],
        "shareable": [name for name, disk in disks.items() if disk.get("shareable")],
        "luns": [name for name, disk in disks.items() if disk.get("lun") is not None],
    }
    if wrong := " ".join(f"{kind}: [{' '.join(found)}]" for kind, found in kinds_of.items() if found):
        return f"invalid volumes to update with migration: {wrong}"
    fixed = conditions.find(vmi.status.conditions, VMICondition.STORAGE_LIVE_MIGRATABLE)
    if fixed and fixed["status"] == "False":
        return f"cannot migrate the volumes as the VMI isn't migratable: {fixed.get('message') or ''}"
    for name, claim in vmi.spec.claims.items():
        known = claims.get(claim)
        if name not in changed and known and _SHARED not in known.spec.access_modes:
            return f"cannot migrate the VM. The volume {name} is RWO and not included in the migration volumes"
    return ""


def reverted(vm: Vm, copied: Collection[Migrated]) -> bool:
    """The template has all of these volumes on the claims that they came from."""
    wanted = vm.spec.template.spec.claims
    return all(wanted.get(volume.volume_name) == volume.source for volume in copied)


def prefix(vmi: Instance) -> str:
    """Which names of migrations that copy these volumes begin with."""
    claims = "/".join(sorted(f"{v.volume_name}={v.destination}" for v in vmi.status.migrated_volumes))
    return f"volumes-{blake2s(f'{vmi.uid}/{claims}'.encode(), digest_size=8).hexdigest()}"


class VolumeUpdates(Part):
    """The controller. A VM and its instance have the same name, and so the same key."""

    def __init__(self, shared: Shared) -> None:
        super().__init__(shared)
        self.controller = Controller(f"{kinds.VM.singular}-volumes", self.reconcile)
        self._follow_vms(self.controller)
        self.controller.follow(self._migrations, lambda move: [move.vmi_key] if self._vms.get(move.vmi_key) else [])

    async def reconcile(self, key: str) -> float | None:
        """Begin, carry on or take back a change of claims; say in the VM's status what is being copied."""
        vm, vmi = self._vms.get(key), self._instances.get(key)
        if vm is None or vm.deleting:
            return None
        runs = vmi is not None and vmi.controlled_by(vm.uid) and not vmi.final and not vmi.deleting
        if vmi is None or not runs or vmi.phase != Phase.RUNNING:
            # What was under way when the instance ended is for the owner to sort out, by the template.
            if vm.copying and (reverted(vm, vm.copying) or vm.spec.update_volumes_strategy != STRATEGY):
                await self._tell(vm, [])
            return None
        if vmi.status.migrated_volumes:
            return await self._carry_on(vm, vmi)
        if changed := asked(vm, vmi) if vm.spec.update_volumes_strategy == STRATEGY else {}:
            # A target Pod that is there already has the old claims; the end of its migration brings us here again.
            if not vmi.open_migration and not self._moving(vmi):
                await self._begin(vm, vmi, changed)
        elif vm.copying:
            await self._tell(vm, [])
        return None

    async def _begin(self, vm: Vm, vmi: Instance, changed: Mapping[str, str]) -> None:
        claims = involved(vm, vmi, changed, self._claims)
        if missing := [claim for claim in changed.values() if claim not in claims]:
            why = f"One of the destination volumes doesn't exist: PVC {', '.join(sorted(missing))} not found"
            return await self._condition(vmi, "False", message=why)
        keys = [f"{vm.namespace}/{claim}" for claim in sorted(changed.values())]
        if unfilled := datavolumes.unfilled(self._volumes, self._claims, keys):  # whoever fills it would undo the copy
            why = f"waiting for DataVolumes to be filled: {', '.join(volume.name for volume in unfilled)}"
            return await self._condition(vmi, "False", message=why)
        if why := obstacle(vm.object(), vmi, changed, claims):
            self._recorder.warning(vm.reference, "VolumesUpdateError", f"{why}; restart the VM to use the new claims")
            return None
        copied = [
            {
                "volumeName": name,
                "sourcePVCInfo": _info(vmi.spec.claims[name], claims),
                "destinationPVCInfo": _info(claim, claims),
            }
            for name, claim in sorted(changed.items())
        ]
        await self._tell(vm, copied)
        whole = await self._whole(vmi)
        if whole["metadata"]["uid"] != vmi.uid or whole["metadata"]["resourceVersion"] != vmi.metadata.resource_version:
            return None  # its change is on the way to us
        status = {"migratedVolumes": copied, "conditions": self._conditions(whole, "True", message="migrate volumes")}
        await self._patch_instance(vmi, {"spec": {"volumes": _volumes(whole["spec"], vm, changed)}, "status": status})
        said = f"The data of {', '.join(sorted(changed))} is copied to other claims"
        self._recorder.normal(vm.reference, "VolumesUpdate", said)

    async def _carry_on(self, vm: Vm, vmi: Instance) -> float | None:
        """Have a migration copy them, and another one where that failed; the answer is after how many seconds."""
        copied = vmi.status.migrated_volumes
        attempts = [m for m in self._migrations.by_index("vmi", vmi.key) if m.name.startswith(prefix(vmi))]
        under_way = next((move for move in attempts if not move.final), None)
        if reverted(vm, copied):
            await self._take_back(vm, vmi, under_way)
        elif asked(vm, vmi):
            self._recorder.warning(vm.reference, "VolumesUpdateError", _REVERT)
        elif not under_way and not conditions.holds(vmi.status.conditions, VMICondition.LIVE_MIGRATABLE, "False"):
            failed = retries.failures(attempts, lambda _: True)
            if (left := retries.pause_ends(failed) - time.time()) > 0:
                return left
            of_vm, marks = [owner_reference(vm.object(), VMS)], {names.VOLUME_UPDATE: vmi.name}
            wanted = migration_of(
                vmi, f"{prefix(vmi)}-{retries.attempt(attempts)}", labels=marks, ownerReferences=of_vm
            )
            with ignoring(is_already_exists):
                await self._migrations.create(wanted)
        return None

    async def _take_back(self, vm: Vm, vmi: Instance, move: Migration | None) -> None:
        """End the copying first: where it was faster, the new claims are the VM's, and their data goes back."""
        if move:
            if not move.deleting:
                await self._migrations.remove(move.key, move.uid)
            return
        if vmi.open_migration:
            return
        whole = await self._whole(vmi)
        if whole["metadata"]["resourceVersion"] != vmi.metadata.resource_version:
            return
        changed = [volume.volume_name for volume in vmi.status.migrated_volumes]
        status = {"migratedVolumes": None, "conditions": self._conditions(whole, "False", reason=_CANCELLED)}
        await self._patch_instance(vmi, {"spec": {"volumes": _volumes(whole["spec"], vm, changed)}, "status": status})

    # -- writing

    async def _tell(self, vm: Vm, copied: list[Obj]) -> None:
        """Name in the VM's status the claims that are copied; none where that is over."""
        state = {"volumeMigrationState": {"migratedVolumes": copied}} if copied else None
        if ((vm.object().get("status") or {}).get("volumeUpdateState")) == state:
            return
        patch = {"metadata": {"resourceVersion": vm.metadata.resource_version}, "status": {"volumeUpdateState": state}}
        await self._vms.change(vm.key, patch, subresource="status")

    @staticmethod
    def _conditions(vmi: Obj, status: str, *, reason: str = "", message: str = "") -> list[conditions.Condition]:
        held, kind = vmi["status"].get("conditions") or [], VMICondition.VOLUMES_CHANGE
        return conditions.put(held, kind, status, time.time(), reason=reason, message=message)

    async def _condition(self, vmi: Instance, status: str, *, message: str) -> None:
        whole = {"status": {"conditions": vmi.status.conditions}}
        wanted = self._conditions(whole, status, message=message)
        if wanted != vmi.status.conditions:
            await self._patch_instance(vmi, {"status": {"conditions": wanted}})


def _info(name: str, claims: Mapping[str, Claim]) -> Obj:
    claim = claims.get(name)
    return claim_info(claim) if claim else {"claimName": name}


def _volumes(spec: Obj, vm: Vm, changed: Collection[str]) -> list[Obj]:
    """The volumes of a spec, those that change as the template has them."""
    template = {volume["name"]: volume for volume in vm.object()["spec"]["template"]["spec"].get("volumes") or ()}
    return [template[v["name"]] if v["name"] in changed else v for v in spec.get("volumes") or ()]


def as_of_now(started_with: Obj, vm: Vm, vmi: Instance) -> Obj:
    """The spec that the VM was started with, but with the claims that its data has gone to since, by the template."""
    spec, here = started_with["template"]["spec"], vmi.spec.claims
    gone = [name for name, claim in vm.spec.template.spec.claims.items() if here.get(name) == claim]
    spec = {**spec, "volumes": _volumes(spec, vm, gone)}
    return {**started_with, "template": {**started_with["template"], "spec": spec}}
