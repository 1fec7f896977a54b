"""The channels socket: packets with connections, and what a launcher that is not itself might send instead."""

from __future__ import annotations

import array
import asyncio
import os
import socket
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from virtfleet.protocol.channels import LONGEST, LONGEST_ERROR, Channel, Line, Packet
from virtfleet.protocol.wire import WireError


@pytest.fixture
def ends() -> Iterator[tuple[Line, socket.socket]]:
    """A line, and the other end of its socket as it is."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    line = Line(ours)
    yield line, theirs
    line.close()
    theirs.close()


def send_raw(end: socket.socket, data: bytes, descriptors: list[int]) -> None:
    end.sendmsg([data], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))])


def is_open(number: int) -> bool:
    with suppress(OSError):
        os.fstat(number)
        return True
    return False


async def eventually_closed(end: socket.socket) -> None:
    """The other end of a stream is told when the last descriptor of it is closed."""
    end.setblocking(False)
    async with asyncio.timeout(5):
        assert await asyncio.get_running_loop().sock_recv(end, 1) == b""


async def test_a_connection_goes_along_with_its_channel() -> None:
    with ExitStack() as stack:
        first, second = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        handler, launcher = Line(first), Line(second)
        near, far = (stack.enter_context(end) for end in socket.socketpair())
        await handler.send(Packet(dial=Channel.MEMORY))
        assert await launcher.receive() == (Packet(dial=Channel.MEMORY), None)
        await launcher.send(Packet(channel=Channel.MEMORY), far)
        far.close()
        answer = await handler.receive()
        assert answer is not None
        packet, connection = answer
        assert packet == Packet(channel=Channel.MEMORY)
        assert connection is not None
        stack.enter_context(connection)
        assert not connection.get_inheritable()
        near.sendall(b"guest")
        assert connection.recv(16) == b"guest"
        launcher.close()
        assert await handler.receive() is None
        handler.close()


async def test_all_channels_are_served_by_one_packet(ends: tuple[Line, socket.socket]) -> None:
    line, other = ends
    await line.send(Packet(serve=list(Channel)))
    assert other.recv(LONGEST) == b'{"serve":["libvirt","memory","disks"]}'


async def test_an_error_is_cut_to_what_fits(ends: tuple[Line, socket.socket]) -> None:
    line, other = ends
    for words in ("no such socket" * 100, "\n" * 300, "ü" * 300):
        await line.send(Packet(channel=Channel.DISKS, error=words))
        data = other.recv(4096)
        assert len(data) <= LONGEST
        other.send(data)
        answer = await line.receive()
        assert answer is not None
        assert words.startswith(answer[0].error)
        assert 100 <= len(answer[0].error) <= LONGEST_ERROR


@pytest.mark.parametrize(
    "data",
    [
        b"{",
        b"[]",
        b'{"dial": "console"}',
        b'{"serve": ["disks", "disks", "disks", "disks"]}',
        b"[" * 200,
        b'{"channel": "disks", "error": "' + b"x" * 200 + b'"}',
        b"{}" + b" " * LONGEST,
    ],
)
async def test_what_is_not_a_packet_is_an_error(ends: tuple[Line, socket.socket], data: bytes) -> None:
    line, other = ends
    other.send(data)
    with pytest.raises(WireError):
        await line.receive()


def _unfit(stack: ExitStack) -> Iterator[tuple[str, int]]:
    with tempfile.TemporaryFile() as file:
        yield "a file", file.fileno()
    read, write = os.pipe()
    stack.callback(os.close, read)
    stack.callback(os.close, write)
    yield "a pipe", write
    yield "a directory", stack.enter_context(_directory("/"))
    yield "TCP", stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_STREAM)).fileno()
    yield "datagrams", stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)).fileno()
    yield "packets", stack.enter_context(socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)[0]).fileno()
    yield "netlink", stack.enter_context(socket.socket(socket.AF_NETLINK, socket.SOCK_RAW)).fileno()
    yield "not connected", stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)).fileno()
    listening = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
    place = Path(stack.enter_context(tempfile.TemporaryDirectory())) / "s"
    listening.bind(str(place))
    listening.listen()
    yield "listening", listening.fileno()


class _directory:
    def __init__(self, path: str) -> None:
        self._fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)

    def __enter__(self) -> int:
        return self._fd

    def __exit__(self, *_: object) -> None:
        os.close(self._fd)


async def test_only_a_connected_unix_stream_is_taken(ends: tuple[Line, socket.socket]) -> None:
    line, other = ends
    with ExitStack() as stack:
        for what, descriptor in _unfit(stack):
            send_raw(other, b'{"channel":"memory"}', [descriptor])
            with pytest.raises(WireError, match="descriptor"):
                assert await line.receive(), what


async def test_descriptors_that_are_too_many_are_closed(ends: tuple[Line, socket.socket]) -> None:
    line, other = ends
    near, far = socket.socketpair()
    with near:
        send_raw(other, b'{"channel":"memory"}', [far.fileno()] * 253)
        far.close()
        with pytest.raises(WireError, match="253 descriptors"):
            await line.receive()
        await eventually_closed(near)


async def test_the_descriptor_of_a_bad_packet_is_closed(ends: tuple[Line, socket.socket]) -> None:
    line, other = ends
    near, far = socket.socketpair()
    with near:
        send_raw(other, b"?", [far.fileno()])
        far.close()
        with pytest.raises(WireError):
            await line.receive()
        await eventually_closed(near)


async def test_descriptors_that_were_never_read_are_closed_with_the_line(ends: tuple[Line, socket.socket]) -> None:
    line, other = ends
    near, far = socket.socketpair()
    with near:
        send_raw(other, b'{"channel":"memory"}', [far.fileno()])
        far.close()
        line.close()
        await eventually_closed(near)


async def test_waiting_for_a_packet_waits_and_can_be_given_up(ends: tuple[Line, socket.socket]) -> None:
    line, other = ends
    waiting = asyncio.create_task(line.receive())
    await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    waiting = asyncio.create_task(line.receive())
    other.send(b'{"channel":"disks","error":"there are none"}')
    assert await waiting == (Packet(channel=Channel.DISKS, error="there are none"), None)


async def test_a_line_that_closes_ends_a_wait() -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    line = Line(ours)
    with theirs:
        line.close()
        with pytest.raises(OSError):
            await line.receive()
    assert not is_open(ours.fileno())
