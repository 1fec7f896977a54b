"""Which nodes a launcher Pod may go to: labels that the node must have, and the affinity of VMI and pools."""

from __future__ import annotations

import re

from virtfleet.api import names, traits
from virtfleet.api.vmi import VirtualMachineInstance as VMI
from virtfleet.domain import abi
from virtfleet.hypervisors.base import Descriptor
from virtfleet.installation import Installation

ARCHITECTURE = "kubernetes.io/arch"
# A machine type of one version, such as pc-q35-9.2 or pc-q35-rhel9.6.0. An alias, such as q35, every node has.
_VERSIONED = re.compile(r"[a-z0-9-]+-[a-z]*\d+(\.\d+)*")


def node_selector(vmi: VMI, hypervisor: Descriptor, settings: Installation) -> dict[str, str]:
    """Labels that handlers set on nodes which can run the VM, with those that the VMI and the cluster ask for."""
    wanted = {names.SCHEDULABLE: "true"}
    if vmi.spec.architecture:
        wanted[ARCHITECTURE] = vmi.spec.architecture
    if not hypervisor.device:  # nodes with a device are found by the resource
        wanted[names.HYPERVISOR_WORKS + hypervisor.name] = "true"
    if hypervisor.machines and _VERSIONED.fullmatch(machine := abi.machine(vmi)):
        wanted[names.MACHINE_TYPE + machine] = "true"
    cpu = vmi.spec.domain.cpu
    if cpu:
        if cpu.model and cpu.model not in ("host-model", "host-passthrough"):
            wanted[names.CPU_MODEL + cpu.model] = "true"
        for feature in cpu.features:
            if feature.policy in ("", "require"):
                wanted[names.CPU_FEATURE + feature.name] = "true"
    needs = {
        names.CPU_MANAGER: traits.dedicated_cpus(vmi),
        names.REALTIME: traits.realtime(vmi),
        names.SEV_SNP: traits.snp(vmi),
        names.SEV: traits.sev(vmi) and not traits.snp(vmi),
        names.TDX: traits.tdx(vmi),
        names.SECURE_EXECUTION: traits.secure_execution(vmi),
    }
    wanted |= {label: "true" for label, needed in needs.items() if needed}
    return {**wanted, **settings.node_selector, **vmi.spec.node_selector}


def forbidden(vmi: VMI, settings: Installation) -> list[str]:
    """Labels that a node must not have: libvirt starts no guest on a CPU with a feature that the VMI forbids."""
    cpu = vmi.spec.domain.cpu
    if not cpu:
        return []
    labels = [names.CPU_FEATURE + feature.name for feature in cpu.features if feature.policy == "forbid"]
    if settings.configuration.obsolete_cpu_models and cpu.model == "host-model":
        labels.append(names.OBSOLETE_HOST_MODEL)
    return labels
