"""The store: every object of the cluster, durable, with a history that watches and paged lists read from.

The table holds the current revision of every object, whose number is the resourceVersion, and the latest changes. The
same is held in memory as JSON bytes, so reads never touch the disk. Whoever asks for older changes is told to start
over from the present; each commit also removes the rows that nobody can ask for any more.

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
from contextlib import contextmanager
from functools import partial
from itertools import takewhile
from pathlib import Path
from typing import TypeVar

import msgspec
import orjson

from virtfleet.kube.errors import ApiError
from virtfleet.kube.resource import Obj

log = logging.getLogger(__name__)
T = TypeVar("T")

WINDOW = 4000  # changes that are remembered

_ROWS = 100  # per statement
_SURE = 5.0  # seconds for which a write that succeeded says that the next one will

_SCHEMA = """
CREATE TABLE IF NOT EXISTS revisions (
    revision INTEGER PRIMARY KEY, previous INTEGER NOT NULL, removed INTEGER NOT NULL,
    storage TEXT NOT NULL, namespace TEXT NOT NULL, name TEXT NOT NULL, data BLOB NOT NULL);
CREATE TABLE IF NOT EXISTS compaction (revision INTEGER NOT NULL);
INSERT INTO compaction SELECT 0 WHERE NOT EXISTS (SELECT * FROM compaction);
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


_Write = tuple[Change, "asyncio.Future[Record]"]  # and what its writer waits for


class Stale(Exception):
    """The object is not any more what the writer started from: wait for `settled`, read again, try again."""


class _Shelf:
    """All objects of one storage, their order, and the latest changes."""

    __slots__ = ("changes", "keys", "records")

    def __init__(self) -> None:
        self.records: dict[tuple[str, str], Record] = {}
        self.keys: list[tuple[str, str]] = []
        self.changes: deque[Change] = deque()

    def apply(self, change: Change) -> None:
        """Make the change the present."""
        record = change.record
        key = (record.namespace, record.name)
        if change.type == "DELETED":
            del self.records[key]
            del self.keys[bisect_left(self.keys, key)]
        else:
            if change.previous is None:
                insort(self.keys, key)
            self.records[key] = record


class Store:
    """Opens (or makes) the database under `directory`; only one process can have it open."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._db = _open(directory / "store.db")
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="store")
        self._shelves: dict[str, _Shelf] = {}
        self._latest: deque[_Shelf] = deque()  # where the latest changes are, oldest first
        self._dead: list[int] = []  # rows that the next commit removes
        self._listeners: dict[str, list[Callable[[Change], None]]] = {}
        self._queue: list[_Write] = []
        self._in_flight: dict[tuple[str, str, str], asyncio.Future[Record]] = {}
        self._committing = False
        self._failure: BaseException | None = None  # of the last attempt to write
        self._written = 0.0  # when the last one succeeded
        # The newest change that is not remembered; none of them is 0, which means "any" to clients.
        self.compacted = max(1, self._db.execute("SELECT max(revision) FROM compaction").fetchone()[0])
        self.revision = self.compacted  # of the last commit
        self._load()
        self._assigned = self.revision

    def _load(self) -> None:
        rows = self._db.execute("SELECT revision, removed, storage, namespace, name, data FROM revisions ORDER BY 1")
        for revision, removed, storage, namespace, name, data in rows:
            record = Record(sys.intern(storage), sys.intern(namespace), name, revision, data)
            self._apply(_change(record, self.get(storage, namespace, name), bool(removed)))

    def _apply(self, change: Change) -> None:
        """Make a change the present, and forget the oldest where there are too many."""
        shelf = self._shelves.setdefault(change.record.storage, _Shelf())
        shelf.apply(change)
        self.revision = max(self.revision, change.record.revision)
        if change.record.revision > self.compacted:
            shelf.changes.append(change)
            self._latest.append(shelf)
        if len(self._latest) > WINDOW:
            forgotten = self._latest.popleft().changes.popleft()
            self.compacted = forgotten.record.revision
            if forgotten.previous:
                self._dead.append(forgotten.previous.revision)
            if forgotten.type == "DELETED":
                self._dead.append(forgotten.record.revision)

    # Reading

    def get(self, storage: str, namespace: str, name: str) -> Record | None:
        """The object as it is."""
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

    def read(self, storage: str, namespace: str, name: str) -> Obj | None:
        """The object as it is, decoded."""
        record = self.get(storage, namespace, name)
        return orjson.loads(record.data) if record else None

    def objects(self, storage: str, namespace: str | None = None) -> list[Obj]:
        """Every object of a storage (and namespace), decoded."""
        return [orjson.loads(record.data) for record in self.scan(storage, namespace)]

    def since(self, storage: str, revision: int) -> list[Change]:
        """Every change after `revision`; Expired if they are not remembered."""
        if revision < self.compacted:
            raise ApiError("Expired", f"too old resource version: {revision} ({self.compacted})")
        changes = reversed(self._shelves[storage].changes) if storage in self._shelves else ()
        return list(takewhile(lambda change: change.record.revision > revision, changes))[::-1]

    def listen(self, storage: str, listener: Callable[[Change], None]) -> None:
        """Call `listener` on the event loop for every change, after its commit and before the writer's answer."""
        self._listeners.setdefault(storage, []).append(listener)

    def follow(self, storage: str, listener: Callable[[Change], None]) -> None:
        """The same, beginning with every object that there is already."""
        for record in self.scan(storage):
            listener(_change(record, None, removed=False))
        self.listen(storage, listener)

    # Writing

    async def trouble(self) -> str:
        """Why nothing can be written, if so: found out by writing, unless somebody did so just now."""
        if time.monotonic() - self._written > _SURE:
            attempt = asyncio.get_running_loop().run_in_executor(self._thread, self._commit, [], [], self.compacted)
            await asyncio.wait([attempt])
            self._attempted(attempt.exception())
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
        self._queue.append((_change(record, base, remove), done))
        if not self._committing:
            self._commit_queue()
        return await asyncio.shield(done)

    def _commit_queue(self) -> None:
        writes, self._queue = self._queue, []
        self._committing = True
        changes, dead = [change for change, _ in writes], list(self._dead)
        commit = asyncio.get_running_loop().run_in_executor(self._thread, self._commit, changes, dead, self.compacted)
        commit.add_done_callback(partial(self._committed, writes, len(dead)))

    def _committed(self, writes: list[_Write], dead: int, commit: asyncio.Future[None]) -> None:
        failure = commit.exception()
        self._attempted(failure)
        self._committing = False
        if failure is None:
            del self._dead[:dead]
        if self._queue:
            self._commit_queue()
        for change, done in writes:
            record = change.record
            del self._in_flight[record.storage, record.namespace, record.name]
            if failure is not None:
                log.error("a commit failed: %s", failure)
                done.set_exception(self._refusal(failure))
                done.exception()  # the writer may have gone; then nobody else fetches it
                continue
            self._apply(change)
            for listener in self._listeners.get(record.storage, ()):
                try:
                    listener(change)
                except Exception:
                    log.exception("a listener failed on %s %s/%s", record.storage, record.namespace, record.name)
            done.set_result(record)

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

    def _commit(self, changes: list[Change], dead: list[int], compacted: int) -> None:
        with _transaction(self._db):
            # One statement for many rows: each statement gives the interpreter away, and gets it back late when the
            # event loop is busy.
            for some in _portions(changes):
                rows = ",".join(["(?,?,?,?,?,?,?)"] * len(some))
                self._db.execute(f"INSERT INTO revisions VALUES {rows}", [v for change in some for v in _row(change)])
            for rest in _portions(dead):
                self._db.execute(f"DELETE FROM revisions WHERE revision IN ({','.join('?' * len(rest))})", rest)
            if dead or not changes:
                # Removed and put back: where nothing is different an update writes nothing, and shows nothing.
                self._db.execute("DELETE FROM compaction")
                self._db.execute("INSERT INTO compaction VALUES (?)", (compacted,))

    # Life

    async def close(self) -> None:
        """Let what is queued be committed, then close the database."""
        while self._in_flight:
            await asyncio.gather(*self._in_flight.values(), return_exceptions=True)
        await asyncio.get_running_loop().run_in_executor(self._thread, self._db.close)
        self._thread.shutdown()


def encode(obj: Obj, revision: int | None) -> bytes:
    """An object as it is stored and sent. apiVersion comes first, so that another version is a matter of a prefix."""
    if revision is not None:
        obj["metadata"]["resourceVersion"] = str(revision)
    data = orjson.dumps({"apiVersion": obj["apiVersion"], "kind": obj["kind"], **obj})
    return bytes(memoryview(data))  # a copy: what orjson returns keeps its working buffer, five times as large


def _change(record: Record, previous: Record | None, removed: bool) -> Change:
    return Change("DELETED" if removed else "MODIFIED" if previous else "ADDED", record, previous)


def _row(change: Change) -> tuple[int | str | bytes, ...]:
    record, previous = change.record, change.previous
    removed = change.type == "DELETED"
    address = (record.storage, record.namespace, record.name)
    return (record.revision, previous.revision if previous else 0, removed, *address, record.data)


def _portions(values: list[T]) -> Iterator[list[T]]:
    return (values[i : i + _ROWS] for i in range(0, len(values), _ROWS))


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


@contextmanager
def _transaction(db: sqlite3.Connection) -> Iterator[None]:
    """BEGIN, then COMMIT or ROLLBACK. sqlite3's own context manager leaves a failed COMMIT open."""
    db.execute("BEGIN IMMEDIATE")
    try:
        yield
        db.execute("COMMIT")
    finally:
        if db.in_transaction:
            db.execute("ROLLBACK")
