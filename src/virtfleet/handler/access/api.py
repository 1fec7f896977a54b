"""The node's own API, through which virt-api reaches the VMs that run here: consoles, screens, and what can be asked.

virt-api has checked what the user may do; so nobody else may call. Every answer that is not a success is a Status
object, which virt-api passes on as it is.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import orjson
from aiohttp import web

from virtfleet.api import times
from virtfleet.api.subresources import PROTOCOL
from virtfleet.domain import paths
from virtfleet.handler.access import stream as access_stream
from virtfleet.handler.access import vsock
from virtfleet.handler.access.answers import COMMANDS, GUEST_ANSWERS, NO_AGENT, TRUE, Command, check, check_agent
from virtfleet.handler.access.seats import End, Seats
from virtfleet.handler.access.vsock import Unreached, Vsock
from virtfleet.handler.pods import files as podfiles
from virtfleet.handler.pods.launchers import Launcher, Unresponsive
from virtfleet.handler.vms.instances import Instance
from virtfleet.handler.vms.reconcile import NodeVms
from virtfleet.kube import peers
from virtfleet.kube.errors import ApiError
from virtfleet.kube.events import Recorder
from virtfleet.kube.resource import VMIS, Obj
from virtfleet.protocol.client import Refused
from virtfleet.protocol.messages import Freeze, GetGuestInfo, GuestInfo, Screenshot

logger = logging.getLogger(__name__)

ROOT = f"/v1/namespaces/{{namespace}}/{VMIS.plural}/{{name}}"
_PICTURES = 2  # at once: each may be as long as nothing else that a launcher says
_TAKEN_OVER = b"\r\n\r\nAnother user has connected to this console; this connection ends.\r\n"


@dataclass(frozen=True, slots=True)
class Socket:
    """A socket that the hypervisor serves beside the VM."""

    name: str
    missing: str
    last_words: bytes = b""
    """What a client that has to leave reads on its screen."""


CONSOLE = Socket("virt-serial0", "No serial consoles are present.", _TAKEN_OVER)
VNC = Socket("virt-vnc", "No graphics devices are present.")
USB = [
    Socket(paths.usb_redirection(number), "Not configured with USB Redirection")
    for number in range(paths.USB_REDIRECTIONS)
]


@dataclass(frozen=True, slots=True)
class RunningVm:
    """A VM of this node."""

    instance: Instance
    launcher: Launcher
    pod: Path
    """The directory of its Pod."""

    @property
    def name(self) -> str:
        return self.instance.vmi.metadata.name

    def __str__(self) -> str:
        return f"{self.instance.vmi.metadata.namespace}/{self.name}"


Action = Callable[[web.Request, RunningVm], Awaitable[web.StreamResponse]]


@dataclass
class Access:
    """Serves `routes` to the one client whose certificate has the name `caller`."""

    _vms: NodeVms
    _recorder: Recorder
    _pods: Path
    _guests: Vsock
    caller: str
    unready: Callable[[], str]
    _seats: Seats = field(default_factory=Seats, init=False)
    _pictures: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(_PICTURES), init=False)

    def routes(self) -> list[web.RouteDef]:
        return [
            web.get(f"{ROOT}/console", self._answering(lambda request, vm: self._stream(request, vm, CONSOLE))),
            web.get(f"{ROOT}/vnc", self._answering(self._vnc)),
            web.get(f"{ROOT}/usbredir", self._answering(self._usb)),
            web.get(f"{ROOT}/vsock", self._answering(self._vsock)),
            web.get(f"{ROOT}/vnc/screenshot", self._answering(self._screenshot)),
            web.put(f"{ROOT}/freeze", self._answering(self._freeze)),
            *(web.put(f"{ROOT}/{name}", self._answering(self._doing(command))) for name, command in COMMANDS.items()),
            *(web.get(f"{ROOT}/{name}", self._answering(self._telling(form))) for name, form in GUEST_ANSWERS.items()),
        ]

    def close(self) -> None:
        """End all sessions; their clients are told."""
        self._seats.clear(End.STOPPING)

    def _answering(self, action: Action) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
        async def answer(request: web.Request) -> web.StreamResponse:
            try:
                self._admit(request)
                return await action(request, self._vm(request))
            except Refused as error:
                problem = ApiError("InternalError", str(error))
            except Unresponsive as error:
                problem = ApiError("ServiceUnavailable", str(error))
            except ApiError as error:
                problem = error
            logger.info("%s %s: %s", request.method, request.path, problem.message)
            return _json(problem.status(), problem.code)

        return answer

    def _admit(self, request: web.Request) -> None:
        peer = peers.verified(request)
        if peer is None or peer.name != self.caller:
            who = peer.name if peer else "nobody"
            logger.warning("%s %s by %s from %s is refused", request.method, request.path, who, request.remote)
            if peer is None:
                raise ApiError("Unauthorized", f"a client certificate of {self.caller} is needed")
            raise ApiError("Forbidden", f"{who} may not call this server; {self.caller} may")
        if why := self.unready():
            raise ApiError("ServiceUnavailable", why)

    def _vm(self, request: web.Request) -> RunningVm:
        key = f"{request.match_info['namespace']}/{request.match_info['name']}"
        if here := self._vms.running(key):
            instance, vm = here
            return RunningVm(instance, vm.launcher, self._pods / vm.record.pod)
        raise ApiError("NotFound", f"VMI {key} does not run on this node", details={"kind": VMIS.plural})

    # What is asked of it.

    def _doing(self, command: Command) -> Action:
        async def do(_: web.Request, vm: RunningVm) -> web.Response:
            check(vm.name, vm.launcher.state, command.obstacles)
            if command.by_agent:
                check_agent(vm.launcher.state, command.by_agent)
            await vm.launcher.call(command.request)
            if command.event:
                self._recorder.normal(vm.instance.reference, *command.event)
            return web.Response(status=202)

        return do

    async def _freeze(self, request: web.Request, vm: RunningVm) -> web.Response:
        timeout = _unfreeze_timeout(await request.read())
        check(vm.name, vm.launcher.state)
        check_agent(vm.launcher.state, "Freeze")
        try:
            await vm.launcher.call(Freeze(timeout_seconds=timeout))
        except Refused as error:
            self._recorder.warning(vm.instance.reference, "FreezeError", f"Failed to freeze VMI: {error}")
            raise ApiError("BadRequest", str(error)) from None
        return web.Response(status=202)

    def _telling(self, form: Callable[[GuestInfo], Obj]) -> Action:
        async def tell(_: web.Request, vm: RunningVm) -> web.Response:
            check(vm.name, vm.launcher.state, (NO_AGENT,))
            return _json(form(await vm.launcher.call(GetGuestInfo())))

        return tell

    async def _screenshot(self, _: web.Request, vm: RunningVm) -> web.Response:
        check(vm.name, vm.launcher.state)
        async with self._pictures:
            picture = await vm.launcher.call(Screenshot())
        return web.Response(body=picture.png, content_type="image/png")

    # Consoles and screens.

    async def _vnc(self, request: web.Request, vm: RunningVm) -> web.StreamResponse:
        preserve = request.query.get("preserveSession", "") in TRUE
        if preserve and self._seats.taken((vm.instance.uid, VNC)):
            raise ApiError("ServiceUnavailable", "Active VNC connection. Request denied.")
        return await self._stream(request, vm, VNC)

    async def _usb(self, request: web.Request, vm: RunningVm) -> web.StreamResponse:
        """The first that is free: nobody's device is unplugged for another one."""
        for socket in USB:
            if not self._seats.taken((vm.instance.uid, socket)):
                return await self._stream(request, vm, socket)
        # The first words are those of KubeVirt's clients, which know no other reason.
        why = f"websocket: bad handshake: all {len(USB)} USB redirections are in use; end one first"
        raise ApiError("ServiceUnavailable", why)

    async def _vsock(self, request: web.Request, vm: RunningVm) -> web.StreamResponse:
        """Many at once, as a guest's server may have them. A client that is let in hears by the end why it is over."""
        port, tls = vsock.asked(request.query)
        check(vm.name, vm.launcher.state)
        cid = vm.instance.vmi.status.vsock_cid
        if cid is None:
            raise ApiError("BadRequest", "VM doesn't have VSOCK enabled")
        context, client = self._guests.context() if tls else None, _websocket(request)
        keys = ((vm.instance.uid, "vsock", number) for number in range(vsock.MOST))
        key = next((key for key in keys if not self._seats.taken(key)), None)
        if key is None:
            raise ApiError("ServiceUnavailable", f"{vsock.MOST} connections to vsock ports are open; end one first")
        async with self._seats.take(key) as seat:
            await client.prepare(request)
            logger.info("%s: somebody connects to vsock port %d", vm, port)
            try:
                reader, writer = await self._guests.connect(cid, port, context)
            except Unreached as why:
                end = why.end
            else:
                try:
                    end = await access_stream.relay(client, reader, writer, seat)
                finally:
                    writer.transport.abort()
        logger.info("%s: a connection to vsock port %d ends: %s", vm, port, end.value)
        with suppress(ConnectionError):
            await access_stream.farewell(request, client, end)
        return client

    async def _stream(self, request: web.Request, vm: RunningVm, socket: Socket) -> web.StreamResponse:
        check(vm.name, vm.launcher.state)
        client = _websocket(request)
        async with self._seats.take((vm.instance.uid, socket)) as seat:
            reader, writer = await _connect(vm, socket)
            try:
                await client.prepare(request)
                logger.info("%s: somebody connects to %s", vm, socket.name)
                end = await access_stream.relay(client, reader, writer, seat)
            finally:
                writer.transport.abort()  # what a guest does not read must not keep its socket from the next client
        # By now the next one has its turn, however long this client takes to hear of it.
        logger.info("%s: a connection to %s ends: %s", vm, socket.name, end.value)
        words = socket.last_words if end is End.TAKEN else b""
        with suppress(ConnectionError):
            await access_stream.farewell(request, client, end, words)
        return client


def _json(document: Obj, status: int = 200) -> web.Response:
    return web.Response(status=status, body=orjson.dumps(document), content_type="application/json")


def _websocket(request: web.Request) -> web.WebSocketResponse:
    # Screens are compressed by themselves; keystrokes gain nothing by it.
    client = web.WebSocketResponse(protocols=(PROTOCOL,), compress=False, timeout=access_stream.FAREWELL)
    if not client.can_prepare(request):
        raise ApiError("BadRequest", f"{request.path} is a websocket")
    return client


async def _connect(vm: RunningVm, socket: Socket) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    try:
        connection = podfiles.connect(vm.pod, "private", vm.instance.uid, socket.name)
        return await asyncio.open_unix_connection(sock=connection)
    except FileNotFoundError:
        raise ApiError("BadRequest", socket.missing) from None
    except OSError as error:
        raise ApiError("InternalError", f"{socket.name} of {vm} cannot be reached: {error}") from None


def _unfreeze_timeout(body: bytes) -> int:
    try:
        seconds = times.duration(orjson.loads(body)["unfreezeTimeout"])
    except (ValueError, KeyError, TypeError):
        seconds = None
    if seconds is None:
        raise ApiError("BadRequest", 'Unfreeze timeout in freeze request is not set: {"unfreezeTimeout": "5m0s"}')
    return int(seconds)
