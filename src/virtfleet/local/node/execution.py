"""A command in a container over a websocket, in the protocol that kubectl exec speaks (v4 and v5.channel.k8s.io).

Every message begins with the number of its channel. v5 adds a way to say that the sender's side of a channel is at its
end, so that `kubectl exec -i` may close its standard input and still read the answer.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import pty
import select
import signal
import struct
import termios
import tty
from collections.abc import AsyncIterator, Coroutine
from dataclasses import dataclass
from typing import Annotated, Any

import msgspec
import orjson
from aiohttp import WSMsgType, web

from virtfleet.kube.errors import ApiError
from virtfleet.kube.resource import Obj
from virtfleet.local.node.containers import Container
from virtfleet.local.node.runtime import Runtime, end_exec
from virtfleet.work.tasks import held

STDIN, STDOUT, STDERR, ERROR, RESIZE, CLOSE = 0, 1, 2, 3, 4, 255
PROTOCOLS = ("v5.channel.k8s.io", "v4.channel.k8s.io")
PING_PERIOD = 20.0
_CHUNK = 1 << 15


@dataclass(slots=True)
class _Terminal:
    """Where a command's input and output go on this side: a pseudo-terminal, or pipes."""

    process: asyncio.subprocess.Process
    master: int | None = None

    async def write(self, data: bytes) -> None:
        if self.master is not None:
            await asyncio.to_thread(os.write, self.master, data)
        elif self.process.stdin is not None:
            self.process.stdin.write(data)
            with contextlib.suppress(ConnectionError):
                await self.process.stdin.drain()

    def end_input(self) -> None:
        if self.master is None and self.process.stdin is not None:
            self.process.stdin.close()

    def resize(self, size: Size) -> None:
        if self.master is not None:
            fcntl.ioctl(self.master, termios.TIOCSWINSZ, struct.pack("HHHH", size.height, size.width, 0, 0))
            with contextlib.suppress(ProcessLookupError):
                self.process.send_signal(signal.SIGWINCH)  # runc passes the size on


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
    terminal = await _open(runtime, run, command, wanted)
    readers = [held(reader, "output of a command") for reader in _outputs(socket, terminal)]
    incoming = held(_incoming(socket, terminal), "input of a command")
    finished = held(terminal.process.wait(), "command")
    try:
        # The client may go first; then the command goes too.
        await asyncio.wait([incoming, finished], return_when=asyncio.FIRST_COMPLETED)
        if finished.done():
            await asyncio.gather(*readers, return_exceptions=True)
            await socket.send_bytes(bytes([ERROR]) + orjson.dumps(outcome(finished.result())))
    finally:
        if terminal.process.returncode is None:
            end_exec(terminal.process)
        await finished
        for task in (incoming, *readers):
            task.cancel()
        if terminal.master is not None:
            os.close(terminal.master)
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


async def _open(runtime: Runtime, run: Container, command: list[str], wanted: dict[str, bool]) -> _Terminal:
    if wanted["tty"]:
        master, slave = pty.openpty()
        tty.setraw(slave)  # echo and line editing are the container's terminal's business
        try:
            process = await runtime.exec(run, command, tty=True, stdin=slave, stdout=slave, stderr=slave)
        finally:
            os.close(slave)
        return _Terminal(process, master)
    pipe, null = asyncio.subprocess.PIPE, asyncio.subprocess.DEVNULL
    streams: dict[str, Any] = {name: pipe if wanted[name] else null for name in ("stdin", "stdout", "stderr")}
    return _Terminal(await runtime.exec(run, command, **streams))


def _outputs(socket: web.WebSocketResponse, terminal: _Terminal) -> list[Coroutine[None, None, None]]:
    if terminal.master is not None:
        return [_terminal_output(socket, terminal.master)]
    pipes = ((terminal.process.stdout, STDOUT), (terminal.process.stderr, STDERR))
    return [_pipe_output(socket, pipe, channel) for pipe, channel in pipes if pipe is not None]


async def _pipe_output(socket: web.WebSocketResponse, pipe: asyncio.StreamReader, channel: int) -> None:
    while data := await pipe.read(_CHUNK):
        await socket.send_bytes(bytes([channel]) + data)


async def _terminal_output(socket: web.WebSocketResponse, master: int) -> None:
    loop, ready = asyncio.get_running_loop(), asyncio.Event()
    loop.add_reader(master, ready.set)
    try:
        while True:
            await ready.wait()
            ready.clear()
            if not select.select([master], [], [], 0)[0]:  # read by the turn before
                continue
            try:
                data = os.read(master, _CHUNK)
            except OSError:  # the other side of a terminal that is closed reads as an input/output error
                return
            await socket.send_bytes(bytes([STDOUT]) + data)
    finally:
        loop.remove_reader(master)


async def _incoming(socket: web.WebSocketResponse, terminal: _Terminal) -> None:
    """Until the client is gone."""
    async for what in incoming(socket):
        if isinstance(what, Size):
            terminal.resize(what)
        elif what:
            await terminal.write(what)
        else:
            terminal.end_input()


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
