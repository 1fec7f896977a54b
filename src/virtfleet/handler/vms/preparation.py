"""What is made ready on the node before a launcher starts its domain, and what the launcher is told of it."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Collection
from pathlib import Path
from typing import TypeVar

import msgspec
import orjson

from virtfleet.api import traits
from virtfleet.api.quantity import Quantity
from virtfleet.api.vmi import VirtualMachineInstance as VMI
from virtfleet.domain.context import Context
from virtfleet.handler.devices import access as deviceaccess
from virtfleet.handler.devices.assigned import assigned, environment
from virtfleet.handler.network.networks import Networks, Wired, arrived, pluggable
from virtfleet.handler.pods import heldimages, hostdisks
from virtfleet.handler.pods.launchers import Launcher, Unresponsive
from virtfleet.handler.pods.process import PodProcess
from virtfleet.handler.vms import plugging, tuning
from virtfleet.handler.vms.instances import Instance
from virtfleet.hypervisors.base import Descriptor, Hypervisor
from virtfleet.installation import Installation
from virtfleet.kube.resource import Obj
from virtfleet.launcher.node import emulators
from virtfleet.pods.resources import overhead
from virtfleet.protocol.messages import NodeFacts, Prepare, Sync


class NotPossible(Exception):
    """The VM cannot run here as things are; the message is for its owner."""


def emulated(process: PodProcess, descriptor: Descriptor) -> bool:
    """Whether the hypervisor has a device that it could use, and the Pod was not given it."""
    return bool(descriptor.device) and not process.has(f"dev/{descriptor.device}")


S = TypeVar("S", bound=Sync)


class Preparation:
    """Makes the node ready for VMs, those that start here and those that come from another node alike.

    `facts` is the directory with what the node's own launcher image found out.
    """

    def __init__(self, networks: Networks, facts: Path, cluster: Callable[[], Installation]) -> None:
        self.networks = networks
        self._facts = facts
        self._cluster = cluster

    def overhead(self, vmi: VMI, hypervisor: Hypervisor) -> Quantity:
        """Memory that a VM takes beside its guest's, as its Pod asks for it."""
        return overhead(vmi, hypervisor, self._cluster())

    async def make(
        self, instance: Instance, launcher: Launcher, kind: type[S], *, started: bool
    ) -> tuple[S, PodProcess, str]:
        """Make the node ready for a VM, and say so in an order to its launcher; may be repeated.

        The last of the answer is why a volume of a VM that runs could not be had.
        """
        process, cluster = launcher.process, self._cluster()
        if process is None:
            raise Unresponsive("not connected to the launcher")
        vmi, hypervisor = instance.vmi, instance.hypervisor
        descriptor = hypervisor.descriptor
        in_software = emulated(process, descriptor)
        if in_software and not cluster.emulation:
            raise NotPossible(
                f"the Pod has no /dev/{descriptor.device}, and developerConfiguration.useEmulation does not allow "
                "emulation"
            )
        if not started:
            await asyncio.to_thread(heldimages.hand_over, process)
            await asyncio.to_thread(hostdisks.make_ready, vmi, process)
        wired = await self._wire(vmi, launcher, process, started=started)
        context = _context(vmi, process, cluster, wired, in_software, arriving=kind is Prepare)
        if not descriptor.root:
            more = [descriptor.device] if descriptor.device else []
            deviceaccess.grant(process, [*more, *context.block_volumes])
        tuning.before_start(process, hypervisor.tuning(vmi, context))
        mounted, trouble = await plugging.mount(vmi, process, target=kind is Prepare)
        if trouble and not started:
            raise NotPossible(trouble)
        shown = plugging.shown(instance.object(), vmi, mounted, launcher.state)
        there = connected(vmi) if kind is Prepare else [w.name for w in wired]
        order = kind(
            vmi=with_hardware_addresses(without_awaited(shown, vmi, there), wired),
            emulators={} if started else emulators.load(self._facts),
            node=NodeFacts(
                context=context,
                taps={w.name: w.tap for w in wired},
                leases=[w.lease for w in wired if w.lease],
                leases6=[w.lease6 for w in wired if w.lease6],
                **_room(vmi, process.pod),
            ),
        )
        return order, process, trouble

    async def _wire(self, vmi: VMI, launcher: Launcher, process: PodProcess, *, started: bool) -> list[Wired]:
        """The guest's interfaces, set up where that is still to be done."""
        if not started:
            return await self.networks.set_up(process, vmi)
        wired, links = self.networks.known(process.pod, process, vmi), launcher.state.links if launcher.state else {}
        plugged = {w.name for w in wired if w.mac in links}
        if due := [name for name in arrived(process, vmi) if name not in plugged]:
            wired = await self.networks.set_up(process, vmi, due)
        return wired


def connected(vmi: VMI) -> list[str]:
    """Interfaces that the running domain has, by its status: one that moves is the same on both sides."""
    return [status.name for status in vmi.status.interfaces if "domain" in status.info_source]


def without_awaited(obj: Obj, vmi: VMI, there: Collection[str]) -> Obj:
    """The VMI as a launcher is told of it: without interfaces that come later."""
    awaited = {nic.name for nic in pluggable(vmi)} - {*there}
    devices = obj["spec"].get("domain", {}).get("devices", {})
    if awaited:
        devices["interfaces"] = [i for i in devices.get("interfaces") or () if i["name"] not in awaited]
    return obj


def _room(vmi: VMI, pod: str) -> dict[str, int]:
    """Up to where a VM that runs may grow: as the VMI asks for, and not beyond what its Pod has room for."""
    room = vmi.status.pod_room
    if room is None or room.pod_uid != pod:
        return {}
    return {
        "sockets": min(traits.topology(vmi).sockets, room.sockets or 0),
        "memory": min(traits.memory(vmi), Quantity.parse(room.guest or 0)).value(),
    }


def _context(
    vmi: VMI, process: PodProcess, cluster: Installation, wired: list[Wired], in_software: bool, arriving: bool
) -> Context:
    claims = {s.name: s.persistent_volume_claim_info for s in vmi.status.volume_status}
    if arriving:  # with its data, which goes to other claims
        claims |= {v.volume_name: v.destination_pvc_info for v in vmi.status.migrated_volumes}
    own_cpus = traits.dedicated_cpus(vmi)
    gpus, host_devices = assigned(vmi, environment(process.read("environ")))
    return msgspec.structs.replace(
        cluster.context(vmi.spec.architecture),
        emulated=in_software,
        block_volumes=frozenset(name for name, claim in claims.items() if claim and claim.volume_mode == "Block"),
        preallocated_volumes=frozenset(name for name, claim in claims.items() if claim and claim.preallocated),
        gpus=gpus,
        host_devices=host_devices,
        bridges={w.name: w.bridge for w in wired},
        cpus=tuple(sorted(os.sched_getaffinity(process.number))) if own_cpus else (),
        cells=tuning.cells() if own_cpus else (),
    )


def with_hardware_addresses(obj: Obj, wired: list[Wired]) -> bytes:
    """The VMI with the hardware addresses that its interfaces really have, so that DHCP knows them again."""
    macs = {w.name: w.mac for w in wired}
    for interface in obj["spec"].get("domain", {}).get("devices", {}).get("interfaces") or ():
        if interface["name"] in macs:
            interface["macAddress"] = macs[interface["name"]]
    return orjson.dumps(obj)
