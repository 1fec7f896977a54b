"""What is made ready on the node before a launcher starts its domain, and what the launcher is told of it."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import msgspec
import orjson

from virtfleet.api.feature_gates import FeatureGates
from virtfleet.api.kubevirt import KubeVirt
from virtfleet.api.view import read
from virtfleet.api.vmi import VirtualMachineInstance as VMI
from virtfleet.domain import paths, traits
from virtfleet.domain.cluster import cluster_context
from virtfleet.domain.context import Context
from virtfleet.handler import deviceaccess, topology, tuning
from virtfleet.handler.assigned import assigned, environment
from virtfleet.handler.cgroups import ControlGroup
from virtfleet.handler.network import Networks, Wired
from virtfleet.handler.records import Instance
from virtfleet.hypervisors.base import Descriptor
from virtfleet.kube.resource import Obj
from virtfleet.launcher import capabilities
from virtfleet.launcher.messages import Node, Sync


class NotPossible(Exception):
    """The VM cannot run here as things are; the message is for its owner."""


class Cluster:
    """What the KubeVirt object says about VMs."""

    def __init__(self, kubevirt: Obj | None = None) -> None:
        self._view = read(KubeVirt, kubevirt or {})
        self._gates = FeatureGates.of(kubevirt or {})
        self.configuration = self._view.spec.configuration
        self.emulation = bool(self.configuration.developer_configuration.use_emulation)

    def context(self, architecture: str) -> Context:
        return cluster_context(self._view, self._gates, architecture)


def emulated(process: int, descriptor: Descriptor) -> bool:
    """Whether the hypervisor has a device that it could use, and the Pod was not given it."""
    return bool(descriptor.device) and not os.path.exists(f"/proc/{process}/root/dev/{descriptor.device}")


class Capabilities:
    """What libvirt found out about emulators, kept for the next launcher of the same image: it takes over a second."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def give(self, found: Instance, pod: Path) -> None:
        user = 0 if found.hypervisor.descriptor.root else paths.USER
        capabilities.give(self._kept(found), _inside(pod, capabilities.DIRECTORY), user)

    def keep(self, found: Instance, pod: Path) -> None:
        """Keep what the first launcher of an image found out. Later ones are not asked: guests run beside them."""
        if not self._kept(found).exists():
            capabilities.keep(_inside(pod, capabilities.DIRECTORY), self._kept(found))

    def _kept(self, found: Instance) -> Path:
        image = found.vmi.status.launcher_container_image_version
        return self._directory / hashlib.sha256(image.encode()).hexdigest()[:16]


def _inside(pod: Path, path: str) -> Path:
    """Where a path below the launcher's private directory lies on the node."""
    return pod / "volumes/kubernetes.io~empty-dir/private" / path.removeprefix(f"{paths.PRIVATE}/")


async def prepare(
    found: Instance, pod: str, process: int, networks: Networks, cluster: Cluster, *, started: bool
) -> Sync:
    """Make the node ready for a VM whose launcher is `process`; may be repeated."""
    vmi, hypervisor = found.vmi, found.hypervisor
    descriptor = hypervisor.descriptor
    group = ControlGroup(process)
    in_software = emulated(process, descriptor)
    if in_software and not cluster.emulation:
        raise NotPossible(
            f"the Pod has no /dev/{descriptor.device}, and developerConfiguration.useEmulation does not allow emulation"
        )
    wired = networks.known(pod, process, vmi) if started else await networks.set_up(pod, process, vmi)
    context = _context(vmi, process, cluster, wired, in_software)
    if not descriptor.root:
        more = [descriptor.device] if descriptor.device else []
        deviceaccess.grant(process, group, [*more, *context.block_volumes])
    tuning.before_start(group, hypervisor.tuning(vmi, context))
    return Sync(
        vmi=with_hardware_addresses(found.object(), wired),
        node=Node(
            context=context,
            taps={w.name: w.tap for w in wired},
            leases=[w.lease for w in wired if w.lease],
            leases6=[w.lease6 for w in wired if w.lease6],
        ),
    )


def _context(vmi: VMI, process: int, cluster: Cluster, wired: list[Wired], in_software: bool) -> Context:
    claims = {s.name: s.persistent_volume_claim_info for s in vmi.status.volume_status}
    own_cpus = traits.dedicated_cpus(vmi)
    gpus, host_devices = assigned(vmi, environment(Path(f"/proc/{process}/environ").read_bytes()))
    return msgspec.structs.replace(
        cluster.context(vmi.spec.architecture),
        emulated=in_software,
        block_volumes=frozenset(name for name, claim in claims.items() if claim and claim.volume_mode == "Block"),
        preallocated_volumes=frozenset(name for name, claim in claims.items() if claim and claim.preallocated),
        gpus=gpus,
        host_devices=host_devices,
        bridges={w.name: w.bridge for w in wired},
        cpus=tuple(sorted(os.sched_getaffinity(process))) if own_cpus else (),
        cells=topology.cells() if own_cpus else (),
    )


def with_hardware_addresses(obj: Obj, wired: list[Wired]) -> bytes:
    """The VMI with the hardware addresses that its interfaces really have, so that DHCP knows them again."""
    macs = {w.name: w.mac for w in wired}
    for interface in obj["spec"].get("domain", {}).get("devices", {}).get("interfaces") or ():
        if interface["name"] in macs:
            interface["macAddress"] = macs[interface["name"]]
    return orjson.dumps(obj)
