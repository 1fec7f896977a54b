"""A launcher's channels socket, which passes connections that only exist in the test."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path

from virtfleet.handler.pods.files import VOLUMES
from virtfleet.protocol.channels import Channel, Line, Packet


class LauncherChannels:
    """A launcher's channels socket: what it dials is one end of a pair, of which the test has the other."""

    def __init__(self, pod: Path) -> None:
        path = pod / VOLUMES / "sockets/channels-sock"
        path.parent.mkdir(parents=True, exist_ok=True)
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK)
        self._listener.bind(str(path))
        self._listener.listen()
        self.ends: list[tuple[Channel, socket.socket]] = []
        self.served: list[Line] = []
        self.refusal = ""
        self._task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        while True:
            connection, _ = await asyncio.get_running_loop().sock_accept(self._listener)
            line = Line(connection)
            packet, _none = await line.receive() or (Packet(), None)
            if packet.serve:
                self.served.append(line)
            elif packet.dial and self.refusal:
                await line.send(Packet(channel=packet.dial, error=self.refusal))
            elif packet.dial:
                self.ends.append((packet.dial, await passed(line, packet.dial)))

    async def close(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        self._listener.close()
        for _, end in self.ends:
            end.close()
        for line in self.served:
            line.close()


async def passed(line: Line, channel: Channel) -> socket.socket:
    """One end of a new pair goes to the handler; the answer is the other."""
    mine, theirs = socket.socketpair()
    await line.send(Packet(channel=channel), theirs)
    theirs.close()
    return mine
