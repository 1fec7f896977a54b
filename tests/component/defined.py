"""Stores in which VirtFleet's kinds are defined already: one is made in each process, and tests have copies of it."""

from __future__ import annotations

import asyncio
import tempfile
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path

from virtfleet.api import crds
from virtfleet.kube.resource import CRDS, NAMESPACES
from virtfleet.local.apiserver.kinds import builtin
from virtfleet.local.apiserver.kinds.registry import Kinds
from virtfleet.local.apiserver.objects.inprocess import InProcessApi
from virtfleet.local.apiserver.objects.operations import Operations
from virtfleet.local.apiserver.objects.store import Store


def define(directory: Path) -> None:
    """Lay a store down that has the namespace `default` and every definition, as if a server had been there before."""
    directory.mkdir(parents=True, mode=0o700)
    (directory / "store.db").write_bytes(_database())


@cache
def _database() -> bytes:
    with tempfile.TemporaryDirectory(prefix="vfd") as directory, ThreadPoolExecutor(1) as thread:
        # Of a thread: who asks runs in an event loop, and this one needs its own.
        thread.submit(asyncio.run, _make(Path(directory))).result()
        return Path(directory, "store.db").read_bytes()


async def _make(directory: Path) -> None:
    store, kinds = Store(directory), Kinds()
    builtin.register(kinds, store)
    api = InProcessApi(Operations(store, kinds))
    await api.create(NAMESPACES, {"metadata": {"name": "default"}})
    for definition in crds.definitions():
        await api.create(CRDS, definition)
    await store.close()
