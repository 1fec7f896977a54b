"""Two handlers on one node: one of them acts, and the other takes over however the first one ends."""

from __future__ import annotations

import asyncio
import logging
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from virtfleet.handler.node.lock import NodeLock

HOLD = """
import asyncio, sys
from pathlib import Path
from virtfleet.handler.node.lock import NodeLock
lock = NodeLock(Path(sys.argv[1]), "the other handler")
asyncio.run(lock.acquire())
print("held", flush=True)
sys.stdin.read()
"""


@contextmanager
def other_handler(path: Path) -> Iterator[subprocess.Popen[str]]:
    """Another process that holds the lock."""
    command = [sys.executable, "-c", HOLD, str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        try:
            yield process
        finally:
            process.kill()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "private" / "handler.lock"


async def test_a_handler_alone_gets_the_lock_at_once(path: Path) -> None:
    lock = NodeLock(path, "handler-a")
    assert not lock.held
    await lock.acquire()
    assert lock.held
    assert lock.holder() == "handler-a"


async def test_the_second_handler_waits_and_says_for_whom(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    lock = NodeLock(path, "handler-b")
    with other_handler(path):
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(lock.acquire(), 1.2)
        assert not lock.held
        assert [r.message for r in caplog.records if "the other handler" in r.message], "logged once who holds it"


async def test_a_killed_handler_loses_the_lock(path: Path) -> None:
    lock = NodeLock(path, "handler-b")
    with other_handler(path) as other:
        waiting = asyncio.create_task(lock.acquire())
        other.kill()
        await asyncio.wait_for(waiting, 20)
    assert lock.held
    assert lock.holder() == "handler-b"


async def test_a_released_lock_goes_to_the_next(path: Path) -> None:
    first, second = NodeLock(path, "first"), NodeLock(path, "second")
    await first.acquire()
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(second.acquire(), 0.7)
    first.release()
    await second.acquire()
    assert second.held
    assert not first.held
