"""Ports of pods, by the real kubectl, and clients that mean no good."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

import aiohttp
import pytest
from node_cluster import NodeCluster, needs_root, node_cluster

from virtfleet.local import directory
from virtfleet.local.node import execution, portforward, spdy

pytestmark = [needs_root, pytest.mark.slow]

# Servers that only the pod's own 127.0.0.1 leads to: one says what it got when the client has said all, in capitals;
# one never reads, and one says a lot.
SERVERS = """
import socketserver, threading, time
class Echo(socketserver.StreamRequestHandler):
    def handle(self):
        self.wfile.write(self.rfile.read().upper())
class Deaf(socketserver.BaseRequestHandler):
    def handle(self):
        threading.Event().wait()
class Loud(socketserver.BaseRequestHandler):
    def handle(self):
        self.request.sendall(bytes(3_000_000))
socketserver.TCPServer.request_queue_size = 64  # all that a test opens at once, however slowly they are accepted
for port, handler in ((8080, Echo), (8081, Deaf), (8082, Loud)):
    server = socketserver.ThreadingTCPServer(('127.0.0.1', port), handler)
    threading.Thread(target=server.serve_forever).start()
print('serving', flush=True)
"""


@pytest.fixture
async def cluster() -> AsyncIterator[NodeCluster]:
    async with node_cluster() as made:
        await made.serve()
        await made.start()
        container = {"command": ["/usr/bin/python3", "-c", SERVERS]}
        await made.run("p", "", container=container)
        await made.until("p", lambda _: "serving" in made.log("p"))
        yield made


@asynccontextmanager
async def forwarding(cluster: NodeCluster, *ports: str) -> AsyncIterator[tuple[Any, list[int]]]:
    """kubectl port-forward, and the ports that it has chosen here."""
    process = await cluster.kubectl("port-forward", "--address=127.0.0.1", "pod/p", *ports)
    try:
        lines = [(await asyncio.wait_for(process.stdout.readline(), 30)).decode() for _ in ports]
        yield process, [int(line.split()[2].rpartition(":")[2]) for line in lines]
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def talk(port: int, said: bytes) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(said)
    writer.write_eof()
    try:
        return await asyncio.wait_for(reader.read(), 30)
    finally:
        writer.close()


async def test_kubectl_reaches_what_listens_inside_the_pod_only(cluster: NodeCluster) -> None:
    async with forwarding(cluster, ":8080", ":8082") as (process, (echo, loud)):
        assert await talk(echo, b"hello") == b"HELLO"
        big = b"x" * 5_000_000
        both = await asyncio.gather(talk(echo, big), talk(loud, b""), *(talk(echo, b"%d" % n) for n in range(20)))
        assert both[0] == big.upper() and both[1] == bytes(3_000_000)
        if both[2:] != [b"%d" % n for n in range(20)]:  # side by side, none for another
            process.kill()
            raise AssertionError((both[2:], await process.stderr.read()))
    await cluster.eventually(connections_are(cluster, 0))


async def test_a_port_where_nobody_listens_is_told(cluster: NodeCluster) -> None:
    async with forwarding(cluster, ":81") as (process, (port,)):
        with suppress(ConnectionResetError):  # kubectl may not have read what it is sent
            assert await talk(port, b"x") == b""
        said = (await asyncio.wait_for(process.stderr.read(), 30)).decode()
    assert "error forwarding port 81 to pod p, uid " in said
    assert "dial tcp 127.0.0.1:81: connect: connection refused" in said


async def test_a_client_that_goes_while_the_pod_does_not_read_leaves_nothing(
    cluster: NodeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(execution, "PING_PERIOD", 0.2)
    async with forwarding(cluster, ":8081") as (_, (port,)):
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(bytes(50_000_000))  # more than lies anywhere on the way
        await cluster.eventually(connections_are(cluster, 1))
    await cluster.eventually(connections_are(cluster, 0))
    writer.transport.abort()


def connections_are(cluster: NodeCluster, count: int) -> Callable[[], Awaitable[bool]]:
    async def so() -> bool:
        process = await cluster.kubectl("exec", "p", "--", "cat", "/proc/net/tcp")
        lines = (await asyncio.wait_for(process.stdout.read(), 30)).decode().splitlines()
        await process.wait()
        there = [line.split() for line in lines[1:]]
        # Of the servers' side: an address of theirs, and established.
        return sum(f[1].rpartition(":")[2] in ("1F90", "1F91", "1F92") and f[3] == "01" for f in there) == count

    return so


@asynccontextmanager
async def tunnel(cluster: NodeCluster, protocol: str = portforward.TUNNEL) -> AsyncIterator[Any]:
    settings = directory.load(cluster.directory)
    assert settings is not None
    url = f"http://127.0.0.1:{settings.port}/api/v1/namespaces/default/pods/p/portforward"
    async with aiohttp.ClientSession() as session, session.ws_connect(url, protocols=[protocol]) as socket:
        yield socket


class Spdy:
    """A client that says what it likes."""

    def __init__(self, socket: Any) -> None:
        self.socket, self.encoder, self.decoder = socket, spdy.Encoder(), spdy.Decoder()

    async def open(self, stream: int, kind: str, request: str, port: str = "8080") -> None:
        headers = {"streamtype": kind, "port": port, "requestid": request}
        await self.socket.send_bytes(self.encoder.opening(spdy.SYN_STREAM, stream, headers))

    async def answer(self) -> spdy.Frame:
        while not (frames := list(self.decoder.feed(await asyncio.wait_for(self.socket.receive_bytes(), 20)))):
            pass
        return frames[0]


async def test_streams_that_are_not_a_connections_are_refused_alone(cluster: NodeCluster) -> None:
    async with tunnel(cluster) as socket:
        client = Spdy(socket)
        bad = [("other", "1", "80"), ("data", "", "80"), ("data", "1", "0"), ("data", "1", "65536"), ("data", "1", "²")]
        for number, (kind, request, port) in enumerate(bad):
            await client.open(2 * number + 1, kind, request, port)
            answer = await client.answer()
            assert (answer.kind, answer.number) == (spdy.RST_STREAM, 2 * number + 1)
        await client.open(101, "error", "a")
        assert (await client.answer()).kind == spdy.SYN_REPLY
        await client.open(103, "error", "a")
        assert (await client.answer()).kind == spdy.RST_STREAM
        await client.open(105, "data", "a")
        assert (await client.answer()).kind == spdy.SYN_REPLY
        await socket.send_bytes(spdy.data(999, b"nobody's") + spdy.reset(77, 5) + spdy.ping(3))
        assert await client.answer() == spdy.Frame(spdy.PING, 3)
        await socket.send_bytes(spdy.data(105, b"still here", fin=True))
        assert await client.answer() == spdy.Frame(spdy.DATA, 105, data=b"STILL HERE")


async def test_no_client_has_more_connections_than_its_share(cluster: NodeCluster) -> None:
    async with tunnel(cluster) as socket:
        client = Spdy(socket)
        for number in range(portforward.MOST_CONNECTIONS):
            await client.open(2 * number + 1, "error", str(number))
            assert (await client.answer()).kind == spdy.SYN_REPLY
        await client.open(10_001, "error", "more")
        assert await client.answer() == spdy.Frame(spdy.RST_STREAM, 10_001)


@pytest.mark.parametrize("sent", [b"\xff" * 100, spdy.data(0, b"x"), spdy.Encoder().opening(spdy.SYN_STREAM, 2, {})])
async def test_a_client_that_breaks_the_protocol_is_sent_away(cluster: NodeCluster, sent: bytes) -> None:
    async with tunnel(cluster) as socket:
        await socket.send_bytes(sent)
        assert (await Spdy(socket).answer()).kind == spdy.GOAWAY
        assert (await asyncio.wait_for(socket.receive(), 20)).type is aiohttp.WSMsgType.CLOSE
    await cluster.eventually(connections_are(cluster, 0))


async def test_plain_channels_are_refused_with_what_is_spoken_instead(cluster: NodeCluster) -> None:
    with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
        async with tunnel(cluster, "v4.channel.k8s.io"):
            pass
    assert refused.value.status == 400
