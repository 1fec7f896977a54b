"""The store: every object of the cluster, durable, with a history that watches and paged lists read from.

One table of revisions is only ever appended to (and compacted at its old end); the revision number is the
resourceVersion. Current objects are held in memory as JSON bytes, so reads never touch the disk.

Writes are committed in groups. A write is checked against the current object on the event loop, gets its revision, and
is queued; a thread commits whatever is queued in one transaction with one fsync. Only after that is the write visible
to readers, listeners and its own caller, in that order. At most one write per object is on its way at any time: others
wait for it (`settled`) and start from what really got stored, so a commit that fails takes nothing else with it.
"""

from __future__ import annotations

import asyncio
import logging
import sqlite3
import sys
import time
from bisect import bisect_left, insort
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import takewhile
from pathlib import Path

import msgspec
import orjson

from virtfleet.kube.errors import ApiError
from virtfleet.kube.resource import Obj

log = logging.getLogger(__name__)

WINDOW = 1000  # changes per storage that are answered from memory; older ones come from the table
COMPACTION_STEP = 2000  # rows per transaction, so that compaction never holds up writes for long

_ROWS = 100  # per statement
_SURE = 5.0  # seconds for which a write that succeeded says that the next one will

_SCHEMA = """
CREATE TABLE IF NOT EXISTS revisions (
    revision INTEGER PRIMARY KEY, previous INTEGER NOT NULL, removed INTEGER NOT NULL,
    storage TEXT NOT NULL, namespace TEXT NOT NULL, name TEXT NOT NULL, data BLOB NOT NULL);
CREATE TABLE IF NOT EXISTS compaction (revision INTEGER NOT NULL);
"""


class Record(msgspec.Struct, frozen=True, gc=False):
    """One revision of one object. `data` is its JSON, resourceVersion included, beginning with its apiVersion."""

    storage: str
    namespace: str
    name: str
    revision: int
    data: bytes


class Change(msgspec.Struct, frozen=True, gc=False):
    """One committed write. For DELETED, `record` is the object's last state with the revision of its removal."""

    type: str  # ADDED, MODIFIED, DELETED
    record: Record
    previous: Record | None


class Stale(Exception):
    """The object is not any more what the writer started from: wait for `settled`, read again, try again."""


class _Write(msgspec.Struct):
    change: Change
    done: asyncio.Future[Record]


class _Logged(msgspec.Struct, frozen=True, gc=False):
    """A change as compaction needs it: when it was, and which rows nobody needs once it is forgotten."""

    revision: int
    time: float
    dead: tuple[int, ...]


class _Shelf:
    """All objects of one storage, their order, and the latest changes."""

    __slots__ = ("keys", "records", "since", "window")

    def __init__(self, since: int) -> None:
        self.records: dict[tuple[str, str], Record] = {}
        self.keys: list[tuple[str, str]] = []
        self.window: deque[Change] = deque()
        self.since = since  # the window holds every change after this revision

    def apply(self, change: Change) -> None:
        record = change.record
        key = (record.namespace, record.name)
        if change.type == "DELETED":
            del self.records[key]
            del self.keys[bisect_left(self.keys, key)]
        else:
            if change.previous is None:
                insort(self.keys, key)
            self.records[key] = record

    def remember(self, change: Change) -> None:
        self.window.append(change)
        if len(self.window) > WINDOW:
            self.since = self.window.popleft().record.revision


class Store:
    """Opens (or makes) the database under `directory`; only one process can have it open."""

    def __init__(self, directory: Path, *, keep_changes: int = 10_000, keep_seconds: float = 300) -> None:
        self.directory = directory
        self.keep_changes, self.keep_seconds = keep_changes, keep_seconds
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._db = _open(directory / "store.db")
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="store")
        self._shelves: dict[str, _Shelf] = {}
        self._log: deque[_Logged] = deque()
        self._listeners: dict[str, list[Callable[[Change], None]]] = {}
        self._queue: list[_Write] = []
        self._in_flight: dict[tuple[str, str, str], asyncio.Future[Record]] = {}
        self._committing = False
        self._failure: BaseException | None = None  # of the last attempt to write
        self._written = 0.0  # when the last one succeeded
        self._compacting: asyncio.Future[int] | None = None
        self.compacted = self._db.execute("SELECT max(revision) FROM compaction").fetchone()[0] or 0
        self.revision = max(1, self.compacted)  # of the last commit; never 0, which means "any" to clients
        self._load()
        self._assigned = self.revision

    def _load(self) -> None:
        now = time.monotonic()
        rows = self._db.execute("SELECT revision, removed, storage, namespace, name, data FROM revisions ORDER BY 1")
        for revision, removed, storage, namespace, name, data in rows:
            record = Record(sys.intern(storage), sys.intern(namespace), name, revision, data)
            change = self._change(record, self.get(storage, namespace, name), bool(removed))
            self._shelf(record.storage).apply(change)
            self._forgettable(change, now)
            self.revision = revision
        for shelf in self._shelves.values():
            shelf.since = self.revision

    # Reading

    def get(self, storage: str, namespace: str, name: str) -> Record | None:
        shelf = self._shelves.get(storage)
        return shelf.records.get((namespace, name)) if shelf else None

    def scan(self, storage: str, namespace: str | None = None) -> Iterator[Record]:
        """Every object of a storage (and namespace), ordered by namespace and name."""
        shelf = self._shelves.get(storage)
        if shelf is None:
            return iter(())
        keys = shelf.keys
        if namespace is not None:
            keys = list(takewhile(lambda key: key[0] == namespace, keys[bisect_left(keys, (namespace, "")) :]))
        return iter([shelf.records[key] for key in keys])

    async def since(self, storage: str, revision: int) -> list[Change]:
        """Every change after `revision`, up to the moment of the call; Expired if they are compacted away."""
        shelf = self._shelf(storage)
        recent = list(takewhile(lambda change: change.record.revision > revision, reversed(shelf.window)))
        recent.reverse()
        if revision >= shelf.since:
            return recent
        return await self._on_thread(partial(self._read_changes, storage, revision, shelf.since)) + recent

    def listen(self, storage: str, listener: Callable[[Change], None]) -> None:
        """Call `listener` on the event loop for every change, after its commit and before the writer's answer."""
        self._listeners.setdefault(storage, []).append(listener)

    # Writing

    async def trouble(self) -> str:
        """Why nothing can be written, if so: found out by writing, unless somebody did so just now."""
        if time.monotonic() - self._written > _SURE:
            if self._compacting is None:
                self._start_compaction(float("-inf"))
            assert self._compacting is not None
            await asyncio.wait([self._compacting])
        return self._refusal(self._failure).message if self._failure else ""

    async def settled(self, storage: str, namespace: str, name: str) -> None:
        """Wait until no write to this object is on its way."""
        while (pending := self._in_flight.get((storage, namespace, name))) is not None:
            await asyncio.wait((pending,))

    async def write(
        self, storage: str, namespace: str, name: str, obj: Obj, *, base: Record | None, remove: bool = False
    ) -> Record:
        """Store `obj` as the successor of `base` (None: it must not exist yet), or remove it with `obj` as its last
        state. Raises Stale, or ApiError when it could not be made durable."""
        key = (storage, namespace, name)
        if key in self._in_flight or self.get(*key) is not base:
            raise Stale
        revision = self._assigned + 1
        # Encoded before the revision is taken: an object that cannot be encoded must leave no trace.
        record = Record(sys.intern(storage), sys.intern(namespace), name, revision, encode(obj, revision))
        self._assigned = revision
        done: asyncio.Future[Record] = asyncio.get_running_loop().create_future()
        self._in_flight[key] = done
        self._queue.append(_Write(self._change(record, base, remove), done))
        if not self._committing:
            self._commit_queue()
        return await asyncio.shield(done)

    def _commit_queue(self) -> None:
        writes, self._queue = self._queue, []
        self._committing = True
        commit = asyncio.get_running_loop().run_in_executor(self._thread, self._commit, [w.change for w in writes])
        commit.add_done_callback(partial(self._committed, writes))

    def _committed(self, writes: list[_Write], commit: asyncio.Future[None]) -> None:
        failure = commit.exception()
        self._attempted(failure)
        self._committing = False
        if self._queue:
            self._commit_queue()
        now = time.monotonic()
        for write in writes:
            record = write.change.record
            del self._in_flight[record.storage, record.namespace, record.name]
            if failure is not None:
                log.error("a commit failed: %s", failure)
                write.done.set_exception(self._refusal(failure))
                write.done.exception()  # the writer may have gone; then nobody else fetches it
                continue
            shelf = self._shelf(record.storage)
            shelf.apply(write.change)
            shelf.remember(write.change)
            self._forgettable(write.change, now)
            self.revision = record.revision
            for listener in self._listeners.get(record.storage, ()):
                try:
                    listener(write.change)
                except Exception:
                    log.exception("a listener failed on %s %s/%s", record.storage, record.namespace, record.name)
            write.done.set_result(record)
        self._compact_if_due(now)

    def _attempted(self, failure: BaseException | None) -> None:
        self._failure = failure
        self._written = 0.0 if failure else time.monotonic()

    def _refusal(self, failure: BaseException) -> ApiError:
        return ApiError(
            "ServiceUnavailable",
            f"the store could not write: {failure}; nothing of this request was stored. "
            f"Check the free space and the health of the disk that holds {self.directory}, then try again",
            details={"retryAfterSeconds": 1},
        )

    # On the store's thread

    def _commit(self, changes: list[Change]) -> None:
        with _transaction(self._db):
            for i in range(0, len(changes), _ROWS):
                # One statement for many rows: each statement gives the interpreter away, and gets it back late when
                # the event loop is busy.
                some = changes[i : i + _ROWS]
                values = ",".join(["(?,?,?,?,?,?,?)"] * len(some))
                self._db.execute(f"INSERT INTO revisions VALUES {values}", [v for change in some for v in _row(change)])

    def _compact(self, revision: int, dead: list[int]) -> int:
        with _transaction(self._db):
            self._db.executemany("DELETE FROM revisions WHERE revision = ?", [(row,) for row in dead])
            self._db.execute("DELETE FROM compaction")
            self._db.execute("INSERT INTO compaction VALUES (?)", (revision,))
        self.compacted = revision
        return revision

    def _read_changes(self, storage: str, after: int, until: int) -> list[Change]:
        # Checked here and not by the caller: a compaction may be ahead of this call in the thread's queue.
        if after < self.compacted:
            raise ApiError("Expired", f"too old resource version: {after} ({self.compacted})")
        rows = self._db.execute(
            "SELECT r.revision, r.removed, r.namespace, r.name, r.data, p.revision, p.data FROM revisions r"
            " LEFT JOIN revisions p ON p.revision = r.previous"
            " WHERE r.revision > ? AND r.revision <= ? AND r.storage = ? ORDER BY r.revision",
            (after, until, storage),
        )
        changes = []
        for revision, removed, namespace, name, data, old_revision, old_data in rows:
            old = Record(storage, namespace, name, old_revision, old_data) if old_data is not None else None
            changes.append(self._change(Record(storage, namespace, name, revision, data), old, bool(removed)))
        return changes

    # History

    @staticmethod
    def _change(record: Record, previous: Record | None, removed: bool) -> Change:
        return Change("DELETED" if removed else "MODIFIED" if previous else "ADDED", record, previous)

    def _shelf(self, storage: str) -> _Shelf:
        shelf = self._shelves.get(storage)
        if shelf is None:
            shelf = self._shelves[storage] = _Shelf(self.revision)
        return shelf

    def _forgettable(self, change: Change, now: float) -> None:
        dead: tuple[int, ...] = (change.previous.revision,) if change.previous else ()
        if change.type == "DELETED":
            dead += (change.record.revision,)
        self._log.append(_Logged(change.record.revision, now, dead))

    def _compact_if_due(self, now: float) -> None:
        """Forget changes that are too many or too old, a tenth of the limit at a time."""
        if self._compacting is not None or not self._log:
            return
        too_many = len(self._log) > self.keep_changes * 1.1
        too_old = now - self._log[0].time > self.keep_seconds * 1.1
        if too_many or too_old:
            self._start_compaction(now - self.keep_seconds)

    def _start_compaction(self, before: float) -> None:
        dead: list[int] = []
        revision = self.compacted
        while self._log and len(dead) < COMPACTION_STEP:
            if len(self._log) <= self.keep_changes and self._log[0].time > before:
                break
            logged = self._log.popleft()
            revision = logged.revision
            dead.extend(logged.dead)
        self._compacting = asyncio.get_running_loop().run_in_executor(self._thread, self._compact, revision, dead)
        self._compacting.add_done_callback(self._compaction_ended)

    def _compaction_ended(self, compaction: asyncio.Future[int]) -> None:
        self._compacting = None
        self._attempted(compaction.exception())
        if failure := compaction.exception():
            # The rows stay until the next start, which finds them again; nothing depends on their absence.
            log.warning("could not compact the history: %s", failure)

    # Life

    async def _on_thread(self, call: Callable[[], list[Change]]) -> list[Change]:
        return await asyncio.get_running_loop().run_in_executor(self._thread, call)

    async def close(self) -> None:
        """Let what is queued be committed, then close the database."""
        while self._in_flight or self._compacting is not None:
            compaction = [self._compacting] if self._compacting else []
            await asyncio.gather(*self._in_flight.values(), *compaction, return_exceptions=True)
        await asyncio.get_running_loop().run_in_executor(self._thread, self._db.close)
        self._thread.shutdown()


def encode(obj: Obj, revision: int | None) -> bytes:
    """An object as it is stored and sent. apiVersion comes first, so that another version is a matter of a prefix."""
    if revision is not None:
        obj["metadata"]["resourceVersion"] = str(revision)
    data = orjson.dumps({"apiVersion": obj["apiVersion"], "kind": obj["kind"], **obj})
    return bytes(memoryview(data))  # a copy: what orjson returns keeps its working buffer, five times as large


def _row(change: Change) -> tuple[int | str | bytes, ...]:
    record, previous = change.record, change.previous
    removed = change.type == "DELETED"
    address = (record.storage, record.namespace, record.name)
    return (record.revision, previous.revision if previous else 0, removed, *address, record.data)


def _open(path: Path) -> sqlite3.Connection:
    # Used by one thread at a time: the constructor's, then the store's own.
    db = sqlite3.connect(path, isolation_level=None, check_same_thread=False, timeout=1)
    try:
        # Exclusive: this is the lock against a second server, and there is no shared-memory file that a full disk
        # could tear.
        db.execute("PRAGMA locking_mode=EXCLUSIVE")
        db.execute("PRAGMA journal_mode=WAL")
        db.execute("PRAGMA synchronous=FULL")
        db.execute("PRAGMA journal_size_limit=16777216")
        db.executescript(_SCHEMA)
    except sqlite3.OperationalError as error:
        db.close()
        if "locked" in str(error):
            raise RuntimeError(f"{path} is in use by another server: stop it, or use another directory") from error
        raise RuntimeError(f"{path} cannot be opened: {error}") from error
    return db


class _transaction:
    """BEGIN, then COMMIT or ROLLBACK. sqlite3's own context manager leaves a failed COMMIT open."""

    def __init__(self, db: sqlite3.Connection) -> None:
        self._db = db

    def __enter__(self) -> None:
        self._db.execute("BEGIN IMMEDIATE")

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            if kind is None:
                self._db.execute("COMMIT")
        finally:
            if self._db.in_transaction:
                self._db.execute("ROLLBACK")
