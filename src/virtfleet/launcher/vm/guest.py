"""The one domain beside this launcher: made as the VMI says, watched, changed while it runs, and ended.

What happens is never taken from an event's word: events only say that it is time to look. So nothing is lost when
events are, for instance while libvirt's daemon is being started again.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import libvirt
import msgspec

from virtfleet.api import names, traits
from virtfleet.api.vmi import VirtualMachineInstance as VMI
from virtfleet.domain import paths
from virtfleet.domain.context import Context, Host
from virtfleet.domain.errors import DomainError
from virtfleet.domain.xml import child, text
from virtfleet.hypervisors.base import Descriptor, Events, Hypervisor
from virtfleet.launcher.failure import Failure
from virtfleet.launcher.guestnet.network import Network
from virtfleet.launcher.libvirtd import host
from virtfleet.launcher.libvirtd.connection import Connection, Domain, ask_vmm, in_a_known_way
from virtfleet.launcher.node import emulators
from virtfleet.launcher.server import Handlers, Updates
from virtfleet.launcher.sharing import neighbours
from virtfleet.launcher.storage import disks
from virtfleet.launcher.vm import abi, live, metrics, states
from virtfleet.launcher.vm.console import Console
from virtfleet.launcher.vm.credentials import Credentials
from virtfleet.launcher.vm.hooks import Hooks
from virtfleet.launcher.vm.metrics import Metric
from virtfleet.launcher.vm.moves import Arrival, Departures
from virtfleet.launcher.vm.operations import Operations
from virtfleet.protocol import messages as m
from virtfleet.work import tasks

logger = logging.getLogger(__name__)

_ASK_AGAIN = 5.0  # seconds between requests to shut down: a guest that still boots does not hear the first
# A word to a guest that knows of its hypervisor, where that has one, else the power button; else a signal to a
# container's first process, else what the driver knows.
_WAYS_DOWN = (
    libvirt.VIR_DOMAIN_SHUTDOWN_PARAVIRT | libvirt.VIR_DOMAIN_SHUTDOWN_ACPI_POWER_BTN,
    libvirt.VIR_DOMAIN_SHUTDOWN_ACPI_POWER_BTN,
    libvirt.VIR_DOMAIN_SHUTDOWN_SIGNAL,
    0,
)
_FIRST_PAUSE, _LONGEST_PAUSE = 0.5, 30.0  # seconds between looks without an event
_START = 300.0  # seconds: memory in large pages, or of an encrypted guest, is prepared first
_POLL = 2.0  # the same where the driver has no events


class Guest:
    """The domain of one VMI. `ended` is set when it is over, or when it was stopped before it began."""

    def __init__(
        self, name: str, uid: str, hypervisor: Hypervisor, uri: str, updates: Updates, sidecars: int = 0
    ) -> None:
        self.ended = asyncio.Event()
        self._connection = Connection(uri, self._changed)
        self._domain = Domain(name, self._connection)
        self._operations = Operations(self._domain, self._look, self._changed, self._resting)
        self._uid = uid
        self._hypervisor = hypervisor
        self._updates = updates
        self._network = Network()
        self._hooks = Hooks(sidecars, hypervisor)
        self._console: Console | None = None
        self._syncing = asyncio.Lock()
        self._looking = asyncio.Lock()
        self._stirred = asyncio.Event()
        self._credentials = Credentials(self._operations.ask, self._may_talk, say=self._stirred.set)
        self._started = False
        self._accompanied = False
        self._sweeps = False  # an image may be open that no disk has any more
        self.departures = Departures(self._connection, name, hypervisor, say=self._stirred.set)
        self._arrival = Arrival(self._connection, self._domain, hypervisor)
        self._here = Host()
        self._formats: dict[str, str] = {}
        self._node_name = ""
        self._grace = traits.GRACE
        self._unprobed = False
        self._deadline: float | None = None  # of a shutdown
        self._killed = False
        self._tasks = tasks.Owned()

    def handlers(self) -> Handlers:
        """What is done on which request."""
        return {
            m.Sync: self.sync,
            m.Prepare: self.prepare,
            m.GetState: self._state,
            m.Shutdown: self.shutdown,
            m.Kill: self._kill,
            m.GetDocument: self._arrival.get_document,
            m.Depart: self._depart,
            m.AbortDeparture: self.departures.abort,
            m.Stay: self.departures.stay,
            m.Arrive: self.arrive,
            **{request: partial(self._operate, do) for request, do in self._operations.handlers().items()},
        }

    def start(self) -> None:
        """Connect to libvirt, and follow what the domain does."""
        self._network.start()
        self._connection.start()
        self._background("look at the domain", self._keep_looking)

    async def close(self) -> None:
        await self._hooks.say_goodbye()
        self._network.close()
        self._operations.close()
        if self._console:
            await self._console.close()
        self.departures.close()
        await self._tasks.end()
        await self._connection.stop()

    # As the VMI says.

    async def sync(self, request: m.Sync) -> m.DomainState:
        """Start the domain, or bring the running one in line. Called again, it goes on where it stopped."""
        vmi = _read(request)
        async with self._syncing:
            if self.ended.is_set():
                return self._updates.latest.state
            if self._arrival.expected and not self._started:
                raise Failure("the VM comes from another node, and is not started here")
            wanted = await self._ready(vmi, request)
            if not self._started:
                await self._start(wanted, paused=traits.starts_paused(vmi))
            else:
                await self._adjust(wanted, request.node)
            await self._accompany()
        return await self._look()

    async def prepare(self, request: m.Prepare) -> m.DomainState:
        """Make everything ready that a start would need, and start nothing. May be repeated."""
        vmi = _read(request)
        async with self._syncing:
            if not self.ended.is_set() and not self._started:
                self._arrival.expect(request.migration, await self._ready(vmi, request))
        return await self._look()

    async def arrive(self, request: m.Arrive) -> m.DomainState:
        """Let the guest run that another node has let go of. From then on the domain is as if started here."""
        async with self._syncing:
            if not self._started:
                await self._arrival.land(request)
                self._started = True
                self._operations.set_clock()
                logger.info("the domain %s has arrived", self._domain.name)
        state = await self._look()
        try:
            async with self._syncing:
                await self._accompany()
        except Failure as error:
            logger.warning("%s; it is tried again", error)
        return state

    async def _depart(self, request: m.Depart) -> m.Done:
        if not self._started or self.ended.is_set():
            raise Failure("the VM does not run here")
        async with self._syncing:
            return self.departures.begin(request)

    async def _operate(self, operation: Callable[[Any], Awaitable[m.Message]], request: m.Message) -> m.Message:
        """Only on a guest that runs here. Whether it stands still is settled before it goes elsewhere."""
        probe = isinstance(request, m.GuestPing | m.GuestExec)
        if not self._started and not (probe and self._resting()):
            raise Failure("the VM does not run here")
        if isinstance(request, m.Pause | m.Unpause) and self.departures.going_on:
            raise Failure("the VM is on its way to another node; try again when it is there, or end its migration")
        return await operation(request)

    async def _ready(self, vmi: VMI, request: m.Sync) -> ET.Element:
        """What the domain's document names, made unless it runs; the answer is the document."""
        self._grace = traits.grace(vmi)
        self._unprobed = vmi.metadata.annotations.get(names.PAUSE_PROBES) == "true"
        self._credentials.wanted = list(filter(traits.agent_command, vmi.spec.access_credentials))
        self._node_name = vmi.status.node_name
        self._network.serve(request.node)
        if not self._started:
            emulators.put(self._hypervisor, request.emulators)
            self._formats, self._here = await asyncio.gather(disks.formats(vmi), self._domain.run(host.inspect))
        context = msgspec.structs.replace(
            request.node.context, disk_formats=self._formats, taps=request.node.taps, host=self._here
        )
        wanted = self._document(vmi, context)
        if self._started:
            disks.fill_plugged(vmi, context, wanted)
        else:
            await disks.prepare(vmi, context, wanted, partial(self._hooks.seed, request.vmi))
            await neighbours.awaited(wanted)
            for socket in (paths.vmi_socket(self._uid, ""), paths.DOWNWARD_METRICS_SOCKET):
                os.makedirs(os.path.dirname(socket), exist_ok=True)
        if self._hypervisor.has("live-migration"):
            disks.choose_cache(wanted)
        return wanted if self._started else await self._hooks.define(wanted, request.vmi)

    def _document(self, vmi: VMI, context: Context) -> ET.Element:
        """The document for what is here. One that a domain is made from has what its guest had before."""
        try:
            document = self._hypervisor.build(vmi, context)
            abi.keep_machine(document, vmi)
            document = self._hypervisor.adapt(document, context)
            if not self._started:
                abi.keep_parts(document, vmi, context.host)
                self._hypervisor.make_room(document, vmi)
        except DomainError as error:
            raise Failure(str(error)) from None
        return document

    async def _start(self, wanted: ET.Element, *, paused: bool) -> None:
        def start(connection: libvirt.virConnect) -> None:
            with suppress(libvirt.libvirtError):
                defined = connection.lookupByName(self._domain.name)
                if defined.isActive():
                    return  # an answer was lost on the way
                # What a start that failed has left is defined anew, by its identity: undefining would take the
                # guest's firmware variables and TPM along.
                child(wanted, "uuid").text = defined.UUIDString()
            domain = connection.defineXMLFlags(text(wanted), libvirt.VIR_DOMAIN_DEFINE_VALIDATE)
            domain.createWithFlags(libvirt.VIR_DOMAIN_START_PAUSED if paused else 0)

        try:
            await self._domain.run(start, limit=_START)
        except Failure as error:
            raise Failure(f"the VM cannot be started; it is tried again until this is repaired: {error}") from None
        self._started = True
        logger.info("the domain %s has started", self._domain.name)
        if process := host.process(self._hypervisor.descriptor.processes):
            logger.info("Found PID for %s: %d", self._domain.name, process)  # KubeVirt's words, which people look for

    async def _accompany(self) -> None:
        """Serve what the running domain needs beside it. Where that fails, the domain runs on and it is tried again."""
        if self._accompanied:
            return
        running = await self._domain(lambda domain: ET.fromstring(domain.XMLDesc()))
        terminal = running.find("devices/console[@type='pty']/source")
        if terminal is not None and self._console is None:
            console = Console(terminal.get("path", ""), Path(paths.vmi_socket(self._uid, "virt-serial0")))
            try:
                await console.start()
            except OSError as error:
                with suppress(OSError):
                    await console.close()
                raise Failure(f"the VM runs, but its console cannot be served: {error}") from None
            self._console = console
        named = {value for element in running.iter() for value in element.attrib.values()}
        if paths.DOWNWARD_METRICS_DISK in named:
            self._background("metrics disk", partial(metrics.keep_disk, self._metrics))
        if paths.DOWNWARD_METRICS_SOCKET in named:
            self._background("metrics channel", partial(metrics.serve_channel, self._metrics))
        if self._credentials.wanted:
            self._background("credentials", self._credentials.keep)
        self._accompanied = True

    def _may_talk(self) -> bool:
        state = self._updates.latest.state
        return state.agent and not state.frozen and state.status is m.Status.RUNNING

    def _resting(self) -> bool:
        """Whether probes find the guest well without asking: its owner wants so or has stopped its CPUs, or it moves.

        Where nobody answers because the guest is on the way, ending a Pod of it would lose the guest.
        """
        state = self._updates.latest.state
        moves = self.departures.going_on or (self._arrival.expected and not self._started)
        return self._unprobed or bool(moves) or (state.status, state.reason) == (m.Status.PAUSED, "User")

    async def _metrics(self) -> list[Metric]:
        """What the guest may know of the node and of itself."""
        version = await self._domain.run(lambda c: f"{c.getType().lower()}-{_dotted(c.getVersion())}")
        return [
            Metric("host", "HostName", self._node_name),
            Metric("host", "HostSystemInfo", "linux"),
            Metric("host", "VirtualizationVendor", "kubevirt.io"),
            Metric("host", "VirtProductInfo", version),
            *metrics.of_vm(await self._domain.stats()),
            *metrics.of_host(),
        ]

    async def _adjust(self, wanted: ET.Element, node: m.NodeFacts) -> None:
        """Add and remove devices, and let the guest grow, as far as the running domain differs from the wanted one."""

        def adjust(domain: libvirt.virDomain) -> None:
            if not domain.isActive():
                return
            running = ET.fromstring(domain.XMLDesc())
            change = live.changes(running, wanted, self._hypervisor.identity, self._hooks.own)
            more = live.growth(running, node, self._hypervisor)
            if self.departures.going_on:
                if any(change) or more:
                    raise Failure("the VM is on its way to another node; it is changed when it is there")
                return
            if change.attach or change.update:
                self._sweep(domain, running)  # or what was plugged out a moment ago could not be plugged in again
            live.carry_out(domain, change, partial(more.apply, domain, running))

        await self._domain(adjust)

    def _sweep(self, domain: libvirt.virDomain, running: ET.Element | None = None) -> None:
        """Close the images of disks that were plugged out; what is still in use is tried again at the next look."""
        running = ET.fromstring(domain.XMLDesc()) if running is None else running
        self._sweeps = not self._hypervisor.sweep(running, partial(ask_vmm, domain))

    # What it does.

    def _changed(self, event: m.Event | None) -> None:
        """Something may be different. `event` is what happened, where that means anything by itself."""
        if event:
            logger.info("event %s %s", event.kind, event.detail)
            self._updates.publish(m.Update(state=self._updates.latest.state, event=event))
        self._stirred.set()
        self.departures.stir()

    async def _keep_looking(self) -> None:
        """Look after every event, and now and then without one: some changes come without any.

        A daemon that comes back and finds its domain dead, for instance, tells nobody.
        """
        longest = _POLL if self._hypervisor.descriptor.events is Events.POLLED else _LONGEST_PAUSE
        pause = _FIRST_PAUSE
        while not self.ended.is_set():
            try:
                async with asyncio.timeout(pause):
                    await self._stirred.wait()
            except TimeoutError:
                pause = min(2 * pause, longest)
            else:
                self._stirred.clear()
                pause = _FIRST_PAUSE
            try:
                await self._look()
            except Failure as error:  # the daemon is away; we look again when it is back
                logger.warning("the domain's state is not known: %s", error)

    async def _present(self) -> m.DomainState:
        """What libvirt says, unless that is long over: it may miss all that becomes of a container, its end as well."""
        before = host.container_ended(self._hypervisor.descriptor)
        present = await self._domain.run(lambda connection: states.present(connection, self._domain.name))
        if before and not present.status.ended:
            return m.DomainState(m.Status.SHUTOFF, "Shutdown", present.name, present.uuid)
        return present

    async def _look(self) -> m.DomainState:
        """See what the domain does now, and tell everybody if that is news."""
        async with self._looking:
            if self.ended.is_set():
                return self._updates.latest.state
            # Before libvirt has said that the start went well, a domain may be seen that never comes to run.
            present = await self._present() if self._started else m.DomainState()
            state = msgspec.structs.replace(
                self.departures.seen(present) if self._started else present,
                frozen=self._operations.frozen(present.agent),
                killed=self._killed,
                stopping=self._deadline is not None,
                migration=self.departures.report(present) or await self._arrival.report(),
                credentials=self._credentials.report,
            )
            before = self._updates.latest.state
            self._sweeps = self._sweeps or bool(before.disks.keys() - state.disks.keys())
            if self._sweeps and present.status is m.Status.RUNNING and not self.departures.going_on:
                with suppress(Failure):
                    await self._domain(self._sweep)
            if (state.status, state.reason) != (before.status, before.reason):
                logger.info("the domain is %s %s", state.status or "absent", state.reason)
            if state != before:
                self._updates.publish(m.Update(state=state))
            if self._started and state.status.ended:
                self.ended.set()
            return state

    async def _state(self, _: m.GetState) -> m.DomainState:
        return await self._look()

    # How it ends.

    async def shutdown(self, request: m.Shutdown) -> m.Done:
        """Ask the guest to shut down until it does or its time is over. A second request can only shorten it."""
        if not self._started:
            await self._arrival.give_up()
            self.ended.set()
            return m.Done()
        await self.departures.give_up()
        grace = self._grace if request.grace_seconds is None else request.grace_seconds
        deadline = asyncio.get_running_loop().time() + grace
        if self._deadline is None:
            self._background("shutdown", self._shut_down)
        self._deadline = min(self._deadline or deadline, deadline)
        return m.Done()

    async def _shut_down(self) -> None:
        clock = asyncio.get_running_loop().time
        while not self.ended.is_set():
            assert self._deadline is not None
            remaining = self._deadline - clock()
            if remaining <= 0:
                logger.warning("the guest did not shut down in time; it is killed")
                self._killed = True
                await self._end()
                return
            try:
                await self._domain(partial(_ask_to_shut_down, self._hypervisor.descriptor))
            except Failure as error:
                logger.warning("the guest cannot be asked to shut down: %s", error)
            with suppress(TimeoutError):
                async with asyncio.timeout(min(remaining, _ASK_AGAIN)):
                    await self.ended.wait()

    async def _kill(self, _: m.Kill) -> m.Done:
        if not self._started:
            await self._arrival.give_up()
            self.ended.set()
        else:
            await self._end()
        return m.Done()

    async def _end(self) -> None:
        """End the domain whatever it takes: a daemon that is away is waited for."""
        while not self.ended.is_set():
            try:
                await self._domain(lambda domain: domain.destroy() if domain.isActive() else None)
                await self._look()
            except Failure as error:
                logger.warning("the domain cannot be ended yet: %s", error)
                await asyncio.sleep(1)

    def _background(self, name: str, work: Callable[[], tasks.Work[None]]) -> None:
        self._tasks.add(tasks.keep(work, name))


def _read(request: m.Sync) -> VMI:
    try:
        return msgspec.json.decode(request.vmi, type=VMI)
    except msgspec.MsgspecError as error:
        raise Failure(f"the VMI cannot be read: {error}") from None


def _dotted(version: int) -> str:
    return f"{version // 1_000_000}.{version // 1_000 % 1_000}.{version % 1_000}"


def _ask_to_shut_down(of: Descriptor, domain: libvirt.virDomain) -> None:
    state, reason = domain.state()
    if state == libvirt.VIR_DOMAIN_PAUSED and reason == libvirt.VIR_DOMAIN_PAUSED_USER:
        domain.resume()  # a guest whose CPUs stand still cannot shut down
    try:
        in_a_known_way(domain.shutdownFlags, _WAYS_DOWN)
    except libvirt.libvirtError:
        # libvirt hears only once which process is a container's first, and may miss it: then it never knows.
        if not of.container or not host.end_container():
            raise
