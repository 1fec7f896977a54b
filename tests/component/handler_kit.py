"""An API server in the test's own process that serves our kinds, for tests of the handler."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from virtfleet.api import crds
from virtfleet.kube.resource import CRDS, NAMESPACES
from virtfleet.local.apiserver import builtin
from virtfleet.local.apiserver.crds import CustomKinds
from virtfleet.local.apiserver.inprocess import InProcessApi
from virtfleet.local.apiserver.kinds import Kinds
from virtfleet.local.apiserver.operations import Operations
from virtfleet.local.apiserver.store import Store


@asynccontextmanager
async def api_server(directory: Path) -> AsyncIterator[InProcessApi]:
    store, kinds = Store(directory / "store"), Kinds()
    builtin.register(kinds, store)
    operations = Operations(store, kinds)
    custom = CustomKinds(kinds, operations)
    custom.load()
    following = asyncio.create_task(custom.run())
    api = InProcessApi(operations)
    try:
        await api.create(NAMESPACES, {"metadata": {"name": "default"}})
        for definition in crds.definitions():
            await api.create(CRDS, definition)
        yield api
    finally:
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)
        await store.close()
