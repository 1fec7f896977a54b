"""The API server that bench/apiserver.py measures, in a process of its own: `python -m bench.apiserver_process DIR N`.

N is the port; the one above it is a bare aiohttp handler's, for comparison.

TLS and the built-in kinds as in the product; authentication and authorization let everyone in, because they are not
what is measured. `/bare` stands for an aiohttp handler without any of it.
"""

from __future__ import annotations

import asyncio
import signal
import sys
from datetime import timedelta
from pathlib import Path

import uvloop
from aiohttp import web

from virtfleet.kube.authority import Authority, Lifespan, Profile
from virtfleet.kube.certificates import server_context
from virtfleet.local.apiserver.kinds import builtin
from virtfleet.local.apiserver.kinds.registry import Kinds
from virtfleet.local.apiserver.objects.operations import Operations
from virtfleet.local.apiserver.objects.store import Store
from virtfleet.local.apiserver.rights.access import MASTER, User
from virtfleet.local.apiserver.serving.http import Server

BARE_ANSWER = b"x" * 4096


async def serve(directory: Path, port: int) -> None:
    lifespan = Lifespan(timedelta(days=1), timedelta(hours=1))
    authority = Authority.create("bench", lifespan)
    context = server_context(authority.issue(Profile("bench", lifespan, hosts=("127.0.0.1",))))

    async def everyone(request: web.Request) -> User:
        return MASTER

    async def bare(request: web.Request) -> web.Response:
        return web.Response(body=BARE_ANSWER, content_type="application/json")

    store = Store(directory)
    kinds = Kinds()
    builtin.register(kinds, store)
    server = Server(Operations(store, kinds), kinds, everyone, lambda asked: True)
    await server.start([("127.0.0.1", port)], context)
    app = web.Application()
    app.router.add_get("/bare", bare)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", port + 1, ssl_context=context).start()
    stopped = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopped.set)
    await stopped.wait()
    await server.stop()
    await runner.cleanup()
    await store.close()


if __name__ == "__main__":
    uvloop.run(serve(Path(sys.argv[1]), int(sys.argv[2])))
