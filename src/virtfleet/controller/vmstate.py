"""What the firmware and the TPM of a VM remember: a claim of its own, which outlives its runs and goes with the VM.

Two launchers never share one: TPM emulators and QEMU would write to the same files. A migration therefore has a claim
made for its target, into which the hypervisor copies what the source has. Which of the two counts is decided by where
the guest came to run, which the VMI's status says in one write; only then the other one is deleted.
"""

from __future__ import annotations

from virtfleet.api import kinds, names
from virtfleet.controller.lifecycle import FAILED_CREATE, Trouble, state_status
from virtfleet.controller.records.cluster import Claim
from virtfleet.controller.records.instance import Instance
from virtfleet.controller.records.kept import Owner
from virtfleet.controller.shared import Part
from virtfleet.kube.errors import ignoring, is_already_exists, is_not_found
from virtfleet.kube.resource import PERSISTENT_VOLUME_CLAIMS, STORAGE_CLASSES, VMIS, Obj
from virtfleet.pods.launcher import vmi_id
from virtfleet.pods.vmstate import claim_name

SIZE = "10Mi"
_DEFAULT_FOR_VMS = "storageclass.kubevirt.io/is-default-virt-class"
_DEFAULT = "storageclass.kubernetes.io/is-default-class"


class NoState(Exception):
    """There can be no claim as things are; the message is for whoever can change that."""


def arrived_in(vmi: Instance) -> str:
    """The claim that came to count by the VMI's last migration."""
    state = vmi.status.migration_state
    moved = state is not None and bool(state.target_node) and vmi.status.node_name == state.target_node
    return state.target_persistent_state_pvc_name if state and moved else ""


class VmStates(Part):
    """The claims. Nothing is remembered: labels, names and the VMI's status say whose they are."""

    def of(self, vmi: Instance) -> Claim | None:
        """The one that counts."""
        if claim := self._claims.get(f"{vmi.namespace}/{arrived_in(vmi)}"):
            return claim
        own = [c for c in self._claims.by_index("state", f"{vmi.namespace}/{vmi_id(vmi.name)}") if not c.deleting]
        return max(own, key=lambda c: c.metadata.creation_timestamp, default=None)

    async def ready(self, vmi: Instance) -> tuple[Claim | None, Trouble | None]:
        """The claim for a VMI that is to start, made where there is none; or why there is none."""
        if not vmi.spec.keeps_state:
            return None, None
        claim = self.of(vmi)
        try:
            claim = claim or await self._make(vmi, claim_name(vmi.name), {names.STATE_FOR: vmi_id(vmi.name)})
        except NoState as error:
            return None, Trouble(FAILED_CREATE, str(error))
        owner = vmi.controller
        if claim.controller and claim.controller.uid not in (vmi.uid, owner.uid if owner else ""):
            said = f"claim {claim.name} is that of an earlier VM of the same name; it goes with that one, or delete it"
            return None, Trouble(FAILED_CREATE, said)
        return claim, None

    async def for_target(self, vmi: Instance, migration: str, uid: str) -> str:
        """The name of the claim into which a migration takes the VM's state, once it is there."""
        if not vmi.spec.keeps_state:
            return ""
        return (await self._make(vmi, claim_name(vmi.name, uid), {names.STATE_MIGRATION: vmi_id(migration)})).name

    async def follow(self, vmi: Instance) -> None:
        """After a migration, the VM has the claim that its state came into, and no other."""
        name, state = arrived_in(vmi), vmi.status.migration_state
        claim = await self._known(vmi.namespace, name) if name else None
        if claim is None or state is None:
            return
        if names.STATE_FOR not in claim.metadata.labels:
            labels = {names.STATE_FOR: vmi_id(vmi.name), names.STATE_MIGRATION: None}
            change = {"metadata": {"uid": claim.uid, "labels": labels}}
            await self._claims.change(claim.key, change)
        await self._show(vmi, claim)
        before = self._claims.get(f"{vmi.namespace}/{state.source_persistent_state_pvc_name}")
        if before and before.name != name and not before.deleting:
            await self._claims.remove(before.key, before.uid)

    async def forget(self, vmi_name: str, namespace: str, migration_uid: str) -> None:
        """Delete the claim of a migration after which the guest did not come to run in it."""
        claim = self._claims.get(f"{namespace}/{claim_name(vmi_name, migration_uid)}")
        if claim and names.STATE_MIGRATION in claim.metadata.labels and not claim.deleting:
            await self._claims.remove(claim.key, claim.uid, resource_version=claim.metadata.resource_version)

    async def _known(self, namespace: str, name: str) -> Claim | None:
        with ignoring(is_not_found):
            if self._claims.get(f"{namespace}/{name}") is None:
                await self._claims.fetch(f"{namespace}/{name}")
        return self._claims.get(f"{namespace}/{name}")

    async def _show(self, vmi: Instance, claim: Claim) -> None:
        shown = next((entry for entry in vmi.status.volume_status if entry.name == names.STATE_VOLUME), None)
        if vmi.final or (shown and shown.claim == claim.name):
            return
        with ignoring(is_not_found):
            whole = await self._whole(vmi)
            present = (whole.get("status") or {}).get("volumeStatus") or []
            entries = [entry for entry in present if entry["name"] != names.STATE_VOLUME]
            await self._patch_instance(vmi, {"status": {"volumeStatus": [*entries, state_status(claim)]}}, whole)

    async def _make(self, vmi: Instance, name: str, labels: dict[str, str]) -> Claim:
        if known := self._claims.get(f"{vmi.namespace}/{name}"):
            if known.deleting:
                raise NoState(f"claim {name} is being deleted; it is made anew when that is done")
            return known
        wanted = self._settings.configuration.vm_state_storage_class
        meta = {
            "name": name,
            "namespace": vmi.namespace,
            # By the first, a provisioner's profile in CDI may have it made larger.
            "labels": {"cdi.kubevirt.io/applyStorageProfile": "true", **labels},
            "ownerReferences": [_owner(vmi)],
        }
        spec = {
            "accessModes": ["ReadWriteMany" if wanted else "ReadWriteOnce"],
            "resources": {"requests": {"storage": SIZE}},
            "storageClassName": wanted or await self._default_class(),
            "volumeMode": "Filesystem",
        }
        with ignoring(is_already_exists):
            return await self._claims.create(PERSISTENT_VOLUME_CLAIMS.object(meta, spec=spec))
        made = await self._known(vmi.namespace, name)
        if made is None:
            raise NoState(f"claim {name} was deleted as soon as it was made; it is made anew")
        return made

    async def _default_class(self) -> str:
        classes = await self._api.list(STORAGE_CLASSES)
        for mark in (_DEFAULT_FOR_VMS, _DEFAULT):
            for each in classes:
                if (each["metadata"].get("annotations") or {}).get(mark) == "true":
                    return str(each["metadata"]["name"])
        raise NoState(
            "the VM's firmware or TPM is to remember things, and no storage class is the default: name one in"
            " configuration.vmStateStorageClass of the KubeVirt object, or mark one as the default"
        )


def _owner(vmi: Instance) -> Obj:
    """Whoever keeps the VM; a VMI without a VM takes its state along."""
    owner = vmi.controller
    if owner is None or owner.kind != kinds.VM.kind:
        owner = Owner(VMIS.kind, vmi.name, vmi.uid)
    about = {"kind": owner.kind, "name": owner.name, "uid": owner.uid, "controller": True}
    return {"apiVersion": VMIS.api_version, **about}
