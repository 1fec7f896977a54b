"""Calls that block have a limit, and one that never comes back costs no more than its thread."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from functools import partial

import pytest

from virtfleet.launcher.failure import Failure
from virtfleet.launcher.libvirtd import connection as module
from virtfleet.launcher.libvirtd.connection import Threads


@pytest.fixture
def stuck() -> Iterator[threading.Event]:
    """What calls wait for that do not come back."""
    over = threading.Event()
    yield over
    over.set()


async def test_an_answer_and_an_error_come_back() -> None:
    threads = Threads(1, "t")
    assert await threads.run(partial(int, "7"), 5) == 7
    with pytest.raises(ZeroDivisionError):
        await threads.run(lambda: 1 // 0, 5)
    threads.close()


async def test_the_next_call_finds_a_thread_when_one_is_lost(stuck: threading.Event) -> None:
    threads = Threads(1, "t")
    with pytest.raises(Failure, match="did not answer within 0 s"):
        await threads.run(stuck.wait, 0.05)
    assert await threads.run(partial(int, "7"), 5) == 7
    threads.close()


async def test_so_many_are_lost_and_no_more(stuck: threading.Event, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MOST_LOST", 2)
    before = threading.active_count()
    threads = Threads(1, "t")
    for _ in range(6):
        with pytest.raises(Failure):
            await threads.run(stuck.wait, 0.05)
    assert threading.active_count() - before <= 3
    with pytest.raises(Failure, match="busy with other calls"):
        await threads.run(partial(int, "7"), 0.05)
    stuck.set()
    assert await threads.run(partial(int, "7"), 5) == 7
    threads.close()
