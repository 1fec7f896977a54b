"""VMs that run here, or should: each started, changed, reported and ended as its VMI says."""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial

from virtfleet.api.names import Phase
from virtfleet.handler.network.networks import arrived, pluggable
from virtfleet.handler.pods.launchers import Presence, Unresponsive
from virtfleet.handler.vms import plugging, preparation, status, tuning
from virtfleet.handler.vms.departures import Departures, Leaving
from virtfleet.handler.vms.instances import Instance, Role
from virtfleet.handler.vms.preparation import NotPossible, Preparation
from virtfleet.handler.vms.status import Situation
from virtfleet.handler.vms.work import Attempts, PodWork, Step, next_step
from virtfleet.hypervisors.registry import UnknownHypervisor
from virtfleet.kube.events import Recorder
from virtfleet.kube.resource import Obj
from virtfleet.protocol.client import Refused
from virtfleet.protocol.messages import Depart, DomainState, GetGuestInfo, Kill, Shutdown, Sync
from virtfleet.work import tasks

logger = logging.getLogger(__name__)

_ASK_TO_LET_GO = 5.0  # seconds between requests to a guest that does not let go of a device
_CANNOT_GROW = (
    "the VM has room for more CPUs or memory, and its launcher, of an earlier version, adds none; restart the VM"
)
_AT_ONCE = (0,)
_DELETED = ("Deleted", "Signaled Deletion")
_KILLED = "The guest did not shut down within its grace period, and was killed."
_CRASHED = "The VirtualMachineInstance crashed."
_WITHOUT_A_WORD = "The VirtualMachineInstance crashed: its virt-launcher ended without a word."


@dataclass
class Source:
    """Brings a VM in line with its VMI, and the VMI's status in line with the VM.

    `write` patches a VMI and says whether there was anything to write; `stir` has a Pod looked at again.
    """

    _recorder: Recorder
    _attempts: Attempts
    _preparation: Preparation
    _departures: Departures
    _write: Callable[[Instance, Obj], Awaitable[bool]]
    _stir: Callable[[str], None]

    async def reconcile(self, instance: Instance, vm: PodWork) -> float | None:
        """Do what is to be done, ask the guest, say how it is; the answer is when to look again."""
        leaving, look = await self._departures.reconcile(instance, vm)
        if leaving is Leaving.LEFT:
            return look
        if instance.phase == Phase.RUNNING:
            vm.launcher.was_here = True
        step = next_step(instance, Role.SOURCE, vm.launcher.presence, vm.launcher.state)
        if leaving is Leaving.MOVING and step in (Step.START, Step.UPDATE):
            step = Step.NOTHING  # what moves is not changed
        # Before the attempt, which may not have seen what comes later.
        there = arrived(vm.launcher.process, instance.vmi)
        again = await self._attempts.make(instance, vm, step, partial(self._act, instance, vm))
        if leaving is Leaving.NO:
            moments = look, await self._unplug(instance, vm), self._await(instance, vm, there)
            look = min(filter(None, moments), default=None)
        asked = self._ask_guest(vm)
        await self._report(instance, vm)
        return min(filter(None, (again, asked, look)), default=None)

    # What is done.

    async def _act(self, instance: Instance, vm: PodWork, step: Step, wanted: bytes) -> None:
        match step:
            case Step.SHUT_DOWN:
                await self._shut_down(instance, vm)
            case Step.KILL:
                await vm.launcher.call(Kill())
            case Step.START if plugging.awaited(instance.vmi):
                return  # the controller brings them to the node, and says so
            case Step.START:
                await self._synchronize(instance, vm, started=False)
            case Step.UPDATE if vm.done != (step, wanted):
                await self._synchronize(instance, vm, started=True)
        if step in (Step.START, Step.UPDATE):
            vm.done = (Step.UPDATE, wanted)

    async def _synchronize(self, instance: Instance, vm: PodWork, *, started: bool) -> None:
        """Start the domain, or tell the launcher that the VMI asks for something else now."""
        order, process, trouble = await self._preparation.make(instance, vm.launcher, Sync, started=started)
        vm.launcher.state = await vm.launcher.call(order)
        if not started:
            self._recorder.normal(instance.reference, "Created", "VirtualMachineInstance defined.")
        hypervisor = instance.hypervisor
        tuning.after_start(process, hypervisor.descriptor, hypervisor.tuning(instance.vmi, order.node.context))
        if trouble := trouble or _outgrown(order, vm.launcher.state):
            raise NotPossible(trouble)

    async def _unplug(self, instance: Instance, vm: PodWork) -> float | None:
        """Take out of the Pod what the guest has let go of; one that has not is asked again."""
        state, process = vm.launcher.state, vm.launcher.process
        if vm.launcher.presence is not Presence.HERE or process is None or state is None or not state.status:
            return None
        kept = await plugging.unmount(instance.vmi, process, state)
        kept += await self._preparation.networks.take_down(process, instance.vmi, state.links)
        if not kept:
            return None
        left = vm.unplug_at - time.monotonic()
        if left <= 0:
            vm.done, vm.unplug_at, left = None, time.monotonic() + _ASK_TO_LET_GO, _ASK_TO_LET_GO
            self._stir(vm.record.key)
        return left

    @staticmethod
    def _await(instance: Instance, vm: PodWork, there: list[str]) -> float | None:
        """When to look again for interfaces that the Pod is to have, and had not."""
        if len(there) == len(pluggable(instance.vmi)):
            vm.plug_pause.reset()
            return None
        return vm.plug_pause.next()

    async def _shut_down(self, instance: Instance, vm: PodWork) -> None:
        """Ask once, and again where the time that the guest has is another one. The launcher does the rest."""
        grace = (instance.vmi.spec.termination_grace_period_seconds,)
        if vm.asked_to_stop == grace:
            return
        await vm.launcher.call(Shutdown(grace_seconds=grace[0]))
        if vm.asked_to_stop is None:
            said = ("ShuttingDown", "Signaled Graceful Shutdown") if grace != _AT_ONCE else _DELETED
            self._recorder.normal(instance.reference, *said)
        vm.asked_to_stop = grace

    def _ask_guest(self, vm: PodWork) -> float | None:
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
            vm.asking = tasks.start(self._listen_to_guest(vm), f"guest: {vm.record.key}")
        return None

    async def _listen_to_guest(self, vm: PodWork) -> None:
        try:
            vm.guest = await vm.launcher.call(GetGuestInfo())
        except (Refused, Unresponsive) as error:
            logger.info("%s: the guest's agent does not answer: %s", vm.record.key, error)
        finally:
            vm.ask_guest_at = time.monotonic() + vm.ask_pause.next()
            self._stir(vm.record.key)

    # What is reported.

    async def _report(self, instance: Instance, vm: PodWork) -> None:
        """Write the VMI's status, if anything in it is new."""
        situation = self._situation(instance, vm)
        change = status.change(situation, time.time())
        if not await self._write(instance, change):
            return
        before = (situation.obj.get("status") or {}).get("volumeStatus") or ()
        for reason, message in plugging.news(before, change["status"].get("volumeStatus") or ()):
            self._recorder.normal(instance.reference, reason, message)
        if trouble := status.credentials(situation.obj, change):
            self._recorder.warning(instance.reference, "AccessCredentialsSyncFailed", trouble)
        elif trouble is not None:
            said = "Access credentials sync successful."
            self._recorder.normal(instance.reference, "AccessCredentialsSyncSuccess", said)
        state = vm.launcher.state or DomainState()
        match change["status"].get("phase"):
            case Phase.RUNNING:
                self._recorder.normal(instance.reference, "Started", "VirtualMachineInstance started.")
            case Phase.SUCCEEDED:
                self._recorder.normal(instance.reference, "Stopped", "The VirtualMachineInstance was shut down.")
            case Phase.FAILED:
                if state.killed and vm.asked_to_stop != _AT_ONCE:
                    self._recorder.normal(instance.reference, *_DELETED)
                why = _KILLED if state.killed else _CRASHED if state.status.ended else _WITHOUT_A_WORD
                self._recorder.warning(instance.reference, "Stopped", why)

    def _situation(self, instance: Instance, vm: PodWork) -> Situation:
        launcher, process = vm.launcher, vm.launcher.process
        try:
            hypervisor = instance.hypervisor
        except UnknownHypervisor:
            hypervisor = None
        return Situation(
            instance.object(),
            instance.vmi,
            hypervisor,
            launcher.presence,
            launcher.state,
            self._preparation.networks.known(vm.record.pod, process, instance.vmi),
            vm.guest,
            hypervisor is not None and process is not None and preparation.emulated(process, hypervisor.descriptor),
            vm.trouble,
            process.selinux_context() if process else "",
            launcher.lacks(Depart),
            plugging.mounted(process, instance.vmi) if process else None,
            self._preparation.overhead(instance.vmi, hypervisor) if hypervisor else None,
        )


def _outgrown(order: Sync, state: DomainState) -> str:
    """Why a domain that runs has not all that there is room for, although its launcher was told."""
    memory = state.requested_memory or state.boot_memory
    lacks = state.topology[0] < order.node.sockets or memory < order.node.memory
    return _CANNOT_GROW if lacks and not state.status.ended else ""
