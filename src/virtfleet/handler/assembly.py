"""virt-handler: everything that serves one node, put together."""

from __future__ import annotations

import asyncio
import logging
import shutil
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import virtfleet
from virtfleet.api.tlsrules import TlsRules, rules
from virtfleet.handler.access.api import Access
from virtfleet.handler.access.authorityport import AuthorityPort
from virtfleet.handler.access.vsock import Vsock
from virtfleet.handler.devices import host as hostdevices
from virtfleet.handler.devices.host import Source
from virtfleet.handler.devices.plugin import Devices
from virtfleet.handler.metrics import Usage
from virtfleet.handler.migration.proxy import Proxy
from virtfleet.handler.network.networks import Networks
from virtfleet.handler.node import labeller, profiles
from virtfleet.handler.node.heartbeat import Heartbeat
from virtfleet.handler.node.labeller import Facts, Labeller
from virtfleet.handler.node.lock import NodeLock
from virtfleet.handler.vms.reconcile import NodeVms
from virtfleet.handler.vms.records import VmRecords
from virtfleet.hypervisors import registry
from virtfleet.installation import VMS_PER_NODE, Installation, in_force, version_of
from virtfleet.kube.api import KubeApi
from virtfleet.kube.cache import Cache
from virtfleet.kube.certificates import Credential
from virtfleet.kube.events import Recorder
from virtfleet.kube.resource import KUBEVIRTS
from virtfleet.work import tasks

logger = logging.getLogger(__name__)

COMPONENT = "virt-handler"
LOCK = "handler.lock"
DRAIN = 315.0  # seconds that migrations have to end, of the 330 that a handler's Pod has
OUT_OF_TOUCH = 15.0  # seconds without the API server after which a handler says so; a restart of it is shorter


@dataclass(frozen=True, slots=True)
class Place:
    """Where the node's directories are seen from here."""

    pods: Path = Path("/pods")
    """The kubelet's, under a path that is short enough for sockets."""
    kubelet: Path = Path("/var/lib/kubelet")
    private: Path = Path("/var/run/kubevirt-private")
    facts: Path = Path("/var/lib/kubevirt-node-labeller")
    """What the launcher image found out about the node."""
    root: Path = Path("/")
    """Where the node's /dev and /sys are: a handler's container shows both at their own places."""


class VirtHandler:
    """`run()` serves the node until cancelled, as soon as no other handler does.

    `access` is what `gateway`, a client with a certificate of that name, can ask of the VMs meanwhile. Guests are shown
    the certificate `to_guests` where they are asked by TLS.
    """

    def __init__(
        self,
        api: KubeApi,
        node: str,
        name: str,
        place: Place,
        proxy: Proxy,
        *,
        gateway: str,
        to_guests: Callable[[], Credential | None] = lambda: None,
        most_vms: int = VMS_PER_NODE,
        stand_in: bool = False,
    ) -> None:
        self._place = place
        self._most_vms = most_vms
        self._facts = labeller.read(place.facts)
        self._modules = hostdevices.Modules(place.root)
        self._lock = NodeLock(place.private / LOCK, name)
        self._relieved = asyncio.Event()
        self._recorder = Recorder(api, COMPONENT, node)
        self._installations: Cache[Installation] = Cache(api, KUBEVIRTS, decode=Installation.decode)
        if stand_in:
            self._installations.on_change(lambda _key, _old, new: self._look_at_operator(new))
        self._devices = Devices(place.kubelet / "device-plugins", self._sources, lambda: self._heartbeat.changed())
        self._heartbeat = Heartbeat(api, node, self._devices.ready, place.kubelet / "cpu_manager_state")
        self._labeller = Labeller(api, self._recorder, node, self._labels)
        self._installations.on_change(self._settings_changed)
        self._vms = NodeVms(
            api,
            self._recorder,
            node,
            pods=place.pods,
            # KubeVirt's name, and that of earlier versions. Until the node is ours they are another handler's.
            records=VmRecords(place.private / "ghost-records"),
            networks=Networks(place.private / "network-info-cache"),
            facts=place.facts,
            cluster=self._cluster,
            proxy=proxy,
        )
        guests = Vsock(to_guests)
        self._authority_port = AuthorityPort(
            lambda: self._cluster().enabled("VSOCK") and self._modules.loaded("vhost-vsock"),
            lambda: known.bundle if (known := to_guests()) else b"",
        )
        self.access = Access(self._vms, self._recorder, place.pods, guests, caller=gateway, unready=self.unready)
        self.usage = Usage(node, self._vms.vms)

    def unready(self) -> str:
        """Why this handler does not serve its node yet."""
        if not self._lock.held:
            return f"another handler serves this node: {self._lock.holder() or 'unknown'}"
        if not self._vms.synced:
            return "the VMIs of this node have not been read yet"
        return ""

    def out_of_touch(self) -> str:
        """Why nobody should count on what this handler says of its node, which it serves all the same.

        One watch that goes on is enough: each is known to be cut within 20 seconds, and nothing is asked at rest.
        """
        away = min(cache.away for cache in self._caches)
        return f"the API server has not answered for {away:.0f} s" if away > OUT_OF_TOUCH else ""

    @property
    def _caches(self) -> list[Cache[Any]]:
        return [self._installations, *self._vms.caches]

    def configuration(self) -> str:
        """The version of the KubeVirt object that this handler goes by."""
        return version_of(self._installations.list())

    def tls(self) -> TlsRules:
        """What this handler's server speaks."""
        return rules(in_force(self._installations.list()).configuration.tls_configuration)

    def _look_at_operator(self, installation: Installation | None) -> None:
        """A stand-in is for the operator that made it; one of another version may know nothing of it."""
        status = (installation.kubevirt.get("status") or {}) if installation else {}
        if status.get("operatorVersion") not in (None, "", virtfleet.__version__):
            logger.info("the operator is of version %s; this handler no longer stands in", status["operatorVersion"])
            self._relieved.set()

    async def run(self) -> None:
        """Told to end, it first lets migrations come to their end."""
        serving, relieved = tasks.held(self._serve(), COMPONENT), tasks.held(self._relieved.wait(), "relief")
        try:
            await asyncio.wait((serving, relieved), return_when=asyncio.FIRST_COMPLETED)
            if serving.done():
                await serving
            else:
                await self._vms.drain(DRAIN)
        except asyncio.CancelledError:
            if not serving.done():
                await self._vms.drain(DRAIN)
            raise
        finally:
            for task in (serving, relieved):
                task.cancel()
            await asyncio.gather(serving, relieved, return_exceptions=True)

    async def _serve(self) -> None:
        """Be ready for everything first, and then wait for the node: so it is without a handler for a moment only."""
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._recorder.run())
                for cache in self._caches:
                    group.create_task(cache.run())
                for cache in self._caches:
                    await cache.synced.wait()
                await self._lock.acquire()
                profiles.install(self._place.kubelet)
                self._offer_profile()
                self._vms.begin()
                for work in (
                    self._vms.controller.run(),
                    self._devices.run(),
                    self._heartbeat.run(),
                    self._labeller.run(),
                    self.usage.run(),
                    self._authority_port.run(),
                ):
                    group.create_task(work)
        finally:
            self.access.close()
            await self._vms.close()
            if self._lock.held and self._cluster().uninstalling:
                _clear(self._place)
            self._lock.release()

    def _offer_profile(self) -> None:
        wanted = [each for each in self._installations.list() if not each.uninstalling]
        if self._lock.held and any(each.enabled("KubevirtSeccompProfile") for each in wanted):
            profiles.offer(self._place.kubelet)

    def _cluster(self) -> Installation:
        return in_force(self._installations.list())

    def _settings_changed(self, _key: str, old: Installation | None, new: Installation | None) -> None:
        self._offer_profile()
        if old and new and old.configuration != new.configuration:
            self._labeller.stir()

    def _labels(self) -> dict[str, str]:
        obsolete = self._cluster().configuration.obsolete_cpu_models
        unwanted = {model for model, gone in obsolete.items() if gone} if obsolete else labeller.OBSOLETE_MODELS
        return labeller.labels(self._facts, unwanted)

    def _sources(self) -> Iterator[Source]:
        return sources(
            self._place.root,
            self._cluster(),
            self._most_vms,
            lambda name: works(self._facts, name) and self._modules.loaded(name),
        )


def _clear(place: Place) -> None:
    """The last handler of a node leaves nothing on it, but for records of VMs that may still run."""
    profiles.remove(place.kubelet)
    for known in place.facts.glob("*"):
        shutil.rmtree(known) if known.is_dir() and not known.is_symlink() else known.unlink()
    (place.private / LOCK).unlink(missing_ok=True)
    for directory in place.private.iterdir():
        with suppress(OSError):  # one that is not empty stays
            directory.rmdir()


def sources(root: Path, cluster: Installation, most_vms: int, usable: Callable[[str], bool]) -> Iterator[Source]:
    """What a node offers by the settings of the cluster."""
    configuration = cluster.configuration
    count = configuration.virtual_machine_instances_per_node or most_vms
    shut = () if cluster.enabled("VSOCK") else ("vhost-vsock",)
    yield from hostdevices.shared(root, count, usable, shut)
    yield from hostdevices.permitted(root, configuration.permitted_host_devices)


def works(facts: Facts, device: str) -> bool:
    """Whether a device is of use: of a hypervisor's, one that runs on it has to work as far as is known."""
    users = [name for name in registry.names() if registry.get(name).descriptor.device == device]
    troubles = [facts.hypervisors[name] for name in users if name in facts.hypervisors]
    return not troubles or "" in troubles
