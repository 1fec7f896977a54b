"""kubectl exec and attach over a websocket, in the protocol that they speak (v4 and v5.channel.k8s.io).

Every message begins with the number of its channel. v5 adds a way to say that the sender's side of a channel is at its
end, so that `kubectl exec -i` may close its standard input and still read the answer.

Who attaches gets what the container says from then on. conmon has a socket for this. It waits for whoever is there to
read, and the container waits with it: a client that does not keep up is let go, not waited for.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import pty
import signal
import socket as sockets
import struct
import termios
import tty
from asyncio.subprocess import Process
from collections.abc import AsyncIterator, Coroutine
from pathlib import Path
from typing import IO, Annotated, Any

import msgspec
import orjson
from aiohttp import WSMsgType, web

from virtfleet.kube.errors import ApiError
from virtfleet.kube.resource import Obj
from virtfleet.local.node.containers import Container
from virtfleet.local.node.runtime import Runtime, end_exec
from virtfleet.work.sockets import ready
from virtfleet.work.tasks import first_of, held

STDIN, STDOUT, STDERR, ERROR, RESIZE, CLOSE = 0, 1, 2, 3, 4, 255
PROTOCOLS = ("v5.channel.k8s.io", "v4.channel.k8s.io")
PING_PERIOD = 20.0
_CHUNK = 1 << 15
_AHEAD = 128  # packets of at most 8 KiB that a client may be behind
_PACKET, _LARGEST = 1 << 13, 1 << 16  # bytes of one that we send to conmon, and of one that we take
_LAST_WORD = 60.0  # seconds in which the client may read why it was let go
_CHANNELS = {2: STDOUT, 3: STDERR}  # by conmon's numbers, of which each packet has one in front


async def opened(request: web.Request) -> tuple[web.WebSocketResponse, dict[str, bool]]:
    """The client's websocket, and which streams it asks for."""
    wanted = {name: request.query.get(name) in ("true", "1") for name in ("stdin", "stdout", "stderr", "tty")}
    socket = web.WebSocketResponse(protocols=PROTOCOLS)
    if not socket.can_prepare(request).protocol:
        raise ApiError("BadRequest", f"this needs a websocket with one of {', '.join(PROTOCOLS)}; SPDY is not spoken")
    await socket.prepare(request)
    # Tells the client that the streams are there, as the API server does.
    await socket.send_bytes(bytes([STDOUT if wanted["stdout"] else ERROR]))
    return socket, wanted


async def pinging(socket: web.WebSocketResponse) -> None:
    """Until the client is found to be gone, which nothing else may notice while nothing is read of it."""
    while True:
        await asyncio.sleep(PING_PERIOD)
        await socket.ping()


async def execute(request: web.Request, runtime: Runtime, run: Container) -> web.StreamResponse:
    command = request.query.getall("command", [])
    if not command:
        raise ApiError("BadRequest", "you must specify at least 1 command for the container")
    socket, wanted = await opened(request)
    process, terminal = await _begun(runtime, run, command, wanted)
    readers = [held(reader, "output of a command") for reader in _outputs(socket, process, terminal)]
    incoming = held(_incoming(socket, process, terminal), "input of a command")
    finished = held(process.wait(), "command")
    try:
        # The client may go first; then the command goes too.
        await asyncio.wait([incoming, finished], return_when=asyncio.FIRST_COMPLETED)
        if finished.done():
            await asyncio.gather(*readers, return_exceptions=True)
            await socket.send_bytes(bytes([ERROR]) + orjson.dumps(outcome(finished.result())))
    finally:
        if process.returncode is None:
            end_exec(process)
        await finished
        for task in (incoming, *readers):
            task.cancel()
        if terminal is not None:
            terminal.close()
        await socket.close()
    return socket


def outcome(code: int) -> Obj:
    """What goes over the error channel at the end."""
    if code == 0:
        return {"metadata": {}, "status": "Success"}
    return {
        "metadata": {},
        "status": "Failure",
        "message": f"command terminated with non-zero exit code: exit status {code}",
        "reason": "NonZeroExitCode",
        "details": {"causes": [{"reason": "ExitCode", "message": str(code)}]},
    }


async def _begun(
    runtime: Runtime, run: Container, command: list[str], wanted: dict[str, bool]
) -> tuple[Process, IO[bytes] | None]:
    """The command, with pipes or with the terminal whose side that is ours comes with it."""
    if wanted["tty"]:
        master, slave = pty.openpty()
        tty.setraw(slave)  # echo and line editing are the container's terminal's business
        try:
            process = await runtime.exec(run, command, tty=True, stdin=slave, stdout=slave, stderr=slave)
        finally:
            os.close(slave)
        return process, os.fdopen(master, "r+b", buffering=0)
    pipe, null = asyncio.subprocess.PIPE, asyncio.subprocess.DEVNULL
    streams: dict[str, Any] = {name: pipe if wanted[name] else null for name in ("stdin", "stdout", "stderr")}
    return await runtime.exec(run, command, **streams), None


def _outputs(
    socket: web.WebSocketResponse, process: Process, terminal: IO[bytes] | None
) -> list[Coroutine[None, None, None]]:
    if terminal is not None:
        return [_terminal_output(socket, terminal)]
    pipes = ((process.stdout, STDOUT), (process.stderr, STDERR))
    return [_pipe_output(socket, pipe, channel) for pipe, channel in pipes if pipe is not None]


async def _pipe_output(socket: web.WebSocketResponse, pipe: asyncio.StreamReader, channel: int) -> None:
    while data := await pipe.read(_CHUNK):
        await socket.send_bytes(bytes([channel]) + data)


async def _terminal_output(socket: web.WebSocketResponse, terminal: IO[bytes]) -> None:
    while True:
        await ready(terminal, writable=False)
        try:
            data = os.read(terminal.fileno(), _CHUNK)
        except OSError:  # the other side of a terminal that is closed reads as an input/output error
            return
        await socket.send_bytes(bytes([STDOUT]) + data)


async def _incoming(socket: web.WebSocketResponse, process: Process, terminal: IO[bytes] | None) -> None:
    """Until the client is gone."""
    async for what in incoming(socket):
        if isinstance(what, Size):
            if terminal is not None:
                fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", what.height, what.width, 0, 0))
                with contextlib.suppress(ProcessLookupError):
                    process.send_signal(signal.SIGWINCH)  # runc passes the size on
        elif terminal is not None:
            await asyncio.to_thread(terminal.write, what)
        elif process.stdin is not None and what:
            process.stdin.write(what)
            with contextlib.suppress(ConnectionError):
                await process.stdin.drain()
        elif process.stdin is not None:
            process.stdin.close()


class Size(msgspec.Struct, rename="pascal"):
    """Of the client's terminal."""

    width: Annotated[int, msgspec.Meta(ge=0, le=65535)]
    height: Annotated[int, msgspec.Meta(ge=0, le=65535)]


async def incoming(socket: web.WebSocketResponse) -> AsyncIterator[bytes | Size]:
    """Input, of which nothing at all is the end, and new sizes of the terminal. What makes no sense is left out."""
    async for message in socket:
        if message.type is not WSMsgType.BINARY or not message.data:
            continue
        channel, data = message.data[0], message.data[1:]
        if channel == STDIN and data:
            yield data
        elif channel == RESIZE:
            with contextlib.suppress(msgspec.DecodeError):
                yield msgspec.json.decode(data, type=Size)
        elif channel == CLOSE and data[:1] == bytes([STDIN]):
            yield b""


class _Behind(Exception):
    """The client does not read as fast as the container speaks."""


async def attach(request: web.Request, home: Path, *, stdin: bool) -> web.StreamResponse:
    """`home` is where conmon has the container's sockets; `stdin` says whether the container has an input."""
    socket, wanted = await opened(request)
    link, why = sockets.socket(sockets.AF_UNIX, sockets.SOCK_SEQPACKET), ""
    try:
        await _connect(link, home)
        channels = [channel for channel, name in ((STDOUT, "stdout"), (STDERR, "stderr")) if wanted[name]]
        await first_of(
            _conmon_output(socket, link, channels),
            _conmon_input(socket, link, home, stdin=stdin and wanted["stdin"]),
            pinging(socket),
        )
    except _Behind:
        why = "the client did not read fast enough"
    except OSError as error:
        why = f"the container cannot be attached to: {error}"
    finally:
        link.close()
    with contextlib.suppress(OSError):
        async with asyncio.timeout(_LAST_WORD):
            end = {"metadata": {}, "status": "Failure", "message": why} if why else outcome(0)
            await socket.send_bytes(bytes([ERROR]) + orjson.dumps(end))
    await socket.close()
    return socket


async def _connect(link: sockets.socket, home: Path) -> None:
    link.setblocking(False)
    directory = os.open(home, os.O_PATH)  # its path may be too long for a socket's
    try:
        await asyncio.get_running_loop().sock_connect(link, f"/proc/self/fd/{directory}/attach")
    finally:
        os.close(directory)


async def _conmon_output(socket: web.WebSocketResponse, link: sockets.socket, channels: list[int]) -> None:
    """Until the container has ended."""
    waiting: asyncio.Queue[bytes] = asyncio.Queue(_AHEAD)

    async def read() -> None:
        packet = b"..."
        while packet:
            packet = await asyncio.get_running_loop().sock_recv(link, _LARGEST)
            try:
                waiting.put_nowait(packet)
            except asyncio.QueueFull:
                raise _Behind from None
        await waiting.join()

    async def send() -> None:
        while packet := await waiting.get():
            channel = _CHANNELS.get(packet[0])
            if channel in channels:
                await socket.send_bytes(bytes([channel]) + packet[1:])
            waiting.task_done()
        waiting.task_done()

    await first_of(read(), send())


async def _conmon_input(socket: web.WebSocketResponse, link: sockets.socket, home: Path, *, stdin: bool) -> None:
    """Until the client is gone."""
    async for what in incoming(socket):
        if isinstance(what, Size):
            _resize(home, what)
        elif stdin and what:
            for start in range(0, len(what), _PACKET):
                await asyncio.get_running_loop().sock_sendall(link, what[start : start + _PACKET])
        elif stdin:
            link.shutdown(sockets.SHUT_WR)


def _resize(home: Path, size: Size) -> None:
    with contextlib.suppress(OSError):  # it has no terminal, or has ended
        control = os.open(home / "ctl", os.O_WRONLY | os.O_NONBLOCK)
        try:
            os.write(control, f"1 {size.height} {size.width}\n".encode())
        finally:
            os.close(control)
