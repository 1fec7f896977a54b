"""Connections to the launchers on this node: one each, kept open, and what is known of the domain behind it.

A launcher lives as long as its VM and is never started again, so a socket that refuses connections, or that went away
after it was there, is the launcher's end. How its domain ended it says on the connection, and leaves in a file that the
kubelet keeps for as long as the Pod exists.
"""

from __future__ import annotations

import asyncio
import enum
import logging
import posixpath
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from virtfleet.handler.pods import files as podfiles
from virtfleet.handler.pods.process import PodProcess
from virtfleet.protocol import wire
from virtfleet.protocol.client import Client, LauncherGone, Refused
from virtfleet.protocol.messages import COMMAND_SOCKET, DomainState, Event, Message, MigrationReport, Request
from virtfleet.protocol.wire import WireError
from virtfleet.work import sockets, tasks
from virtfleet.work.pacing import Backoff

logger = logging.getLogger(__name__)

A = TypeVar("A", bound=Message)

_VOLUME, _SOCKET = "sockets", posixpath.basename(COMMAND_SOCKET)
NEVER_CAME = 180.0  # seconds without a socket after which a launcher is given up
ANSWER = 60.0  # seconds in which a launcher answers
_GREETING = 10.0
_FIRST_PAUSE, _LONGEST_PAUSE = 0.05, 1.0
_STEADY = 10.0  # seconds after which a connection was a good one


class Presence(enum.Enum):
    """Whether there is a launcher."""

    COMING = "coming"  # not connected yet, or not any more; nothing is known
    HERE = "here"
    GONE = "gone"  # and it will not come back


class Unresponsive(Exception):
    """The launcher does not answer now."""


class Launcher:
    """One launcher. `changed` is called with what happened, if anything, whenever something is new about it."""

    def __init__(self, pod: Path, changed: Callable[[Event | None], None], *, vmi: str = "") -> None:
        self.presence = Presence.COMING
        self.state: DomainState | None = None
        self.process: PodProcess | None = None
        """The launcher's process, while it is here."""
        self.version = ""
        """Its version, once it has greeted."""
        self.was_here = False
        """It was seen here: by this handler or, as the VMI's status tells, by an earlier one."""
        self._pod = pod
        self._changed = changed
        self._vmi = vmi
        self._client: Client | None = None
        self._requests: frozenset[str] | None = None
        self._following = tasks.keep(self._follow, f"launcher: pod {pod.name}")

    async def call(self, request: Request[A]) -> A:
        """Ask the launcher. Raises Refused with its own words, and Unresponsive where it has none."""
        name = type(request).__name__
        if self._client is None:
            raise Unresponsive(f"{name}: not connected to the launcher")
        try:
            async with asyncio.timeout(ANSWER):
                return await self._client.call(request)
        except TimeoutError:
            raise Unresponsive(f"{name}: the launcher did not answer within {ANSWER:.0f} s") from None
        except (LauncherGone, WireError) as error:
            raise Unresponsive(f"{name}: {error}") from None

    def report(self, migration: str) -> MigrationReport:
        """What it says of a migration."""
        report = self.state.migration if self.state else None
        return report if report and report.uid == migration else MigrationReport()

    def lacks(self, request: type[Message]) -> str:
        """Why a launcher of an earlier version cannot do what takes part in a migration; "" where it can, or may."""
        if self._requests is None or request.__name__ in self._requests:
            return ""
        return f"its virt-launcher {self.version} is from before VMs could move; restart the VM to give it a newer one"

    async def close(self) -> None:
        self._following.cancel()
        await asyncio.gather(self._following, return_exceptions=True)

    # Following it.

    async def _follow(self) -> None:
        """Connect, and connect again, until the launcher is gone."""
        began = time.monotonic()
        backoff = Backoff(_FIRST_PAUSE, _LONGEST_PAUSE)
        while True:
            try:
                async with asyncio.timeout(_GREETING):
                    self._client = await self._greet()
                self.was_here = True
                self.presence = Presence.HERE
                since = time.monotonic()
                await self._watch(self._client)
                if time.monotonic() - since > _STEADY:
                    backoff.reset()
            except ConnectionRefusedError:
                break
            except FileNotFoundError:
                never_came = time.monotonic() - began > NEVER_CAME
                # Where the kubelet's directory is not to be seen at all, nothing is known of any Pod.
                removed = self._pod.parent.exists() and not self._pod.exists()
                if self.was_here or never_came or removed or self._left_word():
                    break
            except (OSError, WireError, Refused, TimeoutError) as error:
                logger.warning("launcher of pod %s: %s", self._pod.name, error)
            if self.state and self.state.status.ended:
                break
            if self.presence is Presence.HERE:
                self.presence = Presence.COMING
                self._changed(None)
            await asyncio.sleep(backoff.next())
        self.state = self.state if self.state and self.state.status.ended else self._left_word() or self.state
        self.presence = Presence.GONE
        self._changed(None)

    async def _greet(self) -> Client:
        """Connect to the launcher of this very VMI. One of an earlier version does not name it; its place has to do."""
        connection = podfiles.connect(self._pod, _VOLUME, _SOCKET)
        with sockets.kept(connection):
            process = PodProcess.at(connection, self._pod.name)
            client = await Client.connect(connection)
        if client.vmi not in ("", self._vmi):
            await client.close()
            raise WireError(f"it says that it is the launcher of VMI {client.vmi}, and should be that of {self._vmi}")
        self.process = process
        self.version, self._requests = client.version, client.requests
        return client

    async def _watch(self, client: Client) -> None:
        try:
            async for update in client.watch():
                self.state = update.state
                self._changed(update.event)
        finally:
            self._client, self.process = None, None
            await client.close()

    def _left_word(self) -> DomainState | None:
        """How the domain ended, by what the launcher left behind."""
        for words in podfiles.last_words(self._pod):
            with suppress(WireError):
                state = wire.decode_json(words, DomainState)
                if state.status.ended:
                    return state
        return None
