"""VMs on this node: each VMI and the domain behind it, brought in line with each other.

Called whenever either of them changes. Nothing that matters is remembered here: a handler that restarts finds VMIs at
the API server, domains through their launchers, and what it did before in the records on the node's disk.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from virtfleet.api import names
from virtfleet.api.names import Phase
from virtfleet.domain.errors import DomainError
from virtfleet.handler.network.networks import NetworkError, Networks
from virtfleet.handler.pods.launchers import Launcher, Presence, Unresponsive
from virtfleet.handler.vms import preparation, status, tuning
from virtfleet.handler.vms.decisions import Step, next_step
from virtfleet.handler.vms.ghosts import Ghost, Ghosts
from virtfleet.handler.vms.preparation import NotPossible
from virtfleet.handler.vms.records import Instance, decode_instance
from virtfleet.handler.vms.status import Situation
from virtfleet.hypervisors.registry import UnknownHypervisor
from virtfleet.installation import Installation
from virtfleet.kube.api import KubeApi
from virtfleet.kube.cache import Cache
from virtfleet.kube.controller import Controller
from virtfleet.kube.errors import ApiError, is_not_found
from virtfleet.kube.events import Recorder
from virtfleet.kube.resource import VMIS, Obj
from virtfleet.protocol.client import Refused
from virtfleet.protocol.messages import Event, GetGuestInfo, GuestInfo, Kill, Shutdown
from virtfleet.work import tasks
from virtfleet.work.pacing import Backoff

logger = logging.getLogger(__name__)

SYNC_EVENT = "SyncFailed"
WORKERS = 64  # most of them wait for a launcher
# Seconds between questions to a guest's agent: often while the guest comes up, seldom afterwards.
_ASK_FIRST, _ASK_MOST = 2.0, 60.0
_KILL_PERIOD = 1.0
# Seconds between attempts at what cannot be done as things are.
_RETRY_FIRST, _RETRY_MOST = 1.0, 60.0
_LONGEST_WORDS = 2000  # of a message, which may be anybody's: libvirt's, the launcher's
# What says by itself what is wrong. Anything else nobody has thought of, and its trace is needed.
_EXPLAINED = (NotPossible, NetworkError, Refused, Unresponsive, DomainError, UnknownHypervisor, OSError)


@dataclass(slots=True)
class Following:
    """A VM that is followed, and what need not be done again while this process lives."""

    ghost: Ghost
    launcher: Launcher
    synced: bytes = b""
    """What the launcher was last told of the VMI."""
    asked_to_stop: tuple[int | None] | None = None
    """The time that the guest was given to shut down."""
    guest: GuestInfo | None = None
    asking: asyncio.Task[None] | None = None
    """A question to the guest that is under way. Nothing waits for its answer."""
    ask_guest_at: float = 0.0
    ask_pause: Backoff = field(default_factory=lambda: Backoff(_ASK_FIRST, _ASK_MOST))
    trouble: str = ""
    """What went wrong when it was last tried."""
    tried: tuple[Step, bytes] | None = None
    """What was tried last, and for which VMI."""
    retry_at: float = 0.0
    pause: Backoff = field(default_factory=lambda: Backoff(_RETRY_FIRST, _RETRY_MOST))

    async def close(self) -> None:
        if self.asking:
            self.asking.cancel()
        await self.launcher.close()


class Machines:
    """The controller of this node's VMs."""

    def __init__(
        self,
        api: KubeApi,
        recorder: Recorder,
        node: str,
        *,
        pods: Path,
        ghosts: Ghosts,
        networks: Networks,
        facts: Path,
        cluster: Callable[[], Installation],
    ) -> None:
        self.instances: Cache[Instance] = Cache(api, VMIS, labels=f"{names.NODE_NAME}={node}", decode=decode_instance)
        self.controller = Controller("vmi", self.reconcile, workers=WORKERS)
        self.controller.follow(self.instances)
        self._api = api
        self._recorder = recorder
        self._node = node
        self._pods = pods
        self._ghosts = ghosts
        self._networks = networks
        self._facts = facts
        self._cluster = cluster
        self._followed: dict[str, Following] = {}  # by UID of the VMI
        for key in ghosts.keys():  # noqa: SIM118 (not a dict)
            self.controller.queue.add(key)

    async def reconcile(self, key: str) -> float | None:
        """Bring the VM in line with its VMI, and the VMI's status in line with the VM."""
        found = self.instances.get(key)
        try:
            return await self._reconcile(key, found)
        except ApiError:
            raise
        except Exception as error:  # whatever it is, the owner of the VM gets to know
            if found:
                trouble = self._words(error)
                if await self._write(found, status.complaint(found.object(), trouble, time.time())):
                    self._recorder.warning(found.reference, SYNC_EVENT, trouble)
            raise

    async def _reconcile(self, key: str, found: Instance | None) -> float | None:
        again = await self._tear_down(key, found.uid if found else "")
        if found is None or not (pod := found.pod_on(self._node)):
            return again
        vm = self._follow(Ghost(namespace=key.partition("/")[0], name=found.vmi.metadata.name, uid=found.uid, pod=pod))
        again = _sooner(again, await self._try(found, vm))
        again = _sooner(again, self._ask_guest(vm))
        await self._report(found, vm)
        return again

    def vms(self) -> list[Following]:
        return list(self._followed.values())

    async def close(self) -> None:
        """Let go of all launchers; their VMs do not notice."""
        for vm in self._followed.values():
            await vm.close()

    # What is done.

    async def _try(self, found: Instance, vm: Following) -> float | None:
        """Do what is to be done next; the answer is when to try again what failed.

        Whoever looks at the VM in the meantime does not shorten the pause; that something else is wanted ends it.
        """
        step = next_step(found, vm.launcher.presence, vm.launcher.state)
        if step is Step.NOTHING:
            return None
        wanted = hashlib.sha256(msgspec.json.encode(found.vmi.spec)).digest()
        left = vm.retry_at - time.monotonic()
        if vm.trouble and vm.tried == (step, wanted) and left > 0:
            return left
        vm.tried = (step, wanted)
        try:
            await self._act(step, found, vm, wanted)
        except Exception as error:
            self._complain(found, vm, error)
            pause = vm.pause.next()
            vm.retry_at = time.monotonic() + pause
            return pause
        vm.trouble = ""
        vm.pause.reset()
        return None

    async def _act(self, step: Step, found: Instance, vm: Following, wanted: bytes) -> None:
        match step:
            case Step.SHUT_DOWN:
                await self._shut_down(found, vm)
            case Step.KILL:
                await vm.launcher.call(Kill())
            case Step.START:
                await self._synchronize(found, vm, started=False)
            case Step.UPDATE if vm.synced != wanted:
                await self._synchronize(found, vm, started=True)
        if step in (Step.START, Step.UPDATE):
            vm.synced = wanted

    async def _synchronize(self, found: Instance, vm: Following, *, started: bool) -> None:
        """Start the domain, or tell the launcher that the VMI asks for something else now."""
        process = vm.launcher.process
        if process is None:
            raise Unresponsive("not connected to the launcher")
        order = await preparation.prepare(found, process, self._networks, self._cluster(), self._facts, started=started)
        vm.launcher.state = await vm.launcher.call(order)
        if not started:
            self._recorder.normal(found.reference, "Created", "VirtualMachineInstance defined.")
        tuning.after_start(process, found.hypervisor.descriptor, found.hypervisor.tuning(found.vmi, order.node.context))

    async def _shut_down(self, found: Instance, vm: Following) -> None:
        """Ask once, and again where the time that the guest has is another one. The launcher does the rest."""
        grace = (found.vmi.spec.termination_grace_period_seconds,)
        if vm.asked_to_stop == grace:
            return
        await vm.launcher.call(Shutdown(grace_seconds=grace[0]))
        if vm.asked_to_stop is None:
            self._recorder.normal(found.reference, "ShuttingDown", "Signaled Graceful Shutdown")
        vm.asked_to_stop = grace

    def _complain(self, found: Instance, vm: Following, error: Exception) -> None:
        trouble = self._words(error)
        if trouble != vm.trouble:
            trace = None if isinstance(error, _EXPLAINED) else error
            logger.warning("%s: %s", vm.ghost.key, trouble, exc_info=trace)
            self._recorder.warning(found.reference, SYNC_EVENT, trouble)
        vm.trouble = trouble

    def _words(self, error: Exception) -> str:
        """What is wrong and what to do about it, for the owner of a VM."""
        words = str(error)
        if isinstance(error, UnknownHypervisor):
            words = f"{words}: give the pool of node {self._node} a virt-handler image that has it"
        elif not isinstance(error, _EXPLAINED):
            words = f"{type(error).__name__}: {words}. That was not foreseen: see virt-handler's log on {self._node}"
        return words if len(words) <= _LONGEST_WORDS else f"{words[:_LONGEST_WORDS]}…"

    def _ask_guest(self, vm: Following) -> float | None:
        """Ask the guest's agent now and then, and wait for nothing; the answer is when to look here again."""
        state = vm.launcher.state
        if vm.launcher.presence is not Presence.HERE or not state or not state.agent or state.status.ended:
            vm.guest, vm.ask_guest_at = None, 0.0
            vm.ask_pause.reset()
            return None
        left = vm.ask_guest_at - time.monotonic()
        if left > 0:
            return left
        if vm.asking is None or vm.asking.done():
            vm.asking = tasks.start(self._listen_to_guest(vm), f"guest: {vm.ghost.key}")
        return None

    async def _listen_to_guest(self, vm: Following) -> None:
        try:
            vm.guest = await vm.launcher.call(GetGuestInfo())
        except (Refused, Unresponsive) as error:
            logger.info("%s: the guest's agent does not answer: %s", vm.ghost.key, error)
        finally:
            vm.ask_guest_at = time.monotonic() + vm.ask_pause.next()
            self.controller.queue.add(vm.ghost.key)

    # What is told.

    async def _report(self, found: Instance, vm: Following) -> None:
        """Write the VMI's status, if anything in it is new."""
        change = status.change(self._situation(found, vm), time.time())
        if not await self._write(found, change):
            return
        match change["status"].get("phase"):
            case Phase.RUNNING:
                self._recorder.normal(found.reference, "Started", "VirtualMachineInstance started.")
            case Phase.SUCCEEDED:
                self._recorder.normal(found.reference, "Stopped", "The VirtualMachineInstance was shut down.")
            case Phase.FAILED if vm.launcher.state and vm.launcher.state.killed:
                what = "The guest did not shut down within its grace period, and was killed."
                self._recorder.warning(found.reference, "Stopped", what)
            case Phase.FAILED if vm.launcher.state and vm.launcher.state.status.ended:
                self._recorder.warning(found.reference, "Stopped", "The VirtualMachineInstance crashed.")
            case Phase.FAILED:
                self._recorder.warning(found.reference, "Stopped", "The virt-launcher of the VM ended without a word.")

    async def _write(self, found: Instance, change: Obj) -> bool:
        """Whether anything was written: there may be nothing to say, or nobody to say it of."""
        if not change:
            return False
        meta = found.vmi.metadata
        try:
            self.instances.observe(await self._api.patch(VMIS, meta.name, change, meta.namespace))
        except ApiError as error:
            if not is_not_found(error):
                raise
            return False
        return True

    def _situation(self, found: Instance, vm: Following) -> Situation:
        launcher = vm.launcher
        process = launcher.process
        try:
            hypervisor = found.hypervisor
        except UnknownHypervisor:
            hypervisor = None
        return Situation(
            found.object(),
            found.vmi,
            hypervisor,
            launcher.presence,
            launcher.state,
            self._networks.known(vm.ghost.pod, process, found.vmi),
            vm.guest,
            hypervisor is not None and process is not None and preparation.emulated(process, hypervisor.descriptor),
            vm.trouble,
        )

    # Coming and going.

    def _follow(self, ghost: Ghost) -> Following:
        """The VM, followed from now on and remembered beyond the end of this process."""
        vm = self._followed.get(ghost.uid)
        if vm is None:
            self._ghosts.add(ghost)

            def changed(event: Event | None) -> None:
                self._happened(ghost, event)

            vm = Following(ghost, Launcher(self._pods / ghost.pod, changed, vmi=ghost.uid))
            self._followed[ghost.uid] = vm
        return vm

    def _happened(self, ghost: Ghost, event: Event | None) -> None:
        found = self.instances.get(ghost.key)
        if event and event.kind and found and found.uid == ghost.uid:
            self._recorder.warning(found.reference, event.kind, f"The guest: {event.kind} {event.detail}".strip())
        self.controller.queue.add(ghost.key)

    async def _tear_down(self, key: str, uid: str) -> float | None:
        """End what is left here of VMIs of this name that are gone; the answer is when to look again."""
        again = None
        for ghost in self._ghosts.of(key):
            if ghost.uid == uid:
                continue
            vm = self._follow(ghost)
            if vm.launcher.presence is Presence.GONE:
                await self._forget(vm)
                continue
            again = _KILL_PERIOD
            if await self._surely_gone(ghost):
                await self._kill(vm)
        return again

    async def _forget(self, vm: Following) -> None:
        """Nothing of the VM is left, so its record may go."""
        await vm.close()
        del self._followed[vm.ghost.uid]
        self._networks.forget(vm.ghost.pod)
        self._ghosts.remove(vm.ghost.uid)
        logger.info("%s: nothing is left of VMI %s", vm.ghost.key, vm.ghost.uid)

    async def _kill(self, vm: Following) -> None:
        state = vm.launcher.state
        if vm.launcher.presence is not Presence.HERE or not state or state.status.ended:
            return
        try:
            await vm.launcher.call(Kill())
        except (Refused, Unresponsive) as error:
            logger.warning("%s: a VM without a VMI cannot be ended yet: %s", vm.ghost.key, error)

    async def _surely_gone(self, ghost: Ghost) -> bool:
        """Whether the VMI is not meant to run here. A cache can be wrong about that, and an end cannot be undone."""
        try:
            found = await self._api.get(VMIS, ghost.name, ghost.namespace)
        except ApiError as error:
            if not is_not_found(error):
                raise
            return True
        return bool(found["metadata"]["uid"] != ghost.uid or found["status"].get("nodeName") != self._node)


def _sooner(one: float | None, other: float | None) -> float | None:
    times = [seconds for seconds in (one, other) if seconds is not None]
    return min(times) if times else None
