"""What the firmware and the TPM of a VM remember: a claim of its own, which outlives its runs and goes with the VM.

Two launchers never share one: TPM emulators and QEMU would write to the same files. A migration therefore has a claim
made for its target, into which the hypervisor copies what the source has. Which of the two counts is decided by where
the guest came to run, which the VMI's status says in one write; only then the other one is deleted.
"""

from __future__ import annotations

from collections.abc import Callable

from virtfleet.api import kinds, names
from virtfleet.controller.lifecycle import FAILED_CREATE, Trouble, state_status
from virtfleet.controller.records.cluster import Claim
from virtfleet.controller.records.instance import Instance
from virtfleet.installation import Installation
from virtfleet.kube.api import KubeApi
from virtfleet.kube.cache import Cache
from virtfleet.kube.errors import ignoring, is_already_exists, is_conflict, is_not_found
from virtfleet.kube.resource import PERSISTENT_VOLUME_CLAIMS, STORAGE_CLASSES, VMIS, Obj
from virtfleet.pods.launcher import vmi_id
from virtfleet.pods.vmstate import claim_name

SIZE = "10Mi"
_DEFAULT_FOR_VMS = "storageclass.kubevirt.io/is-default-virt-class"
_DEFAULT = "storageclass.kubernetes.io/is-default-class"


class NoState(Exception):
    """There can be no claim as things are; the message is for whoever can change that."""


def state_keys(claim: Claim) -> list[str]:
    """An index of claims: whose state they hold."""
    of = claim.metadata.labels.get(names.STATE_FOR)
    return [f"{claim.namespace}/{of}"] if of else []


def arrived_in(vmi: Instance) -> str:
    """The claim that came to count by the VMI's last migration."""
    state = vmi.status.migration_state
    moved = state is not None and bool(state.target_node) and vmi.status.node_name == state.target_node
    return state.target_persistent_state_pvc_name if state and moved else ""


class VmStates:
    """The claims. Nothing is remembered: labels, names and the VMI's status say whose they are."""

    def __init__(self, api: KubeApi, claims: Cache[Claim], settings: Callable[[], Installation]) -> None:
        self._api = api
        self._claims = claims
        self._settings = settings

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
            self._claims.observe(await self._api.patch(PERSISTENT_VOLUME_CLAIMS, name, change, vmi.namespace))
        await self._show(vmi, claim)
        before = self._claims.get(f"{vmi.namespace}/{state.source_persistent_state_pvc_name}")
        if before and before.name != name and not before.deleting:
            with ignoring(is_not_found, is_conflict):
                await self._api.delete(PERSISTENT_VOLUME_CLAIMS, before.name, vmi.namespace, uid=before.uid)

    async def forget(self, vmi_name: str, namespace: str, migration_uid: str) -> None:
        """Delete the claim of a migration after which the guest did not come to run in it."""
        claim = self._claims.get(f"{namespace}/{claim_name(vmi_name, migration_uid)}")
        if claim and names.STATE_MIGRATION in claim.metadata.labels and not claim.deleting:
            with ignoring(is_not_found, is_conflict):
                await self._api.delete(
                    PERSISTENT_VOLUME_CLAIMS,
                    claim.name,
                    namespace,
                    uid=claim.uid,
                    resource_version=claim.metadata.resource_version,
                )

    async def _known(self, namespace: str, name: str) -> Claim | None:
        with ignoring(is_not_found):
            if self._claims.get(f"{namespace}/{name}") is None:
                self._claims.observe(await self._api.get(PERSISTENT_VOLUME_CLAIMS, name, namespace))
        return self._claims.get(f"{namespace}/{name}")

    async def _show(self, vmi: Instance, claim: Claim) -> None:
        shown = next((entry for entry in vmi.status.volume_status if entry.name == names.STATE_VOLUME), None)
        if vmi.final or (shown and shown.claim == claim.name):
            return
        with ignoring(is_not_found):
            whole = await self._api.get(VMIS, vmi.name, vmi.namespace)
            present = (whole.get("status") or {}).get("volumeStatus") or []
            entries = [entry for entry in present if entry["name"] != names.STATE_VOLUME]
            about = {"resourceVersion": whole["metadata"]["resourceVersion"], "uid": vmi.uid}
            patch = {"metadata": about, "status": {"volumeStatus": [*entries, state_status(claim)]}}
            await self._api.patch(VMIS, vmi.name, patch, vmi.namespace)

    async def _make(self, vmi: Instance, name: str, labels: dict[str, str]) -> Claim:
        if known := self._claims.get(f"{vmi.namespace}/{name}"):
            if known.deleting:
                raise NoState(f"claim {name} is being deleted; it is made anew when that is done")
            return known
        wanted = self._settings().configuration.vm_state_storage_class
        claim = {
            "apiVersion": PERSISTENT_VOLUME_CLAIMS.api_version,
            "kind": PERSISTENT_VOLUME_CLAIMS.kind,
            "metadata": {
                "name": name,
                "namespace": vmi.namespace,
                # By the first, a provisioner's profile in CDI may have it made larger.
                "labels": {"cdi.kubevirt.io/applyStorageProfile": "true", **labels},
                "ownerReferences": [_owner(vmi)],
            },
            "spec": {
                "accessModes": ["ReadWriteMany" if wanted else "ReadWriteOnce"],
                "resources": {"requests": {"storage": SIZE}},
                "storageClassName": wanted or await self._default_class(),
                "volumeMode": "Filesystem",
            },
        }
        with ignoring(is_already_exists):
            self._claims.observe(await self._api.create(PERSISTENT_VOLUME_CLAIMS, claim, vmi.namespace))
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
    if owner and owner.kind == kinds.VM.kind:
        reference = {"apiVersion": VMIS.api_version, "kind": owner.kind, "name": owner.name, "uid": owner.uid}
    else:
        reference = {"apiVersion": VMIS.api_version, "kind": VMIS.kind, "name": vmi.name, "uid": vmi.uid}
    return {**reference, "controller": True}
