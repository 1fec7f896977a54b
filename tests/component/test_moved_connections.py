"""Connections of a guest that moves between two nodes, with real kernels, bridges and translation, and no hypervisor.

The guest is a network namespace with a server in it. Its interface is pulled out of one launcher Pod and plugged into
the next one, as a migration does; its sockets know nothing of that.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator

import msgspec
import pytest
from node_cluster import NodeCluster, needs_root, node_cluster
from test_node_succession import address, announce, mark, namer

from virtfleet.handler.network.plan import InterfaceRequest, Link
from virtfleet.handler.network.setup import Order
from virtfleet.kube.resource import Obj
from virtfleet.work.commands import run

pytestmark = [needs_root, pytest.mark.slow]

PORT = 7000
MOVES = 3
ECHO = f"""
import socket, threading
def serve(connection):
    while data := connection.recv(4096):
        connection.sendall(data)
server = socket.create_server(("", {PORT}))
while True:
    threading.Thread(target=serve, args=server.accept()[:1], daemon=True).start()
"""
CALL = """
import socket, sys
connection = socket.create_connection((sys.argv[1], int(sys.argv[2])), timeout=20)
connection.settimeout(None)
while data := connection.recv(4096):
    connection.sendall(data)
"""


class Guest:
    """A guest, and the Pod that it is plugged into."""

    def __init__(self, cluster: NodeCluster, *, masquerade: bool) -> None:
        self._cluster = cluster
        self._nic = InterfaceRequest(
            name="default",
            link="eth0",
            masquerade=masquerade,
            mac="",
            ports=[("tcp", PORT, PORT)] if masquerade else [],
        )
        self._processes = [subprocess.Popen(["unshare", "--net", "sleep", "infinity"])]
        self._namespace = f"/proc/{self._processes[0].pid}/ns/net"
        self.pod = ""

    async def inside(self, *command: str) -> None:
        await run("nsenter", f"--net={self._namespace}", *command)

    def start(self, script: str, *arguments: str) -> None:
        command = ["nsenter", f"--net={self._namespace}", sys.executable, "-c", script, *arguments]
        self._processes.append(subprocess.Popen(command))

    async def plug(self, pod: Obj, node: str) -> None:
        """Leave the Pod that it is in, and run in this one."""
        space = str(self._cluster.layout(node).sandboxes / pod["metadata"]["uid"] / "ns" / "net")
        order = Order([self._nic], str(self._cluster.directory / f"{pod['metadata']['uid']}.json"))
        helper = (sys.executable, "-m", "virtfleet.handler.network.setup")
        told = await run("nsenter", f"--net={space}", *helper, feed=msgspec.json.encode(order))
        mac = msgspec.json.decode(told, type=dict[str, Link])["eth0"].mac
        if self.pod:
            await run("nsenter", f"--net={self.pod}", "ip", "link", "delete", "port")
        own = ("10.0.2.2/24", "10.0.2.1") if self._nic.masquerade else (f"{address(pod)}/32", self._gateway)
        peer = f"peer name eth0 address {'02:00:00:00:00:07' if self._nic.masquerade else mac}"
        plug = f"link add port type veth {peer} netns {self._processes[0].pid}\nlink set port master k6t-eth0 up"
        await run("nsenter", f"--net={space}", "ip", "-batch", "-", feed=plug)
        for command in (
            "link set eth0 up",
            f"addr add {own[0]} dev eth0",
            f"route add default via {own[1]} dev eth0 onlink",
        ):
            await self.inside("ip", *command.split())
        self.pod = space

    @property
    def _gateway(self) -> str:
        return str(self._cluster.network.gateway)

    async def is_announced(self) -> None:
        """By its launcher, or by itself where it has the Pod's address."""
        await announce(self.pod if self._nic.masquerade else self._namespace)

    def close(self) -> None:
        for process in reversed(self._processes):
            process.kill()
            process.wait()


class Stream:
    """A connection over which everything comes back."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self._sent = 0

    async def goes_on(self) -> None:
        self._sent += 1
        self._writer.write(b"%d\n" % self._sent)
        async with asyncio.timeout(60):
            assert await self._reader.readline() == b"%d\n" % self._sent

    def close(self) -> None:
        self._writer.close()


@pytest.fixture
async def cluster() -> AsyncIterator[NodeCluster]:
    async with node_cluster() as made:
        await made.start("n1", 1)
        await made.start("n2", 2)
        yield made


@pytest.mark.parametrize("masquerade", [True, False], ids=["masquerade", "bridge"])
async def test_connections_go_along(cluster: NodeCluster, masquerade: bool) -> None:
    guest, streams = Guest(cluster, masquerade=masquerade), []
    called: asyncio.Queue[Stream] = asyncio.Queue()
    gateway = str(cluster.network.gateway)
    server = await asyncio.start_server(lambda r, w: called.put_nowait(Stream(r, w)), gateway, 0)
    try:
        pod = await namer(cluster, "pod0", "n1", vmi="u")
        here = address(pod)
        await guest.plug(pod, "n1")
        guest.start(ECHO)

        async def connected() -> Stream | None:
            try:
                return Stream(*await asyncio.open_connection(here, PORT))
            except OSError:
                return None

        streams.append(await cluster.eventually(connected))
        guest.start(CALL, gateway, str(server.sockets[0].getsockname()[1]))
        streams.append(await called.get())  # from a port of the guest's that nobody is let in to
        for move in range(1, MOVES + 1):
            node = ("n1", "n2")[move % 2]
            pod = await namer(cluster, f"pod{move}", node, vmi="u", target=True)
            for stream in streams:
                await stream.goes_on()
            left = guest.pod
            await guest.plug(pod, node)
            await guest.is_announced()
            # The Pod that it left has a kernel that may still have something to say, and has the way turned back with
            # that, until it is taken off the bridge.
            await announce(left)
            await mark(cluster, f"pod{move}")
            for stream in streams:
                await stream.goes_on()
            await cluster.delete(f"pod{move - 1}")
            for stream in streams:
                await stream.goes_on()
        late = await cluster.eventually(connected)
        await late.goes_on()
        late.close()
    finally:
        for stream in streams:
            stream.close()
        server.close()
        guest.close()
