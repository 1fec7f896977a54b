"""Consoles, screens and forwarded ports: what goes through, how they end, what is refused before they begin."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import WSMsgType

from component.access_plane import until
from component.gateway.gateway_kit import NAMESPACE, Kit
from virtfleet.api.subresources import PROTOCOL
from virtfleet.gateway import handlers
from virtfleet.kube.resource import PODS

CONSOLE = "virtualmachineinstances/vm/console"


async def test_a_console_reaches_the_handler_of_the_vmis_node(kit: Kit) -> None:
    await kit.add_handler("node02", "127.0.0.3")
    await kit.vmi("here")
    await kit.vmi("there", status={"nodeName": "node02"})
    for name, node in (("here", "node01"), ("there", "node02")):
        async with kit.stream(f"virtualmachineinstances/{name}/console") as stream:
            assert stream.protocol == PROTOCOL
            await stream.send_bytes(b"uname\n")
            assert (await stream.receive()).data == b"UNAME\n"
        [seen] = kit.handlers[node].seen
        assert seen.path == f"/v1/namespaces/default/virtualmachineinstances/{name}/console"
        assert seen.caller == "kubevirt:virt-api"


async def test_handlers_learn_nothing_of_users_and_their_credentials(kit: Kit) -> None:
    await kit.vmi()
    token = await kit.user("operator", "edit")
    async with kit.stream(CONSOLE, token):
        pass
    [seen] = kit.handler.seen
    assert not [name for name in seen.headers if name.lower().startswith(("x-remote", "authorization", "cookie"))]


async def test_a_stream_that_ends_on_one_side_ends_on_the_other(kit: Kit) -> None:
    await kit.vmi()
    async with kit.stream(CONSOLE) as stream:
        await until(lambda: kit.handler.open)
    await until(lambda: not kit.handler.open)
    async with kit.stream(CONSOLE) as stream:
        await stream.send_bytes(b"bye")
        last = await stream.receive()
        assert (last.type, last.extra) == (WSMsgType.CLOSE, "the guest is gone")


@pytest.mark.slow
async def test_bytes_wait_where_nobody_reads(kit: Kit) -> None:
    """A guest that writes without end is stopped by a client that does not read, and loses nothing."""
    await kit.vmi()
    sent, most = 0, 64 << 20

    async def flood(stream: aiohttp.web.WebSocketResponse) -> None:
        nonlocal sent
        while sent < most:
            await stream.send_bytes(b"x" * 65536)
            sent += 65536

    kit.handler.on_open = flood
    async with kit.stream(CONSOLE) as stream:
        stalled, before = 0, -1
        async with asyncio.timeout(60):
            while stalled < 20:  # a look at a counter that stands still has no event
                await asyncio.sleep(0.05)
                stalled, before = (stalled + 1, sent) if sent == before else (0, sent)
        assert sent < most / 2
        received = 0
        while received < sent:
            received += len((await stream.receive()).data)


async def test_vnc_passes_on_what_the_query_says(kit: Kit) -> None:
    await kit.vmi()
    async with kit.stream("virtualmachineinstances/vm/vnc?preserveSession=true") as stream:
        await stream.send_bytes(b"rfb")
        assert (await stream.receive()).data == b"RFB"
    assert kit.handler.seen[0].query == "preserveSession=true"


async def test_a_screenshot_is_a_picture(kit: Kit) -> None:
    await kit.vmi()
    session = await kit.server.session(kit.server.pki.admin)
    path = "/apis/subresources.kubevirt.io/v1/namespaces/default/virtualmachineinstances/vm/vnc/screenshot"
    async with session.get(path, params={"moveCursor": "false"}) as answer:
        assert (answer.status, answer.content_type) == (200, "image/png")
        assert await answer.read() == b"\x89PNG"


async def refused(kit: Kit, path: str) -> int:
    with pytest.raises(aiohttp.WSServerHandshakeError) as refusal:
        async with kit.stream(path):
            pass
    return refusal.value.status


async def test_streams_need_something_to_connect_to(kit: Kit, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handlers, "_HANDOVER", 0.2)
    await kit.vmi("waits", phase="Scheduled")
    await kit.vmi("failed", phase="Failed")
    await kit.vmi("bare", devices={"autoattachSerialConsole": False, "autoattachGraphicsDevice": False})
    await kit.vmi("lost", status={"nodeName": "node09"})
    expected = {
        "virtualmachineinstances/none/console": 404,
        "virtualmachineinstances/waits/console": 400,
        "virtualmachineinstances/failed/console": 409,
        "virtualmachineinstances/bare/console": 400,
        "virtualmachineinstances/lost/console": 503,
        "virtualmachineinstances/none/vnc": 404,
        "virtualmachineinstances/waits/vnc": 400,
        "virtualmachineinstances/bare/vnc": 400,
        "virtualmachines/none/portforward/22/tcp": 404,
    }
    assert {path: await refused(kit, path) for path in expected} == expected
    assert kit.handler.seen == []


async def test_who_has_no_console_is_told_in_the_words_that_clients_compare(kit: Kit) -> None:
    await kit.vmi("bare", devices={"autoattachSerialConsole": False, "autoattachGraphicsDevice": False})
    session = await kit.server.session(kit.server.pki.admin)
    upgrade = {
        "Connection": "Upgrade",
        "Upgrade": "websocket",
        "Sec-WebSocket-Version": "13",
        "Sec-WebSocket-Key": "a" * 24,
    }
    expected = {"console": "No serial consoles are present.", "vnc": "No graphics devices are present."}
    for stream, message in expected.items():
        path = f"/apis/subresources.kubevirt.io/v1/namespaces/default/virtualmachineinstances/bare/{stream}"
        async with session.get(path, headers=upgrade) as answer:
            assert (answer.status, (await answer.json())["message"]) == (400, message)


async def test_a_stream_is_no_page(kit: Kit) -> None:
    await kit.vmi()
    answer = await kit.of_vmi("console", method="GET")
    assert answer.status == 400
    assert "websocket" in answer.body["message"]


async def test_a_handler_that_has_started_is_asked_also_when_it_does_not_reach_the_api_server(
    kit: Kit, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(handlers, "_HANDOVER", 0.2)
    await kit.add_handler("node02", "127.0.0.3", ready=False)
    await kit.vmi(status={"nodeName": "node02"})
    assert (await kit.of_vmi("pause", {})).status == 202
    assert len(kit.handlers["node02"].seen) == 1


async def test_a_handler_that_has_not_started_is_not_asked(kit: Kit, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handlers, "_HANDOVER", 0.2)
    await kit.add_handler("node02", "127.0.0.3", ready=False, started=False)
    await kit.vmi(status={"nodeName": "node02"})
    answer = await kit.of_vmi("pause", {})
    assert answer.status == 503
    assert "no virt-handler is ready on node node02" in answer.body["message"]
    assert kit.handlers["node02"].seen == []


async def test_a_handler_that_is_being_replaced_is_waited_for(kit: Kit) -> None:
    await kit.add_handler("node02", "127.0.0.3", ready=False)
    await kit.vmi(status={"nodeName": "node02"})
    asked = asyncio.create_task(kit.of_vmi("pause", {}))
    await until(lambda: len(kit.made[0]._news._waiters) == 1)
    ready = {"status": {"conditions": [{"type": "Ready", "status": "True"}]}}
    await kit.server.api.patch(PODS, "virt-handler-node02", ready, NAMESPACE, subresource="status")
    assert (await asked).status == 202
    assert kit.handlers["node02"].seen != []


# --- ports


@asynccontextmanager
async def tcp_server(
    serve: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]],
) -> AsyncIterator[int]:
    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield server.sockets[0].getsockname()[1]


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(ConnectionError):
        while data := await reader.read(1 << 16):
            if data == b"bye":
                break
            writer.write(data.upper())
            await writer.drain()
    writer.close()


async def test_a_tcp_port_of_the_guest_is_reached_by_vm_and_by_vmi(kit: Kit) -> None:
    vm = await kit.vm(status={"created": True})
    owner = {"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine", "name": "vm", "uid": vm["metadata"]["uid"]}
    await kit.guest(metadata={"ownerReferences": [owner]})
    async with tcp_server(echo) as port:
        for path in (f"virtualmachines/vm/portforward/{port}/tcp", f"virtualmachineinstances/vm/portforward/{port}"):
            async with kit.stream(path) as stream:
                assert stream.protocol == PROTOCOL
                await stream.send_bytes(b"ssh")
                assert (await stream.receive()).data == b"SSH"
                await stream.send_bytes(b"bye")
                assert (await stream.receive()).type == WSMsgType.CLOSE


async def test_a_connection_in_the_guest_ends_with_its_client(kit: Kit) -> None:
    await kit.guest()
    ended = asyncio.Event()

    async def wait(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError):
            await reader.read()
        ended.set()
        writer.close()

    async with tcp_server(wait) as port:
        async with kit.stream(f"virtualmachineinstances/vm/portforward/{port}/tcp"):
            pass
        async with asyncio.timeout(30):
            await ended.wait()


async def test_many_bytes_pass_through_a_port_unchanged(kit: Kit) -> None:
    await kit.guest()
    content = random.Random(8).randbytes(8 << 20)

    async def give(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(content)
        with suppress(ConnectionError):
            await writer.drain()
        writer.close()

    received = bytearray()
    async with tcp_server(give) as port, kit.stream(f"virtualmachineinstances/vm/portforward/{port}/tcp") as stream:
        async for message in stream:
            received += message.data
    assert received == content


class Datagrams(asyncio.DatagramProtocol):
    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def datagram_received(self, data: bytes, sender: tuple[str, int]) -> None:
        self.transport.sendto(data.upper(), sender)


async def test_udp_datagrams_are_messages(kit: Kit) -> None:
    await kit.guest()
    loop = asyncio.get_running_loop()
    transport, _ = await loop.create_datagram_endpoint(Datagrams, local_addr=("127.0.0.1", 0))
    port = transport.get_extra_info("sockname")[1]
    async with kit.stream(f"virtualmachineinstances/vm/portforward/{port}/udp") as stream:
        for question in (b"a", b"b" * 1400):
            await stream.send_bytes(question)
            assert (await stream.receive()).data == question.upper()
    transport.close()


async def test_ports_that_cannot_be_forwarded_are_refused(kit: Kit) -> None:
    async with tcp_server(echo) as closed:
        pass
    await kit.guest()
    await kit.vmi("new")
    await kit.guest("paused", conditions=["Paused"])
    await kit.vm("stopped")
    expected = {
        f"virtualmachineinstances/vm/portforward/{closed}/tcp": 500,
        "virtualmachineinstances/vm/portforward/0/tcp": 400,
        "virtualmachineinstances/vm/portforward/65536/tcp": 400,
        "virtualmachineinstances/vm/portforward/ssh/tcp": 400,
        "virtualmachineinstances/vm/portforward/22/sctp": 400,
        "virtualmachineinstances/new/portforward/22/tcp": 400,
        "virtualmachineinstances/paused/portforward/22/tcp": 409,
        "virtualmachines/stopped/portforward/22/tcp": 409,
    }
    assert {path: await refused(kit, path) for path in expected} == expected


# --- no leaks


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


@pytest.mark.slow
async def test_random_connects_and_disconnects_leave_nothing_behind(kit: Kit) -> None:
    await kit.guest()
    chance = random.Random(2)

    async def session(port: int) -> None:
        path = chance.choice(
            (CONSOLE, "virtualmachineinstances/vm/vnc", f"virtualmachineinstances/vm/portforward/{port}")
        )
        async with kit.stream(path) as stream:
            for _ in range(chance.randrange(3)):
                await stream.send_bytes(b"abc")
                assert (await stream.receive()).data == b"ABC"
            if chance.random() < 0.3:
                await stream.send_bytes(b"bye")
                assert (await stream.receive()).type == WSMsgType.CLOSE
            elif chance.random() < 0.5:  # cut off without a word
                assert stream._response.connection is not None
                stream._response.connection.transport.abort()

    async def settled() -> tuple[int, int]:
        """Tasks and descriptors once they no longer change."""
        last, same = (0, 0), 0
        async with asyncio.timeout(60):
            while same < 20:
                await asyncio.sleep(0.05)
                now = (len(asyncio.all_tasks()), descriptors())
                last, same = now, same + 1 if now == last else 0
        return last

    async with tcp_server(echo) as port:
        counts = []
        for rounds in (2, 5):
            for _ in range(rounds):
                await asyncio.gather(*(session(port) for _ in range(20)))
            counts.append(await settled())
    assert kit.handler.open == 0
    # What is kept for the next request differs by a few from time to time; 100 sessions would differ by more.
    [(tasks, files), (more_tasks, more_files)] = counts
    assert more_tasks <= tasks + 20
    assert more_files <= files + 40
