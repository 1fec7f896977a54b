"""VMs as their controllers follow them: by the VM, its instance and the claims of its volumes."""

from __future__ import annotations

from virtfleet.controller.datavolumes.records import DataVolume
from virtfleet.controller.records.cluster import Claim
from virtfleet.controller.records.instance import Instance
from virtfleet.controller.records.vm import Vm
from virtfleet.kube.cache import Cache
from virtfleet.kube.controller import Controller


def claim_keys(vm: Vm) -> list[str]:
    """An index of VMs: the claims of their volumes."""
    return [f"{vm.namespace}/{claim}" for claim in vm.spec.template.spec.claims.values()]


def follow(
    controller: Controller,
    vms: Cache[Vm],
    instances: Cache[Instance],
    claims: Cache[Claim],
    volumes: Cache[DataVolume] | None = None,
) -> None:
    """Have a controller look at a VM when something of it changes."""
    controller.follow(vms)
    # An instance without a VM is none of ours; a VM that comes later is looked at when it comes.
    controller.follow(instances, lambda vmi: [vmi.key] if vms.get(vmi.key) else [])
    controller.follow(claims, lambda claim: [vm.key for vm in vms.by_index("claim", claim.key)])
    if volumes is not None:
        controller.follow(volumes, lambda volume: [vm.key for vm in vms.by_index("claim", volume.key)])
