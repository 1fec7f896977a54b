"""Launcher Pods on this node: each one brought in line with its VMI, by what the node is to the VM.

Called whenever a VMI or a domain changes, for one Pod at a time. Nothing that matters is remembered here: a handler
that restarts finds VMIs at the API server, domains through their launchers, and what it did before in the records on
the node's disk.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path

from virtfleet.api import names
from virtfleet.api.view import read
from virtfleet.api.vmi import VirtualMachineInstance as VMI
from virtfleet.handler.migration.proxy import Proxy
from virtfleet.handler.network.networks import Networks
from virtfleet.handler.pods.launchers import Launcher, Presence, Unresponsive
from virtfleet.handler.vms import status
from virtfleet.handler.vms.departures import Departures
from virtfleet.handler.vms.instances import Instance, Role, decode_instance, role_of
from virtfleet.handler.vms.preparation import Preparation
from virtfleet.handler.vms.records import VmRecord, VmRecords
from virtfleet.handler.vms.source import Source
from virtfleet.handler.vms.target import Target
from virtfleet.handler.vms.work import SYNC_EVENT, Attempts, PodWork
from virtfleet.installation import Installation
from virtfleet.kube.api import KubeApi
from virtfleet.kube.cache import Cache
from virtfleet.kube.controller import Controller
from virtfleet.kube.errors import ApiError, ignoring, is_not_found
from virtfleet.kube.events import Recorder
from virtfleet.kube.process import ABOUT
from virtfleet.kube.resource import VMIS, Obj
from virtfleet.protocol.client import Refused
from virtfleet.protocol.messages import Event, Kill

logger = logging.getLogger(__name__)

WORKERS = 64  # most of them wait for a launcher
_KILL_PERIOD = 1.0
_DRAIN_PERIOD = 1.0  # seconds between looks at migrations that are under way


class NodeVms:
    """The controller of this node's launcher Pods. Its keys are the VMI's with the Pod's UID."""

    def __init__(
        self,
        api: KubeApi,
        recorder: Recorder,
        node: str,
        *,
        pods: Path,
        records: VmRecords,
        networks: Networks,
        facts: Path,
        cluster: Callable[[], Installation],
        proxy: Proxy,
    ) -> None:
        self.caches: list[Cache[Instance]] = [
            Cache(api, VMIS, labels=f"{label}={node}", decode=decode_instance)
            for label in (names.NODE_NAME, names.MIGRATION_TARGET_NODE)
        ]
        self.controller = Controller("vmi", self.reconcile, workers=WORKERS)
        for cache in self.caches:
            self.controller.follow(cache, lambda vmi: [f"{vmi.key}/{pod}" for pod in vmi.pods_on(node)])
        self._api = api
        self._recorder = recorder
        self._node = node
        self._pods = pods
        self._records = records
        self._networks = networks
        self._attempts = Attempts(recorder, node)
        preparation = Preparation(networks, facts, cluster)
        self._proxy = proxy
        patching = self._write, self.controller.queue.add
        self._departures = Departures(proxy, node, pods, self.instance, *patching)
        self._source = Source(recorder, self._attempts, preparation, self._departures, *patching)
        self._target = Target(recorder, self._attempts, preparation, proxy, node, pods, *patching)
        self._followed: dict[str, PodWork] = {}  # by UID of the Pod

    def begin(self) -> None:
        """Take the node over: what was ever worked on here is looked at, too."""
        for record in self._records.all():
            self.controller.queue.add(record.key)

    async def reconcile(self, key: str) -> float | None:
        """Bring the Pod in line with its VMI, or end it where there is none for it."""
        vmi, _, pod = key.rpartition("/")
        instance = self.instance(vmi)
        role = self._role(instance, pod) if instance else None
        if followed := self._followed.get(pod):  # what was open for another role is closed
            if role is not Role.TARGET:
                self._target.let_go(followed)
            if role is not Role.SOURCE:
                await self._departures.let_go(followed)
        if instance is None or role is None:
            return await self._let_go(pod)
        vm = self._follow(instance, pod)
        try:
            controller = self._source if role is Role.SOURCE else self._target
            return await controller.reconcile(instance, vm)
        except ApiError:
            raise
        except Exception as error:  # whatever it is, the owner of the VM gets to know
            trouble = self._attempts.words(error)
            complaint = status.complaint(instance.object(), trouble, time.time()) if role is Role.SOURCE else {}
            if await self._write(instance, complaint):
                self._recorder.warning(instance.reference, SYNC_EVENT, trouble)
            raise

    @property
    def synced(self) -> bool:
        return all(cache.synced.is_set() for cache in self.caches)

    def instance(self, key: str) -> Instance | None:
        """A VMI that runs here or is on its way here. Where both caches have it, one may be behind."""
        known = [vmi for cache in self.caches if (vmi := cache.get(key))]
        return max(known, key=lambda vmi: vmi.revision, default=None)

    def vms(self) -> list[PodWork]:
        return list(self._followed.values())

    def running(self, key: str) -> tuple[Instance, PodWork] | None:
        """A VMI that runs here, with its Pod."""
        instance = self.instance(key)
        for vm in self.vms() if instance else ():
            if instance and vm.record.uid == instance.uid and self._role(instance, vm.record.pod) is Role.SOURCE:
                return instance, vm
        return None

    async def drain(self, limit: float) -> None:
        """Take no new migration, and let those that are under way come to their end."""
        self._proxy.refuses = True
        with suppress(TimeoutError):
            async with asyncio.timeout(limit):
                while moving := [vm.record.key for vm in self.vms() if vm.incoming or vm.outgoing]:
                    logger.info("waiting for migrations: %s", ", ".join(moving))
                    await asyncio.sleep(_DRAIN_PERIOD)

    async def close(self) -> None:
        """Let go of all launchers; their VMs do not notice."""
        self._proxy.close()
        for vm in self._followed.values():
            await vm.close()

    def _role(self, instance: Instance, pod: str) -> Role | None:
        """What a Pod of this node is for. Of a VM that left and came back, only the later Pod is for anything."""
        if pod not in (here := instance.pods_on(self._node)):
            return None
        later = [record.pod for record in self._records.of_vmi(instance.uid) if record.pod in here]
        return role_of(instance.vmi, self._node) if pod in later[-1:] or pod not in later else None

    async def _write(self, instance: Instance, change: Obj) -> bool:
        """Whether anything was written: there may be nothing to say, or nobody to say it of."""
        if not change:
            return False
        meta = instance.vmi.metadata
        with ignoring(is_not_found):
            written = await self._api.patch(VMIS, meta.name, change, meta.namespace)
            for cache in self.caches:
                cache.observe(written)
            return True
        return False

    # Coming and going.

    def _follow(self, instance: Instance, pod: str) -> PodWork:
        """The Pod, followed from now on and remembered beyond the end of this process."""
        meta = instance.vmi.metadata
        record = VmRecord(namespace=meta.namespace, name=meta.name, uid=meta.uid, pod=pod, since=time.time())
        self._records.add(record)
        return self._follow_recorded(record)

    def _follow_recorded(self, record: VmRecord) -> PodWork:
        if record.pod not in self._followed:
            launcher = Launcher(self._pods / record.pod, partial(self._happened, record), vmi=record.uid)
            self._followed[record.pod] = PodWork(record, launcher)
        return self._followed[record.pod]

    def _happened(self, record: VmRecord, event: Event | None) -> None:
        instance = self.instance(record.vmi)
        if event and event.kind and instance and instance.uid == record.uid:
            self._recorder.warning(instance.reference, event.kind, f"The guest: {event.kind} {event.detail}".strip())
        if vm := self._followed.get(record.pod):
            _log_state(vm)
        self.controller.queue.add(record.key)

    async def _let_go(self, pod: str) -> float | None:
        """End what is left of a Pod that no VMI has here any more; the answer is when to look again."""
        record = self._records.of_pod(pod)
        if record is None:
            return None
        vm = self._follow_recorded(record)
        if vm.launcher.presence is Presence.GONE:
            await vm.close()
            del self._followed[pod]
            self._networks.forget(pod)
            self._records.remove(pod)
            logger.info("%s: nothing is left of VMI %s in this Pod", record.key, record.uid)
            return None
        if await self._surely_unwanted(record):
            await self._kill(vm)
        return _KILL_PERIOD

    async def _kill(self, vm: PodWork) -> None:
        state = vm.launcher.state
        if vm.launcher.presence is not Presence.HERE or not state or state.status.ended:
            return
        try:
            await vm.launcher.call(Kill())
        except (Refused, Unresponsive) as error:
            logger.warning("%s: a VM without a VMI cannot be ended yet: %s", vm.record.key, error)

    async def _surely_unwanted(self, record: VmRecord) -> bool:
        """Whether the VMI neither runs here nor is to come. A cache can be wrong about that; an end is for good."""
        with ignoring(is_not_found):
            vmi = read(VMI, await self._api.get(VMIS, record.name, record.namespace))
            return vmi.metadata.uid != record.uid or role_of(vmi, self._node) is None
        return True


def _log_state(vm: PodWork) -> None:
    """One line for each state of a domain, in KubeVirt's words."""
    state, record = vm.launcher.state, vm.record
    if state and state.status and (state.status, state.reason) != vm.logged:
        vm.logged = state.status, state.reason
        about = {"kind": "Domain", "name": record.name, "namespace": record.namespace, "uid": record.uid}
        logger.info("Domain is in state %s reason %s", state.status, state.reason or "Unknown", extra={ABOUT: about})
