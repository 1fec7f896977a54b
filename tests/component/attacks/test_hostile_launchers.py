"""Launchers that guests have taken over, against a live handler: whatever they send, it serves the other VMs.

Each is a process of its own, so that only what it costs the handler is measured. The handler's cost is the CPU time of
its event loop, which no other load on the machine changes.
"""

from __future__ import annotations

import asyncio
import gc
import random
import resource
import socket
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from component.handler_kit import api_server, handler, scheduled
from component.handler_launcher import SOCKET, launcher
from component.kube_fixtures import eventually
from component.pod_member import PodMember
from virtfleet.handler.pods.launchers import Presence
from virtfleet.kube.resource import VMIS
from virtfleet.protocol import messages as m
from virtfleet.protocol import wire
from virtfleet.protocol.client import Client, LauncherGone, Refused

STALL = 0.5  # seconds of the event loop's own time that no launcher may take at once
GROWTH = 96 << 20  # bytes of memory that a dozen of them may cost for a while


def framed(body: bytes) -> bytes:
    return len(body).to_bytes(4, "big") + body


def answer(number: int, body: bytes, *, more: bool = True) -> bytes:
    return framed(msgspec.msgpack.encode(wire.Answer(number, msgspec.Raw(body), more=more)))


REQUESTS = [request.__name__ for request in (*m.Request.__subclasses__(), m.Prepare)]
HELLO = framed(msgspec.msgpack.encode(m.Hello(requests=REQUESTS)))
ABSENT, RUNNING = (
    msgspec.msgpack.encode(m.Update(state=m.DomainState(status=status, agent=True)))
    for status in (m.Status.ABSENT, m.Status.RUNNING)
)
BOMB = b"\x81\xaainterfaces\xdd" + (500_000).to_bytes(4, "big") + b"\x80" * 500_000


# --- what they send


def flood(chance: random.Random) -> Iterator[bytes]:
    """Updates as fast as the socket takes them."""
    piece = b"".join(answer(1, chance.choice((ABSENT, RUNNING))) for _ in range(2000))
    while True:
        yield piece


def oversized(chance: random.Random) -> Iterator[bytes]:
    yield (16 << 20).to_bytes(4, "big")
    while True:
        yield b"\x80" * (1 << 20)


def bombs(chance: random.Random) -> Iterator[bytes]:
    """The longest frames that are taken, full of the smallest things, as answers to whatever may be asked."""
    yield answer(1, RUNNING)
    while True:
        yield answer(chance.randrange(1, 8), BOMB)


def deep(chance: random.Random) -> Iterator[bytes]:
    yield framed(b"\x82\xa2id\x01\xa4body" + b"\x91" * 500_000)


def drip(chance: random.Random) -> Iterator[bytes]:
    for byte in answer(1, RUNNING) * 100:
        time.sleep(0.02)
        yield bytes([byte])


def early_close(chance: random.Random) -> Iterator[bytes]:
    yield answer(1, RUNNING)[: chance.randrange(40)]


def mutated(chance: random.Random) -> Iterator[bytes]:
    """Good messages in which a few bytes are others."""
    while True:
        data = bytearray(answer(chance.randrange(1, 8), chance.choice((ABSENT, RUNNING))))
        for _ in range(chance.randrange(3)):
            data[chance.randrange(4, len(data))] = chance.randrange(256)
        yield bytes(data)


def noise(chance: random.Random) -> Iterator[bytes]:
    while True:
        yield framed(chance.randbytes(chance.randrange(300)))


def mute(chance: random.Random) -> Iterator[bytes]:
    time.sleep(60)
    yield b""


KINDS = (flood, oversized, bombs, deep, drip, early_close, mutated, noise, mute)


def serve(path: Path, kind: Callable[[random.Random], Iterator[bytes]], seed: int) -> None:
    """Answer everybody who connects in the same bad way, and never listen."""
    chance = random.Random(seed)
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(path))
    listener.listen(1)
    listener.settimeout(120)
    while True:
        connection, _ = listener.accept()
        with connection, suppress(OSError):
            connection.sendall(HELLO if chance.random() < 0.9 else HELLO[:9])
            for data in kind(chance):
                connection.sendall(data)


class Hostile(PodMember):
    """One of them: a process of its own Pod."""

    def __init__(self, pod: Path, kind: Callable[[random.Random], Iterator[bytes]], seed: int) -> None:
        self._serve = lambda: serve(pod / SOCKET, kind, seed)
        (pod / SOCKET).parent.mkdir(parents=True)
        super().__init__(pod.name)

    def work(self) -> None:
        self._serve()


# --- the handler meanwhile


class Strain:
    """The most CPU time that the event loop took at once, and how much the memory grew."""

    def __init__(self) -> None:
        self.stall = 0.0
        self._before = _resident()
        self.growth = 0

    async def watch(self) -> None:
        while True:
            began = time.thread_time()
            await asyncio.sleep(0.005)
            self.stall = max(self.stall, time.thread_time() - began)
            self.growth = max(self.growth, _resident() - self._before)


def _resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


@asynccontextmanager
async def strained() -> AsyncIterator[Strain]:
    found = Strain()
    watching = asyncio.create_task(found.watch())
    try:
        yield found
    finally:
        watching.cancel()


@pytest.mark.slow
async def test_a_handler_full_of_hostile_launchers_serves_the_one_that_is_not(place: Path) -> None:
    async with api_server(place) as api:
        for number in range(len(KINDS)):
            await scheduled(api, place, f"bad{number}")
        hostile = [Hostile(place / f"pods/pod-bad{n}", kind, seed=n) for n, kind in enumerate(KINDS)]
        gc.collect()  # the test's own rubbish is nobody else's fault
        async with handler(api, place) as vms, strained() as strain:
            try:
                await scheduled(api, place, "good")
                async with launcher(place / "pods/pod-good") as real:
                    await eventually(lambda: real.synced, 20)
                    for status in (m.Status.PAUSED, m.Status.RUNNING) * 5:
                        real.becomes(status, "User")
                        await told(api, status)
                states = {vm.record.name: vm.launcher for vm in vms.vms()}
                good = states.pop("good")
                await eventually(lambda: good.presence is Presence.GONE)
                assert not any(bad._following.done() for bad in states.values()), "one is no longer followed"
            finally:
                for process in hostile:
                    process.end()
            await eventually(lambda: all(bad.presence is Presence.GONE for bad in states.values()), 30)
    assert strain.stall < STALL
    assert strain.growth < GROWTH


async def told(api: Any, status: m.Status) -> None:
    """Wait until the good VMI says that it is paused, or that it is not."""
    async with asyncio.timeout(20):
        while True:
            found = (await api.get(VMIS, "good", "default"))["status"]
            paused = any(condition["type"] == "Paused" for condition in found.get("conditions") or ())
            if found["phase"] == "Running" and paused is (status is m.Status.PAUSED):
                return
            await asyncio.sleep(0.01)


# --- one connection, whatever comes out of it

FRAMES = st.one_of(
    st.binary(max_size=64).map(framed),
    st.binary(max_size=16),
    st.builds(answer, st.integers(0, 4), st.binary(max_size=32), more=st.booleans()),
    st.builds(answer, st.integers(1, 3), st.sampled_from((ABSENT, RUNNING, BOMB))),
    st.integers(0, (1 << 32) - 1).map(lambda length: length.to_bytes(4, "big")),
    st.just(framed(b"\x91" * 5000)),
)


@settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(FRAMES, max_size=6))
def test_whatever_comes_from_a_launcher_a_request_ends_in_one_of_its_own_ways(frames: list[bytes]) -> None:
    async def ask() -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            theirs.setblocking(False)
            sending = asyncio.create_task(send(theirs, HELLO + b"".join(frames)))
            client = await Client.connect(ours)
            try:
                for request in (m.GetState(), m.GetGuestInfo(), m.Screenshot()):
                    with suppress(LauncherGone, Refused, wire.WireError):
                        await client.call(request)
                with suppress(LauncherGone, Refused, wire.WireError):
                    async for update in client.watch():
                        assert isinstance(update, m.Update)
            finally:
                await client.close()
                await asyncio.gather(sending, return_exceptions=True)

    async def send(connection: socket.socket, data: bytes) -> None:
        await asyncio.get_running_loop().sock_sendall(connection, data)
        connection.shutdown(socket.SHUT_WR)

    async def bounded() -> None:
        async with asyncio.timeout(20):
            await ask()

    asyncio.run(bounded())


async def test_a_launcher_that_floods_is_not_read_from_any_faster(place: Path) -> None:
    """What it wants to say stays with itself: little is taken off its socket, however much it sends."""
    ours, theirs = socket.socketpair()
    with theirs:
        theirs.setblocking(False)
        theirs.send(HELLO)
        client, sent = await Client.connect(ours), 0
        heard = asyncio.create_task(_count(client))
        piece = answer(1, RUNNING) * 1000
        with suppress(TimeoutError, ConnectionError):
            async with asyncio.timeout(1.0):
                while True:
                    await asyncio.get_running_loop().sock_sendall(theirs, piece)
                    sent += 1000
        await client.close()
        assert 512 <= await heard < 512 + 16 * 10
        assert sent < 100_000


async def _count(client: Client) -> int:
    heard = 0
    async for _ in client.watch():
        heard += 1
    return heard
