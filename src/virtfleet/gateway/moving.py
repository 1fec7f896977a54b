"""Moving VMs: a migration is an object that virt-controller carries out; an evacuation can be taken back."""

from __future__ import annotations

from dataclasses import dataclass

from virtfleet.gateway.knowledge import Knowledge
from virtfleet.gateway.vms import VM_NOT_RUNNING, Options, Vmi, Vms, bad_request
from virtfleet.kube.api import KubeApi
from virtfleet.kube.errors import ignoring, is_not_found
from virtfleet.kube.resource import NODES, VMI_MIGRATIONS, VMIS, Obj


class MigrateOptions(Options):
    """The body of a request to migrate."""

    added_node_selector: dict[str, str] | None = None


class EvacuateCancelOptions(Options):
    """The body of a request to stay."""

    evacuation_node_name: str = ""


@dataclass
class Moving:
    """Carries such requests out."""

    _api: KubeApi
    _vms: Vms
    _knowledge: Knowledge

    async def migrate(self, namespace: str, name: str, options: MigrateOptions) -> None:
        """Ask virt-controller to move a VM."""
        vm = await self._vms.vm(namespace, name)
        vmi = await self._vms.vmi(namespace, name)
        if not vmi.running:
            raise vm.conflict(f"{VM_NOT_RUNNING}, the phase of its VMI is {vmi.phase}; only a running VM can migrate")
        spec: Obj = {"vmiName": name}
        if options.added_node_selector:
            spec["addedNodeSelector"] = options.added_node_selector
        migration = {
            "apiVersion": VMI_MIGRATIONS.api_version,
            "kind": VMI_MIGRATIONS.kind,
            "metadata": {"generateName": "kubevirt-migrate-vm-", "namespace": namespace},
            "spec": spec,
        }
        await self._api.create(VMI_MIGRATIONS, migration, namespace, dry_run=bool(options.dry_run))

    async def cancel_evacuation(self, vmi: Vmi, options: EvacuateCancelOptions) -> None:
        """Let a VMI stay on the node that it was to leave."""
        leaving = vmi.view.status.evacuation_node_name
        await self._check_taint(leaving or vmi.view.status.node_name)
        if not leaving:
            return
        if options.evacuation_node_name != leaving:
            raise vmi.conflict(f"it leaves node {leaving}, not {options.evacuation_node_name or 'one without a name'}")
        patch = vmi.patch(status={"evacuationNodeName": None})
        await self._api.patch(VMIS, vmi.name, patch, vmi.namespace, dry_run=bool(options.dry_run))

    async def _check_taint(self, name: str) -> None:
        """What the drain taint asks for cannot be taken back for one VM."""
        node: Obj = {}
        with ignoring(is_not_found):
            node = await self._api.get(NODES, name) if name else {}
        key = self._knowledge.cluster().migrations.node_drain_taint_key
        taints = (node.get("spec") or {}).get("taints") or ()
        if any((taint["key"], taint["effect"]) == (key, "NoSchedule") for taint in taints):
            take_off = f"kubectl taint node {name} {key}-"
            raise bad_request(f'Node "{name}" has NodeDrainTaintKey "{key}:NoSchedule"; take it off with {take_off}')
