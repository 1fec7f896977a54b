"""A node's own API for tests: the real server with its certificates, real launcher sockets, and a pretended guest.

The guest's sockets behave as a hypervisor's do: they serve one client at a time, and the next one waits.
"""

from __future__ import annotations

import argparse
import asyncio
import errno
import os
import shutil
import socket
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import aiohttp
import orjson
from handler_launcher import FakeLauncher
from kube_fixtures import eventually

from virtfleet.api.subresources import PROTOCOL
from virtfleet.handler.access.api import CONSOLE, VNC, Access
from virtfleet.handler.access.vsock import Vsock
from virtfleet.handler.pods.files import VOLUMES
from virtfleet.handler.pods.launchers import Launcher, Presence
from virtfleet.handler.vms.instances import Instance, decode_instance
from virtfleet.handler.vms.records import VmRecord
from virtfleet.kube import certificates, component
from virtfleet.kube.authority import Authority, Lifespan, Profile
from virtfleet.kube.certificates import Credential
from virtfleet.launcher.failure import Failure
from virtfleet.protocol import messages as m

LIFE = Lifespan(timedelta(hours=2), timedelta(hours=1))
GATEWAY = "kubevirt:virt-api"
UID = "vmi-uid"  # short: names of sockets must be
CID = 42


class TalkativeLauncher(FakeLauncher):
    """Does whatever can be asked of a VM, and remembers it."""

    def _handlers(self) -> dict[type[m.Message], object]:
        def doing(request: type[m.Message], status: m.Status | None = None) -> object:
            async def do(asked: m.Message) -> m.Done:
                if self.refusal:
                    raise Failure(self.refusal)
                self.asked.append(repr(asked))
                if status:
                    self.becomes(status)
                return m.Done()

            return do

        async def screenshot(_: m.Screenshot) -> m.Picture:
            return m.Picture(png=b"\x89PNG...")

        return {
            **super()._handlers(),
            m.Pause: doing(m.Pause, m.Status.PAUSED),
            m.Unpause: doing(m.Unpause, m.Status.RUNNING),
            **{kind: doing(kind) for kind in (m.SoftReboot, m.Reset, m.Freeze, m.Unfreeze)},
            m.Screenshot: screenshot,
        }


class GuestSocket:
    """A serial port or a screen: what is typed is echoed, one client after the other."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._listener = socket.socket(socket.AF_UNIX)
        self.served = 0
        self.reads = asyncio.Event()
        """Cleared, the guest does not look at what is typed."""
        self.reads.set()
        self.client: asyncio.StreamWriter | None = None
        self._serving: asyncio.Task[None] | None = None

    async def __aenter__(self) -> GuestSocket:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._listener.bind(str(self._path))
        self._listener.listen()
        self._listener.setblocking(False)
        self._serving = asyncio.create_task(self._serve())
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._serving is not None
        self._serving.cancel()
        await asyncio.gather(self._serving, return_exceptions=True)
        self._listener.close()
        self._path.unlink()

    async def _serve(self) -> None:
        while True:
            connection, _ = await asyncio.get_running_loop().sock_accept(self._listener)
            reader, writer = await asyncio.open_connection(sock=connection)
            self.client, self.served = writer, self.served + 1
            try:
                while await self.reads.wait() and (data := await reader.read(4096)):
                    writer.write(data)
                    await writer.drain()
            except OSError:
                pass
            finally:
                self.client = None
                writer.transport.abort()


@dataclass
class Node:
    """The running server, and what stands behind it."""

    port: int
    access: Access
    authority: Authority
    launcher: TalkativeLauncher
    private: Path
    instance: Instance
    vms: list[Any] = field(default_factory=list)
    unready: str = ""
    events: list[str] = field(default_factory=list)
    to_guests: Credential | None = None

    def port_of_guest(self, port: int) -> Path:
        return self.private.parent / f"vsock-{port}"

    @property
    def console(self) -> Path:
        return self.private / UID / CONSOLE.name

    @property
    def vnc(self) -> Path:
        return self.private / UID / VNC.name

    def credential(self, name: str = GATEWAY) -> Credential:
        return self.authority.issue(Profile(name, LIFE, client=True))

    def url(self, subresource: str, vmi: str = "vm") -> str:
        return f"https://127.0.0.1:{self.port}/v1/namespaces/default/virtualmachineinstances/{vmi}/{subresource}"

    @asynccontextmanager
    async def session(self, client: Credential | None) -> AsyncIterator[aiohttp.ClientSession]:
        context = certificates.client_context(self.authority.bundle, client)
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=context, force_close=True)) as session:
            yield session

    async def ask(
        self, method: str, subresource: str, body: bytes = b"", *, vmi: str = "vm", client: str | None = GATEWAY
    ) -> tuple[int, Any]:
        """The answer's code and body."""
        credential = self.credential(client) if client else None
        async with (
            self.session(credential) as session,
            session.request(method, self.url(subresource, vmi), data=body) as answer,
        ):
            content = await answer.read()
            return answer.status, orjson.loads(content) if answer.content_type == "application/json" else content

    @asynccontextmanager
    async def attached(self, subresource: str = "console") -> AsyncIterator[aiohttp.ClientWebSocketResponse]:
        async with (
            self.session(self.credential()) as session,
            session.ws_connect(self.url(subresource), protocols=(PROTOCOL,)) as websocket,
        ):
            assert websocket.protocol == PROTOCOL
            yield websocket


@asynccontextmanager
async def node() -> AsyncIterator[Node]:
    """A node on which VMI default/vm runs."""
    place = Path(tempfile.mkdtemp(prefix="vfa"))
    authority = Authority.create("installation", LIFE)
    own = Profile("kubevirt:virt-handler", LIFE, hosts=("127.0.0.1",), client=True)
    certificates.write(place / "certificates", authority.issue(own).files())
    pod = place / "pods/pod-vm"
    launcher = TalkativeLauncher(pod, vmi=UID)
    launcher.becomes(m.Status.RUNNING, agent=True)
    following = Launcher(pod, lambda _: None, vmi=UID)
    instance = decode_instance(orjson.dumps({"metadata": {"name": "vm", "namespace": "default", "uid": UID}}))
    instance.vmi.status.vsock_cid = CID

    async def dial(cid: int, port: int) -> socket.socket:
        """Stands in for the kernel's vsock: a guest's port is a unix socket."""
        assert cid == CID
        connection = socket.socket(socket.AF_UNIX)
        connection.setblocking(False)
        try:
            await asyncio.get_running_loop().sock_connect(connection, str(made.port_of_guest(port)))
        except FileNotFoundError:
            connection.close()
            raise ConnectionResetError(errno.ECONNRESET, os.strerror(errno.ECONNRESET)) from None
        return connection

    record = VmRecord(namespace="default", name="vm", uid=UID, pod="pod-vm")
    vms = [SimpleNamespace(record=record, launcher=following)]
    here = SimpleNamespace(running=lambda key: (instance, vms[0]) if vms and key == "default/vm" else None)
    events: list[str] = []
    recorder = SimpleNamespace(
        normal=lambda _, reason, text: events.append(reason), warning=lambda _, reason, text: events.append(reason)
    )
    guests = Vsock(lambda: made.to_guests, dial)
    access = Access(here, recorder, place / "pods", guests, caller=GATEWAY, unready=lambda: made.unready)  # type: ignore[arg-type]
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    made = Node(port, access, authority, launcher, pod / VOLUMES / "private", instance, vms, events=events)
    options = argparse.Namespace(certificates=place / "certificates", host="127.0.0.1", port=port)
    await launcher.start()
    serving = asyncio.create_task(component.serve(options, access.routes(), clients=component.own_authority))
    try:
        await eventually(lambda: following.presence is Presence.HERE and following.state)
        await _answers(port)
        yield made
    finally:
        access.close()
        serving.cancel()
        await asyncio.gather(serving, return_exceptions=True)
        await following.close()
        await launcher.end()
        shutil.rmtree(place)


async def _answers(port: int) -> None:
    async with asyncio.timeout(20):
        while True:
            try:
                _, writer = await asyncio.open_connection("127.0.0.1", port)
            except OSError:
                await asyncio.sleep(0.01)
            else:
                writer.close()
                return
