"""Leader election: at any time at most one candidate believes that it leads."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import web
from kube_fixtures import ScriptedServer, eventually, status_answer

from virtfleet.kube import election
from virtfleet.kube.client import Client
from virtfleet.kube.config import Config
from virtfleet.kube.election import Election, LeadershipLost
from virtfleet.kube.errors import ApiError
from virtfleet.kube.resource import LEASES, Obj

pytestmark = pytest.mark.slow

# As in production, only faster; the lease itself counts in whole seconds.
QUICK = {"lease_duration": 2.0, "renew_deadline": 1.5, "renew_period": 0.1, "retry_period": 0.1}


@pytest.fixture
async def server() -> AsyncIterator[ScriptedServer]:
    async with ScriptedServer() as server:
        yield server


@pytest.fixture
async def api(server: ScriptedServer) -> AsyncIterator[Client]:
    async with Client(Config(server.url), patience=0.2) as client:
        yield client


def candidate(api: Client, identity: str, **settings: Any) -> Election:
    return Election(api, namespace="kubevirt", name="virt-controller", identity=identity, **(QUICK | settings))


async def forever() -> None:
    await asyncio.Event().wait()


def lease(server: ScriptedServer) -> Obj:
    (stored,) = server.stored(LEASES)
    spec: Obj = stored["spec"]
    return spec


async def end(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.wait([task])


async def test_the_first_candidate_leads_and_keeps_renewing(api: Client, server: ScriptedServer) -> None:
    a = candidate(api, "a")
    task = asyncio.create_task(a.run(forever))
    await eventually(lambda: a.leading)
    first = lease(server)
    assert (first["holderIdentity"], first["leaseDurationSeconds"], first["leaseTransitions"]) == ("a", 2, 0)
    await eventually(lambda: lease(server)["renewTime"] != first["renewTime"])
    assert lease(server)["acquireTime"] == first["acquireTime"]
    await end(task)


async def test_leaving_hands_over_at_once(api: Client, server: ScriptedServer) -> None:
    # The lease would last for an hour: only a release lets the next one in.
    a = candidate(api, "a", lease_duration=3600)
    b = candidate(api, "b", lease_duration=3600)
    first = asyncio.create_task(a.run(forever))
    await eventually(lambda: a.leading)
    second = asyncio.create_task(b.run(forever))
    await eventually(lambda: server.count("GET", "/leases/") >= 2)
    await end(first)
    assert not a.leading
    await eventually(lambda: b.leading)
    assert (lease(server)["holderIdentity"], lease(server)["leaseTransitions"]) == ("b", 1)
    await end(second)
    assert (lease(server)["holderIdentity"], lease(server)["leaseDurationSeconds"]) == ("", 1)


async def test_the_lease_is_kept_until_the_work_has_ended(api: Client, server: ScriptedServer) -> None:
    a = candidate(api, "a")
    stopping, stopped = asyncio.Event(), asyncio.Event()

    async def slow_to_stop() -> None:
        try:
            await forever()
        finally:
            stopping.set()
            await stopped.wait()

    task = asyncio.create_task(a.run(slow_to_stop))
    await eventually(lambda: a.leading)
    task.cancel()
    await stopping.wait()
    before = lease(server)["renewTime"]
    await eventually(lambda: lease(server)["renewTime"] != before)
    assert lease(server)["holderIdentity"] == "a"
    stopped.set()
    await asyncio.wait([task])
    assert lease(server)["holderIdentity"] == ""


async def test_work_that_ends_or_fails_ends_the_leadership(api: Client, server: ScriptedServer) -> None:
    async def done() -> None:
        return

    await candidate(api, "a").run(done)
    assert lease(server)["holderIdentity"] == ""

    async def fail() -> None:
        raise KeyError("bug")

    with pytest.raises(KeyError):
        await candidate(api, "a").run(fail)
    assert lease(server)["holderIdentity"] == ""


async def test_another_candidate_waits_for_as_long_as_the_lease_changes(api: Client, server: ScriptedServer) -> None:
    a, b = candidate(api, "a"), candidate(api, "b")
    first = asyncio.create_task(a.run(forever))
    await eventually(lambda: a.leading)
    second = asyncio.create_task(b.run(forever))
    await eventually(lambda: server.watchers)
    looks, renewals = server.count("GET", "/leases"), server.count("PUT", "/leases/")
    await eventually(lambda: server.count("PUT", "/leases/") > renewals + 25)  # longer than the lease lasts
    assert a.leading
    assert not b.leading
    assert server.count("GET", "/leases") == looks, "who waits asks for nothing"
    await end(second)
    assert lease(server)["holderIdentity"] == "a"
    await end(first)


async def test_a_watch_that_fell_silent_takes_the_lease_from_nobody(api: Client, server: ScriptedServer) -> None:
    a, b = candidate(api, "a"), candidate(api, "b")
    first = asyncio.create_task(a.run(forever))
    await eventually(lambda: a.leading)
    second = asyncio.create_task(b.run(forever))
    async with never_both(a, b):
        await eventually(lambda: server.watchers)
        looks = server.count("GET", "/leases/")
        silent = [server.watchers.pop()]  # the connection stays, and nothing comes
        await eventually(lambda: server.count("GET", "/leases/") > looks and server.watchers)
        assert a.leading
        server.end_watches()
        await eventually(lambda: server.count("GET", "/leases/") > looks + 1 and server.watchers)
    assert lease(server)["holderIdentity"] == "a"
    server.watchers += silent
    await end(second)
    await end(first)


async def test_who_may_not_watch_asks_now_and_then(api: Client, server: ScriptedServer) -> None:
    server.next("GET", "watch=true", status_answer(ApiError("Forbidden", "cannot watch leases")), times=1000)
    a, b = candidate(api, "a", lease_duration=3600), candidate(api, "b", lease_duration=3600)
    first = asyncio.create_task(a.run(forever))
    await eventually(lambda: a.leading)
    second = asyncio.create_task(b.run(forever))
    await eventually(lambda: server.count("GET", "watch=true") >= 2)
    await end(first)
    await eventually(lambda: b.leading)
    await end(second)


async def test_a_lease_that_is_deleted_is_made_anew(api: Client, server: ScriptedServer) -> None:
    meta = {"name": "virt-controller", "namespace": "kubevirt"}
    server.put(LEASES, {"metadata": meta, "spec": {"holderIdentity": "x", "leaseDurationSeconds": 3600}})
    a = candidate(api, "a")
    task = asyncio.create_task(a.run(forever))
    await eventually(lambda: server.watchers)
    server.remove(LEASES, "virt-controller", "kubevirt")
    await eventually(lambda: a.leading)
    await end(task)


@pytest.mark.parametrize("renewed", ["1999-01-01T00:00:00.000000Z", "2199-01-01T00:00:00.000000Z"])
async def test_a_clock_that_is_decades_off_makes_no_difference(
    api: Client, server: ScriptedServer, renewed: str
) -> None:
    meta = {"name": "virt-controller", "namespace": "kubevirt"}
    spec = {"holderIdentity": "x", "leaseDurationSeconds": 1, "leaseTransitions": 4, "renewTime": renewed}
    server.put(LEASES, {"metadata": meta, "spec": spec})
    a = candidate(api, "a")
    task = asyncio.create_task(a.run(forever))
    await eventually(lambda: server.watchers)
    seen = time.monotonic()
    await eventually(lambda: a.leading)
    assert time.monotonic() - seen > 0.8, "not before the lease was seen unchanged for its duration of a second"
    assert lease(server)["leaseTransitions"] == 5
    await end(task)


async def test_a_leader_that_cannot_renew_stops_before_another_may_begin(server: ScriptedServer) -> None:
    async with Client(Config(server.url), patience=0.2) as cut_off, Client(Config(server.url)) as fine:
        a, b = candidate(cut_off, "a"), candidate(fine, "b")
        cancelled = asyncio.Event()

        async def work() -> None:
            try:
                await forever()
            finally:
                cancelled.set()

        first = asyncio.create_task(a.run(work))
        await eventually(lambda: a.leading)
        async with never_both(a, b):
            _cut_off(cut_off)
            second = asyncio.create_task(b.run(forever))
            with pytest.raises(LeadershipLost, match="a no longer holds the lease kubevirt/virt-controller"):
                await asyncio.wait_for(first, 20)
            assert cancelled.is_set()
            await eventually(lambda: b.leading)
        await end(second)


@asynccontextmanager
async def never_both(a: Election, b: Election) -> AsyncIterator[None]:
    """While the body runs, look all the time whether both believe that they lead."""

    async def look() -> None:
        while not (a.leading and b.leading):  # noqa: ASYNC110  it is the looking that matters
            await asyncio.sleep(0.001)

    looking = asyncio.create_task(look())
    yield
    assert not looking.done(), "both candidates led"
    await end(looking)


def _cut_off(api: Client) -> None:
    """From now on nothing that this client sends arrives, and no answer comes."""

    async def nowhere(*_: object, **__: object) -> Any:
        await forever()

    api.request = nowhere  # type: ignore[method-assign]


async def test_a_lease_that_was_taken_away_is_noticed_at_the_next_renewal(api: Client, server: ScriptedServer) -> None:
    # Only seeing the other's name can end this leadership, not the time.
    a = candidate(api, "a", lease_duration=3600, renew_deadline=1800)
    task = asyncio.create_task(a.run(forever))
    await eventually(lambda: a.leading)
    meta = {"name": "virt-controller", "namespace": "kubevirt"}
    server.put(LEASES, {"metadata": meta, "spec": {"holderIdentity": "thief", "leaseDurationSeconds": 3600}})
    with pytest.raises(LeadershipLost):
        await asyncio.wait_for(task, 20)
    assert lease(server)["holderIdentity"] == "thief"  # not ours to release


async def test_who_was_answered_late_renews_at_once(
    api: Client, server: ScriptedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Of the hour that its claim is good for, 55 minutes have passed when the answer comes.
    monkeypatch.setattr(election, "_now", lambda: time.monotonic() + 3300 * server.count("POST", "/leases"))
    a = candidate(api, "a", lease_duration=4000, renew_deadline=3600, renew_period=3000)
    task = asyncio.create_task(a.run(forever))
    await eventually(lambda: server.count("PUT", "/leases/") == 1)
    assert a.leading
    await end(task)


async def test_errors_of_the_server_are_ridden_out(api: Client, server: ScriptedServer) -> None:
    a = candidate(api, "a")
    server.next("GET", "/leases/", status_answer(ApiError("InternalError", "etcd")), times=2)
    task = asyncio.create_task(a.run(forever))
    await eventually(lambda: a.leading)
    server.next("PUT", "/leases/", status_answer(ApiError("InternalError", "etcd")), times=2)
    await eventually(lambda: server.count("PUT", "/leases/") > 4)
    assert a.leading
    await end(task)


async def test_two_that_start_together_do_not_both_get_it(server: ScriptedServer) -> None:
    here: list[web.Request] = []
    both_asked = asyncio.Event()

    async def not_there_for_either(request: web.Request) -> web.StreamResponse:
        here.append(request)
        if len(here) == 2:
            both_asked.set()
        await both_asked.wait()
        return await status_answer(ApiError("NotFound", "not found"))(request)

    server.next("GET", "/leases/", not_there_for_either, times=2)
    async with Client(Config(server.url)) as one, Client(Config(server.url)) as other:
        a, b = candidate(one, "a"), candidate(other, "b")
        tasks = [asyncio.create_task(e.run(forever)) for e in (a, b)]
        async with never_both(a, b):
            await eventually(lambda: a.leading or b.leading)
            await eventually(lambda: server.watchers)
            renewals = server.count("PUT", "/leases/")
            await eventually(lambda: server.count("PUT", "/leases/") > renewals + 5)
        for task in tasks:
            await end(task)


WORKER = """
import asyncio, sys, time
from virtfleet.kube import election
from virtfleet.kube.client import Client
from virtfleet.kube.config import Config
from virtfleet.kube.election import Election, LeadershipLost

async def main(url):
    async with Client(Config(url)) as api:
        me = Election(api, namespace="kubevirt", name="virt-controller", identity="child",
                      lease_duration=2.0, renew_deadline=1.5, renew_period=0.1, retry_period=0.1)
        async def act():
            while True:
                now = time.clock_gettime(time.CLOCK_BOOTTIME)
                if me.leading:
                    print(now, flush=True)
                await asyncio.sleep(0)
        try:
            await me.run(act)
        except LeadershipLost:
            print("lost", flush=True)

asyncio.run(main(sys.argv[1]))
"""


async def test_a_leader_that_was_stopped_does_nothing_more_once_another_leads(
    api: Client, server: ScriptedServer
) -> None:
    child = await asyncio.create_subprocess_exec(
        sys.executable, "-c", WORKER, server.url, stdout=asyncio.subprocess.PIPE
    )
    try:
        assert child.stdout is not None
        assert float(await asyncio.wait_for(child.stdout.readline(), 20))
        os.kill(child.pid, signal.SIGSTOP)
        b = candidate(api, "b")
        task = asyncio.create_task(b.run(forever))
        await eventually(lambda: b.leading)
        other_leads = time.clock_gettime(time.CLOCK_BOOTTIME)
        os.kill(child.pid, signal.SIGCONT)
        *acts, last = (await asyncio.wait_for(child.communicate(), 20))[0].splitlines()
        assert last == b"lost"
        assert all(float(act) < other_leads for act in acts)
        assert b.leading
        await end(task)
    finally:
        if child.returncode is None:
            child.kill()
            await child.wait()


@pytest.mark.parametrize("durations", [(10, 15, 2, 2), (15, 10, 12, 2), (15, 10, 5, 6), (15, 10, 5, 0)])
def test_durations_that_cannot_be_safe_are_refused(api: Client, durations: tuple[float, ...]) -> None:
    names = ("lease_duration", "renew_deadline", "renew_period", "retry_period")
    with pytest.raises(ValueError, match="longer than"):
        candidate(api, "a", **dict(zip(names, durations, strict=True)))
