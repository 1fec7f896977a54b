"""A launcher Pod that is worked on, what is done next for it, and how: at once, and again after growing pauses."""

from __future__ import annotations

import asyncio
import enum
import hashlib
import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

import msgspec

from virtfleet.api import names
from virtfleet.api.names import FINAL
from virtfleet.domain.errors import DomainError
from virtfleet.handler.migration.outgoing import Outgoing
from virtfleet.handler.migration.proxy import Incoming
from virtfleet.handler.network.networks import NetworkError, arrived
from virtfleet.handler.pods.hostdisks import NoDisk
from virtfleet.handler.pods.launchers import Launcher, Presence, Unresponsive
from virtfleet.handler.vms import plugging
from virtfleet.handler.vms.instances import Instance, Role
from virtfleet.handler.vms.preparation import NotPossible
from virtfleet.handler.vms.records import VmRecord
from virtfleet.hypervisors.registry import UnknownHypervisor
from virtfleet.kube.events import Recorder
from virtfleet.protocol.client import Refused
from virtfleet.protocol.messages import DomainState, GuestInfo, Status
from virtfleet.work.pacing import Backoff

logger = logging.getLogger(__name__)

SYNC_EVENT = "SyncFailed"
# Seconds between questions to a guest's agent: often while the guest comes up, seldom afterwards.
_ASK_FIRST, _ASK_MOST = 2.0, 60.0
# Seconds between looks for an interface of the Pod.
_PLUG_FIRST, _PLUG_MOST = 0.25, 5.0
# Seconds between attempts at what cannot be done as things are.
_RETRY_FIRST, _RETRY_MOST = 1.0, 60.0
_LONGEST_WORDS = 2000  # of a message, which may be anybody's: libvirt's, the launcher's
# What says by itself what is wrong. Anything else nobody has thought of, and its trace is needed.
_EXPLAINED = (NotPossible, NoDisk, NetworkError, Refused, Unresponsive, DomainError, UnknownHypervisor, OSError)


class Step(enum.Enum):
    """In the order in which they are considered: an end that was asked for goes before everything else."""

    NOTHING = "nothing"
    KILL = "kill"
    PREPARE = "prepare"
    SHUT_DOWN = "shut down"
    START = "start"
    UPDATE = "update"


def next_step(instance: Instance, role: Role, presence: Presence, state: DomainState | None) -> Step:
    """What is done next. Where nothing is known of the domain, nothing is done to it."""
    if presence is not Presence.HERE or state is None or state.status.ended:
        return Step.NOTHING
    if instance.phase in FINAL:
        return Step.KILL
    if role is Role.TARGET:  # the guest's end is the source's business, and with it this Pod's
        return Step.PREPARE if state.status is Status.ABSENT else Step.NOTHING
    if instance.deleting:
        return Step.SHUT_DOWN
    if state.stopping:
        return Step.NOTHING
    return Step.START if state.status is Status.ABSENT else Step.UPDATE


@dataclass(slots=True)
class PodWork:
    """A launcher Pod of a VM, and what need not be done again while this process lives."""

    record: VmRecord
    launcher: Launcher
    done: tuple[Step, bytes] | None = None
    """What the launcher did last of what changes its VM, and for which spec."""
    asked_to_stop: tuple[int | None] | None = None
    """The time that the guest was given to shut down."""
    logged: tuple[str, str] = ("", "")
    """What the domain did, and why, when that was last logged."""
    guest: GuestInfo | None = None
    asking: asyncio.Task[None] | None = None
    """A question to the guest that is under way. Nothing waits for its answer."""
    ask_guest_at: float = 0.0
    ask_pause: Backoff = field(default_factory=lambda: Backoff(_ASK_FIRST, _ASK_MOST))
    outgoing: Outgoing | None = None
    """The migration by which the guest leaves."""
    incoming: Incoming | None = None
    """The migration by which the guest comes."""
    unplug_at: float = 0.0
    """When the guest is asked again to let go of a device."""
    plug_pause: Backoff = field(default_factory=lambda: Backoff(_PLUG_FIRST, _PLUG_MOST))
    """Between looks for an interface that is to come to the Pod, which nobody tells."""
    left_at: float | None = None
    """When nothing of a guest that leaves was left here, on a clock that only goes forward."""
    trouble: str = ""
    """What went wrong when it was last tried."""
    tried: tuple[Step, bytes] | None = None
    """What was tried last, and for which spec."""
    retry_at: float = 0.0
    pause: Backoff = field(default_factory=lambda: Backoff(_RETRY_FIRST, _RETRY_MOST))

    async def close(self) -> None:
        if self.asking:
            self.asking.cancel()
        if self.outgoing:
            await self.outgoing.close()
        await self.launcher.close()


Act = Callable[[Step, bytes], Awaitable[None]]


@dataclass
class Attempts:
    """How things are attempted on a node. What fails is told to the owner of the VM, once for each reason."""

    _recorder: Recorder
    _node: str

    async def make(self, instance: Instance, vm: PodWork, step: Step, act: Act) -> float | None:
        """Do a step; the answer is when to try again what failed.

        Whoever looks at the VM in the meantime does not shorten the pause; that something else is wanted ends it.
        """
        if step is Step.NOTHING:
            return None
        vmi, there = instance.vmi, arrived(vm.launcher.process, instance.vmi)
        probed = vmi.metadata.annotations.get(names.PAUSE_PROBES)
        spec = [vmi.spec, plugging.fingerprint(vmi), vmi.status.pod_room, there, probed]
        wanted = hashlib.sha256(msgspec.json.encode(spec)).digest()
        left = vm.retry_at - time.monotonic()
        if vm.trouble and vm.tried == (step, wanted) and left > 0:
            return left
        vm.tried = (step, wanted)
        try:
            await act(step, wanted)
        except Exception as error:
            before, vm.trouble = vm.trouble, self.words(error)
            if vm.trouble != before:
                trace = None if isinstance(error, _EXPLAINED) else error
                logger.warning("%s: %s", vm.record.key, vm.trouble, exc_info=trace)
                self._recorder.warning(instance.reference, SYNC_EVENT, vm.trouble)
            pause = vm.pause.next()
            vm.retry_at = time.monotonic() + pause
            return pause
        vm.trouble = ""
        vm.pause.reset()
        return None

    def words(self, error: Exception) -> str:
        """What is wrong and what to do about it, for the owner of a VM."""
        words = str(error)
        if isinstance(error, UnknownHypervisor):
            words = f"{words}: give the pool of node {self._node} a virt-handler image that has it"
        elif not isinstance(error, _EXPLAINED):
            words = f"{type(error).__name__}: {words}. That was not foreseen: see virt-handler's log on {self._node}"
        return words if len(words) <= _LONGEST_WORDS else f"{words[:_LONGEST_WORDS]}…"
