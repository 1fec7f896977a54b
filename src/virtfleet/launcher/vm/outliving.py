"""Domains that live in the hypervisor, and not in their Pod, are left behind by a launcher that is killed.

A launcher locks a file on its node, of the name of its domain, before it makes the domain, and removes it when that is
gone. The kernel lets go of the lock when the launcher dies, however it dies. So a file that nobody holds is of a domain
that has no launcher any more: every other launcher of the node ends it. Domains without a file are none of ours.
"""

from __future__ import annotations

import asyncio
import fcntl
import logging
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path

from virtfleet.domain import paths
from virtfleet.hypervisors.base import Outliving
from virtfleet.launcher.failure import Failure
from virtfleet.work import commands, tasks

logger = logging.getLogger(__name__)

_PAUSE = 30.0  # seconds between looks for domains of others


@asynccontextmanager
async def held(how: Outliving | None, name: str, directory: Path = Path(paths.OUTLIVING)) -> AsyncIterator[None]:
    """The name is ours meanwhile. A domain that has it already was left behind, and is ended first.

    Without `how` nothing is done: such domains end by themselves.
    """
    if not how:
        yield
        return
    os.makedirs(directory, exist_ok=True)
    file, sweeping = directory / name, tasks.Owned()
    lock = _locked(file, os.O_CREAT)
    if lock is None:
        raise Failure(f"another launcher on this node still has the domain {name}; end that first")
    try:
        await _end(how, name)
    except commands.CommandError as error:
        raise Failure(f"the domain {name} of an earlier launcher cannot be ended: {error}") from None
    sweeping.add(tasks.keep(partial(_keep_sweeping, how, directory), "domains without launchers"))
    try:
        yield
    finally:
        await sweeping.end()
        with suppress(commands.CommandError):  # whoever comes next tries again
            await _end(how, name)
            file.unlink()
        os.close(lock)


async def sweep(how: Outliving, directory: Path = Path(paths.OUTLIVING)) -> None:
    """End what launchers have left that are dead."""
    for file in _files(directory):
        with suppress(OSError):  # somebody else was faster, or it is no file of a launcher
            lock = _locked(file)
            if lock is None:
                continue
            try:
                await _end(how, file.name)
                file.unlink()
            except commands.CommandError as error:
                logger.warning("the domain %s has no launcher any more and cannot be ended: %s", file.name, error)
            finally:
                os.close(lock)


async def _keep_sweeping(how: Outliving, directory: Path) -> None:
    while True:
        await sweep(how, directory)
        await asyncio.sleep(_PAUSE)


def _files(directory: Path) -> list[Path]:
    return sorted(directory.glob("*"))


def _locked(file: Path, flags: int = 0) -> int | None:
    """The file, locked, or None where somebody else has it. One that is removed meanwhile is not taken for it."""
    while True:
        descriptor = os.open(file, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC | flags, 0o600)
        with suppress(FileNotFoundError):
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(descriptor)
                return None
            if os.path.samestat(os.stat(file), os.fstat(descriptor)):
                return descriptor
        os.close(descriptor)


async def _end(how: Outliving, name: str) -> None:
    """End the domains of a name, if there are any."""
    listed = (line.split() for line in (await commands.run(*how.listing)).splitlines())
    for number in [words[1] for words in listed if words[:1] == [name] and words[1:]]:
        logger.warning("the domain %s, number %s, was left behind and is ended", name, number)
        *before, last = ([word.format(id=number) for word in command] for command in how.ending)
        for command in before:
            with suppress(commands.CommandError):
                await commands.run(*command)
        await commands.run(*last)
