"""The work queue: one key, one worker; order of arrival; pauses after failures."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import REGISTRY

from virtfleet.kube.queue import Queue, QueueClosed


async def taken(queue: Queue) -> str:
    async with asyncio.timeout(10):
        return await queue.get()


async def test_keys_come_in_the_order_of_their_arrival_and_once() -> None:
    queue = Queue("order")
    for key in ("a", "b", "a", "c", "b"):
        queue.add(key)
    assert [await taken(queue) for _ in range(3)] == ["a", "b", "c"]
    assert len(queue) == 0


async def test_a_key_added_while_a_worker_has_it_runs_once_more_behind_the_others() -> None:
    queue = Queue("again")
    queue.add("a")
    assert await taken(queue) == "a"
    queue.add("a")
    queue.add("a")
    queue.add("b")
    assert await taken(queue) == "b"  # not "a": a worker has it
    queue.done("a")
    assert await taken(queue) == "a"
    queue.done("a")
    assert len(queue) == 0


async def test_of_several_delays_of_a_key_the_earliest_counts() -> None:
    queue = Queue("delays")
    queue.add_after("late", 3600)
    queue.add_after("late", 0.03)
    queue.add_after("early", 0.01)
    queue.add_after("early", 3600)
    queue.add_after("now", 0)
    assert [await taken(queue) for _ in range(3)] == ["now", "early", "late"]
    queue.close()


async def test_failures_in_a_row_pause_a_key_longer_up_to_the_limit_and_success_forgives() -> None:
    queue = Queue("failures", first=0.5, most=3.0)
    assert [queue.retry("a") for _ in range(5)] == [0.5, 1.0, 2.0, 3.0, 3.0]
    assert queue.retry("b") == 0.5
    queue.forget("a")
    assert queue.retry("a") == 0.5
    for _ in range(3000):
        assert queue.retry("c") <= 3.0
    queue.close()


async def test_a_key_that_fails_over_and_over_does_not_keep_others_waiting() -> None:
    queue = Queue("fair", first=0.0001, most=0.001)
    good = [f"good-{n}" for n in range(50)]
    queue.add("bad")
    for key in good:
        queue.add(key)
    served = []
    while len(served) < len(good):
        key = await taken(queue)
        if key == "bad":
            queue.retry(key)
        else:
            served.append(key)
        queue.done(key)
    assert served == good
    queue.close()


async def test_closing_hands_out_what_is_ready_and_drops_what_waits_for_a_time() -> None:
    queue = Queue("close")
    queue.add("ready")
    queue.add_after("later", 0.001)
    queue.close()
    queue.add("too-late")
    assert await taken(queue) == "ready"
    for _ in range(2):  # every worker gets to know
        with pytest.raises(QueueClosed):
            await taken(queue)


async def test_closing_wakes_a_worker_that_waits() -> None:
    queue = Queue("wake")
    worker = asyncio.create_task(queue.get())
    await asyncio.sleep(0)
    queue.close()
    with pytest.raises(QueueClosed):
        await asyncio.wait_for(worker, 10)


async def test_a_cancelled_worker_takes_no_key_with_it() -> None:
    queue = Queue("cancel")
    worker = asyncio.create_task(queue.get())
    await asyncio.sleep(0)
    queue.add("a")
    worker.cancel()
    with pytest.raises(asyncio.CancelledError):
        await worker
    assert await taken(queue) == "a"


async def test_its_metrics_have_the_names_that_dashboards_know() -> None:
    queue = Queue("metered")
    queue.add("a")
    queue.add("b")

    def value(name: str) -> float | None:
        return REGISTRY.get_sample_value(name, {"name": "metered"})

    assert value("kubevirt_workqueue_depth") == 2
    assert value("kubevirt_workqueue_adds_total") == 2
    queue.done(await taken(queue))
    queue.retry("a")
    assert value("kubevirt_workqueue_depth") == 1
    assert value("kubevirt_workqueue_retries_total") == 1
    assert value("kubevirt_workqueue_queue_duration_seconds_count") == 1
    assert value("kubevirt_workqueue_work_duration_seconds_count") == 1
    queue.close()


@given(st.lists(st.tuples(st.sampled_from(["add", "get", "done"]), st.sampled_from("abc")), max_size=60))
def test_no_key_is_with_two_workers_and_none_is_lost(steps: list[tuple[str, str]]) -> None:
    async def play() -> None:
        queue = Queue("property")
        working: set[str] = set()
        wanted: set[str] = set()
        for step, key in steps:
            if step == "add":
                queue.add(key)
                wanted.add(key)
            elif step == "get" and wanted - working:
                got = await taken(queue)
                assert got not in working
                working.add(got)
                wanted.remove(got)
            elif step == "done" and key in working:
                working.remove(key)
                queue.done(key)
            assert len(queue) == len(wanted)
        for key in working:
            queue.done(key)
        assert {await taken(queue) for _ in range(len(wanted))} == wanted

    asyncio.run(play())
