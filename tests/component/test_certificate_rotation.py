"""A whole rotation of the authority under continuous traffic: no connection is refused, and the old CA is forgotten."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import aiohttp
import pytest
import uvloop
from aiohttp import web
from cryptography import x509

from virtfleet.kube import certificates
from virtfleet.kube.authority import Authority, Lifespan, Profile
from virtfleet.kube.certificates import Credential

MINUTE = timedelta(minutes=1)
CA = Lifespan(60 * MINUTE, 40 * MINUTE)
LEAF = Lifespan(30 * MINUTE, 5 * MINUTE)
SERVER = Profile("server", LEAF, hosts=("127.0.0.1",))
CLIENT = Profile("client", LEAF, client=True)

LOOPS = pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])


async def issuer(request: web.Request) -> web.Response:
    assert request.transport is not None
    peer = request.transport.get_extra_info("ssl_object").getpeercert(binary_form=True)
    return web.Response(text=x509.load_der_x509_certificate(peer).issuer.rfc4514_string())


async def serve(context: ssl.SSLContext) -> tuple[web.AppRunner, str]:
    app = web.Application()
    app.router.add_get("/", issuer)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context)
    await site.start()
    host, port = runner.addresses[0][:2]
    return runner, f"https://{host}:{port}/"


async def call(url: str, client: Credential) -> str:
    """One request on a connection of its own; answers who signed the client as the server saw it."""
    context = certificates.client_context(client.bundle, client)
    async with (
        aiohttp.ClientSession(connector=aiohttp.TCPConnector(force_close=True)) as session,
        session.get(url, ssl=context) as answer,
    ):
        return await answer.text()


@pytest.mark.slow
@LOOPS
def test_no_connection_is_refused_while_the_authority_is_replaced(
    new_loop: Callable[[], asyncio.AbstractEventLoop],
) -> None:
    async def scenario() -> None:
        # The steps of a rotation, at moments that all lie inside the certificates' real validity.
        real = datetime.now(UTC)
        born, announced, settled = real - 40 * MINUTE, real - 20 * MINUTE, real - 10 * MINUTE
        authority = Authority.create("ca", CA, born)
        fresh = authority.issue(SERVER, announced - MINUTE), authority.issue(CLIENT, announced - MINUTE)
        stale, oldest = fresh, fresh[1]

        def context(server: Credential) -> ssl.SSLContext:
            return certificates.server_context(server, clients=server.bundle, required=True)

        rotating = certificates.RotatingContext(context(fresh[0]))
        runner, url = await serve(rotating.listening)
        done = asyncio.Event()
        calls = [0, 0]

        async def traffic(mine: int, which: Callable[[], Credential]) -> None:
            while not done.is_set():
                await call(url, which())
                calls[mine] += 1

        async def some_traffic() -> None:
            enough = [n + 4 for n in calls]
            while any(have < want for have, want in zip(calls, enough, strict=True)):
                await asyncio.wait(workers, timeout=0.005)
                for worker in workers:
                    if worker.done():
                        worker.result()

        workers = [asyncio.create_task(traffic(0, lambda: fresh[1])), asyncio.create_task(traffic(1, lambda: stale[1]))]
        first = await call(url, fresh[1])
        for moment in (announced, settled, settled + MINUTE):
            authority = authority.rotated(moment)
            stale = fresh
            await some_traffic()  # the slower peer is never more than one step behind: that is what settling is for
            fresh = authority.ensure(fresh[0], SERVER, moment), authority.ensure(fresh[1], CLIENT, moment)
            rotating.renew(context(fresh[0]))
            await some_traffic()
        assert await call(url, fresh[1]) != first, "the client's certificate is of the new authority now"

        # When the old authority has expired it is forgotten, by the same listener.
        authority = authority.rotated(born + CA.lifetime)
        rotating.renew(context(authority.ensure(fresh[0], SERVER, settled)))
        await call(url, fresh[1])
        with pytest.raises(aiohttp.ClientError):
            await call(url, Credential(oldest.certificate, oldest.key, authority.bundle))

        done.set()
        await asyncio.gather(*workers, return_exceptions=True)
        await runner.cleanup()

    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(asyncio.wait_for(scenario(), 60))
