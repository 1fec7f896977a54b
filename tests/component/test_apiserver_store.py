"""The store: durable before it answers, all or nothing, with the latest changes for those who follow."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import orjson
import pytest

from virtfleet.kube.errors import ApiError
from virtfleet.local.apiserver.objects import store as store_module
from virtfleet.local.apiserver.objects.store import Change, Record, Stale, Store

KILLS = int(os.environ.get("VIRTFLEET_STORE_KILLS", 60))


def thing(name: str, **more: Any) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "Thing", "metadata": {"name": name}, **more}


async def put(store: Store, name: str, **more: Any) -> Record:
    return await store.write("/things", "ns", name, thing(name, **more), base=store.get("/things", "ns", name))


async def remove(store: Store, name: str) -> Record:
    base = store.get("/things", "ns", name)
    assert base is not None
    return await store.write("/things", "ns", name, orjson.loads(base.data), base=base, remove=True)


def state(store: Store) -> dict[str, Any]:
    return {record.name: orjson.loads(record.data) for record in store.scan("/things")}


async def test_what_was_written_is_there_after_reopening(tmp_path: Path) -> None:
    store = Store(tmp_path)
    await put(store, "a", value=1)
    await put(store, "b", value=1)
    await put(store, "a", value=2)
    await remove(store, "b")
    before, revision = state(store), store.revision
    await store.close()
    again = Store(tmp_path)
    assert state(again) == before
    assert before["a"]["value"] == 2
    assert again.revision == revision
    assert before["a"]["metadata"]["resourceVersion"] == str(revision - 1)
    await again.close()


async def test_objects_are_scanned_in_the_order_of_namespace_and_name(tmp_path: Path) -> None:
    store = Store(tmp_path)
    for namespace, name in (("b", "x"), ("a", "z"), ("a", "b"), ("ab", "a")):
        await store.write("/things", namespace, name, thing(name), base=None)
    assert [(r.namespace, r.name) for r in store.scan("/things")] == [("a", "b"), ("a", "z"), ("ab", "a"), ("b", "x")]
    assert [r.name for r in store.scan("/things", "a")] == ["b", "z"]
    assert list(store.scan("/things", "c")) == []
    await store.close()


async def test_a_write_must_start_from_the_current_object(tmp_path: Path) -> None:
    store = Store(tmp_path)
    first = await put(store, "a")
    await put(store, "a", value=2)
    with pytest.raises(Stale):
        await store.write("/things", "ns", "a", thing("a"), base=first)
    with pytest.raises(Stale):
        await store.write("/things", "ns", "a", thing("a"), base=None)
    await store.close()


async def test_of_concurrent_writes_to_one_object_one_wins(tmp_path: Path) -> None:
    store = Store(tmp_path)
    base = await put(store, "a", value=0)

    async def attempt(value: int) -> bool:
        try:
            await store.write("/things", "ns", "a", thing("a", value=value), base=base)
            return True
        except Stale:
            return False

    assert sum(await asyncio.gather(*map(attempt, range(10)))) == 1
    await store.close()


async def test_a_write_is_invisible_until_it_is_durable_and_heard_before_it_is_answered(tmp_path: Path) -> None:
    store = Store(tmp_path)
    heard: list[Change] = []
    store.listen("/things", heard.append)
    writing = asyncio.create_task(put(store, "a"))
    await asyncio.sleep(0)
    assert store.get("/things", "ns", "a") is None
    assert not heard
    record = await writing
    assert store.get("/things", "ns", "a") is record
    assert [(c.type, c.record, c.previous) for c in heard] == [("ADDED", record, None)]
    await store.close()


async def test_a_writer_that_gives_up_does_not_undo_its_write(tmp_path: Path) -> None:
    store = Store(tmp_path)
    writing = asyncio.create_task(put(store, "a"))
    await asyncio.sleep(0)
    writing.cancel()
    await store.settled("/things", "ns", "a")
    assert "a" in state(store)
    await put(store, "a", value=2)
    await store.close()


async def test_a_failing_listener_does_not_fail_the_write(tmp_path: Path) -> None:
    store = Store(tmp_path)
    heard: list[str] = []
    store.listen("/things", lambda change: 1 / 0)
    store.listen("/things", lambda change: heard.append(change.record.name))
    await put(store, "a")
    assert heard == ["a"]
    await store.close()


async def test_changes_since_a_revision_are_remembered_until_they_are_too_many(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_module, "WINDOW", 100)
    store = Store(tmp_path)
    start = store.revision
    everything: list[Change] = []
    store.listen("/things", everything.append)
    for i in range(99):
        await put(store, f"t{i % 7}", value=i)
    await remove(store, "t3")
    assert store.since("/things", start) == everything
    assert [c.type for c in everything] == ["ADDED"] * 7 + ["MODIFIED"] * 92 + ["DELETED"]
    await store.close()
    store = Store(tmp_path)
    assert store.since("/things", start) == everything, "also after a restart"
    store.listen("/things", everything.append)
    await put(store, "one-more")
    with pytest.raises(ApiError) as refused:
        store.since("/things", start)
    assert refused.value.code == 410
    for at in (start + 1, start + 49, start + 100, store.revision):
        assert store.since("/things", at) == [c for c in everything if c.record.revision > at]
    assert store.since("/others", start + 1) == [], "nothing has happened there"
    await store.close()


async def test_history_that_is_forgotten_leaves_the_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_module, "WINDOW", 100)
    store = Store(tmp_path)
    for i in range(500):
        await put(store, f"t{i % 5}", value=i)
    await remove(store, "t0")
    before, latest, compacted = state(store), store.since("/things", store.revision - 50), store.compacted
    await store.close()
    with closing(sqlite3.connect(tmp_path / "store.db")) as database:
        [rows] = database.execute("SELECT count(*) FROM revisions").fetchone()
    assert rows <= 100 + 5 + 1
    again = Store(tmp_path)
    assert sorted(before) == ["t1", "t2", "t3", "t4"]
    assert (state(again), again.since("/things", again.revision - 50)) == (before, latest)
    assert again.compacted in (compacted, compacted - 1)
    await again.close()


async def test_the_revision_never_goes_back_even_if_nothing_is_left(tmp_path: Path) -> None:
    store = Store(tmp_path)
    await put(store, "a")
    await remove(store, "a")
    revision = store.revision
    await store.close()
    again = Store(tmp_path)
    assert again.revision == revision
    assert (await put(again, "b")).revision == revision + 1
    await again.close()


async def test_a_second_server_cannot_open_the_same_directory(tmp_path: Path) -> None:
    store = Store(tmp_path)
    script = f"""
from pathlib import Path
from virtfleet.local.apiserver.objects.store import Store
Store(Path({str(tmp_path)!r}))
"""
    second = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)  # noqa: ASYNC221
    assert second.returncode != 0
    assert "is in use by another server" in second.stderr
    await store.close()


async def test_a_full_disk_fails_the_writes_it_hits_and_nothing_else(tmp_path: Path) -> None:
    store = Store(tmp_path)
    await put(store, "before")
    pages = store._db.execute("PRAGMA page_count").fetchone()[0]
    store._db.execute(f"PRAGMA max_page_count={pages + 3}")
    results = await asyncio.gather(*(put(store, f"t{i}", filler="x" * 3000) for i in range(20)), return_exceptions=True)
    refused = [r for r in results if isinstance(r, ApiError)]
    assert refused
    assert all(r.code == 503 and "full" in r.message and str(tmp_path) in r.message for r in refused)
    stored = {r.name for r in results if isinstance(r, Record)}
    assert set(state(store)) == stored | {"before"}
    store._db.execute("PRAGMA max_page_count=1000000")
    await put(store, "after", filler="x" * 3000)
    await put(store, "before", value=2)
    present = state(store)
    await store.close()
    again = Store(tmp_path)
    assert state(again) == present
    await again.close()


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting needs root")
async def test_a_really_full_file_system_is_survived(tmp_path: Path) -> None:
    mount = tmp_path / "small"
    mount.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(mount)], check=True)  # noqa: ASYNC221
    try:
        store = Store(mount / "data")
        ballast = mount / "ballast"
        await put(store, "first")
        with ballast.open("wb", buffering=0) as file:
            free = os.statvfs(mount)
            file.write(b"x" * (free.f_bavail * free.f_bsize - 40 * 1024))
        results = await asyncio.gather(
            *(put(store, f"t{i}", filler="x" * 5000) for i in range(60)), return_exceptions=True
        )
        for i in range(20):
            results.append(*await asyncio.gather(put(store, f"u{i}", filler="x" * 5000), return_exceptions=True))
        assert any(isinstance(r, ApiError) and r.code == 503 for r in results)
        expected = {"first"} | {r.name for r in results if isinstance(r, Record)}
        assert set(state(store)) == expected
        ballast.unlink()
        await put(store, "last")
        await store.close()
        again = Store(mount / "data")
        assert set(state(again)) == expected | {"last"}
        await again.close()
    finally:
        subprocess.run(["umount", str(mount)], check=True)  # noqa: ASYNC221


WRITER = """
import asyncio, os, sys
from pathlib import Path
from virtfleet.local.apiserver.objects.store import Store

async def client(store, number, start):
    mine = {}
    turn = start
    while True:
        turn += 1
        name = f"c{number}-{turn % 5}"
        base = store.get("/things", "ns", name)
        obj = {"apiVersion": "v1", "kind": "Thing", "metadata": {"name": name}, "turn": turn}
        obj["filler"] = "x" * (turn % 3000)
        gone = base is not None and turn % 7 == 0
        record = await store.write("/things", "ns", name, obj, base=base, remove=gone)
        print(number, turn, name, record.revision, int(gone), flush=True)

async def main(start):
    store = Store(Path(sys.argv[1]))
    print("open", store.revision, os.getpid(), flush=True)
    await asyncio.gather(*(client(store, n, start) for n in range(8)))

# Each in a process of its own, which need not import anything any more.
for start in sys.stdin:
    if (child := os.fork()) == 0:
        asyncio.run(main(int(start)))
    os.waitpid(child, 0)
    print("\\nkilled", flush=True)
"""


@pytest.mark.timeout(300)
@pytest.mark.slow
def test_nothing_acknowledged_is_lost_and_nothing_is_half_written_when_the_process_is_killed(tmp_path: Path) -> None:
    """Time and again: kill -9 amidst the writes of eight clients, reopen, compare with what was acknowledged."""
    dice = random.Random(7)
    known: dict[str, tuple[int, int]] = {}  # name -> (turn, revision) of the last acknowledged write; turn 0: removed
    newest = turn = 0
    command = [sys.executable, "-c", WRITER, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as writers:
        assert writers.stdin and writers.stdout
        for _ in range(KILLS):
            under_way = [turn + 1] * 8  # the turn of each client that may be stored and not acknowledged
            print(turn, file=writers.stdin, flush=True)
            _, opened, process = writers.stdout.readline().split()
            assert int(opened) >= newest, "an acknowledged revision is gone"
            lines = [writers.stdout.readline() for _ in range(dice.randrange(1, 60))]
            os.kill(int(process), signal.SIGKILL)
            lines += iter(writers.stdout.readline, "killed\n")
            for line in lines:
                if len(told := line.split()) != 5:
                    continue  # cut off by the kill; the write may have been stored, and that is all right
                number, turn_text, name, revision, gone = told
                known[name] = (0 if gone == "1" else int(turn_text), int(revision))
                under_way[int(number)] = int(turn_text) + 1
                newest, turn = max(newest, int(revision)), max(turn, int(turn_text))
            _compare(tmp_path, known, {f"c{number}-{its % 5}": its for number, its in enumerate(under_way)})


def _compare(directory: Path, known: dict[str, tuple[int, int]], under_way: dict[str, int]) -> None:
    async def read() -> dict[str, Any]:
        store = Store(directory)
        present = state(store)
        await store.close()
        return present

    present = asyncio.run(read())
    for name, (turn, revision) in list(known.items()):
        obj = present.get(name)
        if obj is None:
            # Removed as acknowledged, or by the one write that could be stored and not acknowledged any more.
            assert turn == 0 or under_way.get(name, 1) % 7 == 0, f"{name} of turn {turn} is lost"
            known[name] = (0, revision)
        else:
            assert obj["turn"] >= turn, f"{name} went back"
            assert int(obj["metadata"]["resourceVersion"]) >= revision
            assert len(obj["filler"]) == obj["turn"] % 3000, "half an object"
