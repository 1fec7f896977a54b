"""One VM without a cluster: a sandbox, and what a handler would do for the launcher in it."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from virtfleet.api import traits
from virtfleet.api.view import read
from virtfleet.api.vmi import VirtualMachineInstance as VMI
from virtfleet.domain import abi, interfaces, paths
from virtfleet.domain.context import Context
from virtfleet.domain.volumes import config_kind
from virtfleet.hypervisors.base import Hypervisor
from virtfleet.launcher.alone.sandbox import Sandbox
from virtfleet.launcher.failure import Failure
from virtfleet.launcher.node import COMMAND, emulators
from virtfleet.launcher.vm.outliving import sweep
from virtfleet.protocol.client import Client
from virtfleet.protocol.messages import COMMAND_SOCKET, DomainState, Lease, NodeFacts, Sync

KERNEL_BOOT = "kernel-boot"
_RETRY = 0.02


class Standalone:
    """A VM in a sandbox. `sources` are files or directories that stand in for what a cluster would mount, by volume."""

    def __init__(
        self,
        vmi: dict[str, Any],
        hypervisor: Hypervisor,
        context: Context,
        sources: Mapping[str, Path],
        *,
        cache: Path | None = None,
    ) -> None:
        self.vmi = vmi
        self.client: Client
        self.context = context
        self.sources = sources
        self._taps: dict[str, str] = {}
        self._leases: dict[str, Lease] = {}
        self.hypervisor = hypervisor
        self._cache = cache
        self._emulators: emulators.Known = {}
        identity = [f"--{key}={vmi['metadata'][key]}" for key in ("name", "namespace", "uid")]
        self.sandbox = Sandbox(hypervisor.descriptor, [*identity, f"--hypervisor={hypervisor.descriptor.name}"])

    @property
    def log(self) -> Path:
        """What the launcher and its daemons say."""
        return self.sandbox.log

    @property
    def console(self) -> Path:
        """The socket of the guest's serial console."""
        return self.sandbox.path(paths.vmi_socket(self.vmi["metadata"]["uid"], "virt-serial0"))

    async def __aenter__(self) -> Standalone:
        self.sandbox.__enter__()
        return self

    async def __aexit__(self, *_: object) -> None:
        if hasattr(self, "client"):
            await self.client.close()
        process = self.sandbox.process
        if process and process.returncode is None:
            process.kill()
            await process.wait()
        self.sandbox.__exit__()
        if outliving := self.hypervisor.descriptor.outliving:
            await sweep(outliving)

    async def start(self) -> DomainState:
        """Start the launcher, then the VM."""
        await self.open()
        return await self.sync(self.vmi)

    async def open(self) -> None:
        """Start the launcher."""
        self.link_volumes(self.sources)
        if self._cache:
            self._emulators = await _known(self.hypervisor, self._cache)
        await self.sandbox.start()
        await self._add_networks()  # while the launcher starts
        self.client = await self._connect()

    async def sync(self, vmi: dict[str, Any]) -> DomainState:
        """Make the running VM as `vmi` says, with networks for interfaces that are new."""
        self.vmi = vmi
        await self._add_networks()
        return await self.client.call(self.order())

    def order(self) -> Sync:
        """What a handler would ask of the launcher."""
        bridges = {name: lease.device for name, lease in self._leases.items()}
        context = msgspec.structs.replace(self.context, bridges=bridges)
        view = read(VMI, self.vmi)
        node = NodeFacts(
            context=context,
            taps=self._taps,
            leases=list(self._leases.values()),
            sockets=traits.topology(view).sockets,  # there is no Pod that it could outgrow
            memory=traits.whole_bytes(traits.memory(view)),
        )
        return Sync(vmi=msgspec.json.encode(self.vmi), node=node, emulators=self._emulators)

    def link_volumes(self, sources: Mapping[str, Path]) -> None:
        """Show what stands in for volumes where a Pod would have it mounted; `kernel-boot` is the boot image."""
        if KERNEL_BOOT in sources:
            self._link(paths.kernel_boot_image(), sources[KERNEL_BOOT])
        vmi = read(VMI, self.vmi)
        if traits.shares_directories(vmi) and not self.hypervisor.descriptor.container:
            raise Failure("domain.devices.filesystems: containers of a Pod share them; run the VM on a cluster")
        for index, volume in enumerate(vmi.spec.volumes):
            source = sources.get(volume.name)
            if source is None:
                if volume.container_disk or volume.persistent_volume_claim or volume.data_volume or volume.ephemeral:
                    raise Failure(f"volume {volume.name!r}: nothing stands in for it; name a file")
            elif volume.container_disk:
                inside = paths.image_volume(index) if source.is_dir() else paths.container_disk(index)
                self._link(inside, source)
            elif volume.service_account:
                self._link(paths.SERVICE_ACCOUNT, source)
            elif kind := config_kind(volume):
                self._link(paths.config_dir(kind, volume.name), source)
            else:
                self._link(paths.claim_image(volume.name), source)
                self._link(paths.hotplug_image(volume.name), source)

    def _link(self, inside: str, target: Path) -> None:
        link = self.sandbox.path(inside)
        link.parent.mkdir(parents=True, exist_ok=True)
        if not os.path.lexists(link):
            link.symlink_to(target.resolve())

    async def _add_networks(self) -> None:
        vmi = read(VMI, self.vmi)
        for interface in interfaces.present(vmi):
            if interface.name in self._taps:
                continue
            wanted = next(i for i in self.vmi["spec"]["domain"]["devices"]["interfaces"] if i["name"] == interface.name)
            mac = wanted.setdefault("macAddress", abi.mac(vmi, interface.name))
            tap, lease = await self.sandbox.add_network(len(self._taps), mac, traits.hostname(vmi))
            self._taps[interface.name], self._leases[interface.name] = tap, lease

    async def _connect(self) -> Client:
        """Connect as soon as the launcher listens."""
        assert self.sandbox.process is not None
        while self.sandbox.process.returncode is None:
            try:
                return await Client.connect(self.sandbox.path(COMMAND_SOCKET))
            except OSError:
                await asyncio.sleep(_RETRY)
        raise Failure(f"the launcher ended with status {self.sandbox.process.returncode} before it could be reached")


async def _known(hypervisor: Hypervisor, cache: Path) -> emulators.Known:
    """What libvirt knows of this machine's emulators: found out once, in a sandbox in which no guest ever runs."""
    if not hypervisor.descriptor.learned:
        return {}
    here, name = emulators.programs(hypervisor), hypervisor.descriptor.name
    if here not in emulators.load(cache):
        directory = f"{paths.PRIVATE}/facts"
        with Sandbox(hypervisor.descriptor, [COMMAND, f"--directory={directory}", f"--emulators-of={name}"]) as sandbox:
            await sandbox.start()
            assert sandbox.process is not None
            await sandbox.process.wait()
            emulators.save(cache, here, emulators.load(sandbox.path(directory)).get(here, {}))
    return emulators.load(cache)
