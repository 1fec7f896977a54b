"""The gateway's HTTPS server: admission webhooks and health, with a certificate that may be replaced at any time."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path

from aiohttp import web

from virtfleet.kube import certificates
from virtfleet.kube.certificates import Credential, RotatingContext

log = logging.getLogger(__name__)

BODY_LIMIT = 8 << 20  # an AdmissionReview holds an object twice, at up to 3 MiB each
CERTIFICATE_PERIOD = 5.0  # between looks at the mounted certificate


class NoCertificate(Exception):
    """The directory holds no certificate, or one whose key is another's."""


def credential(directory: Path) -> Credential:
    found = Credential.of(certificates.read(directory))
    if found is None:
        raise NoCertificate(
            f"{directory} holds no certificate with its key; the operator's Secret should be mounted there"
        )
    return found


async def serve(
    routes: list[web.RouteDef], directory: Path, port: int, ready: Callable[[], str], host: str = "0.0.0.0"
) -> None:
    """Serve until cancelled. `ready` says why the gateway is not ready, or nothing."""

    async def healthz(_: web.Request) -> web.Response:
        return web.Response(text="ok")

    async def readyz(_: web.Request) -> web.Response:
        why = ready()
        return web.Response(text=why or "ok", status=503 if why else 200)

    app = web.Application(client_max_size=BODY_LIMIT)
    app.add_routes([*routes, web.get("/healthz", healthz), web.get("/readyz", readyz)])
    present = credential(directory)
    context = RotatingContext(certificates.server_context(present))
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=5.0)
    await runner.setup()
    try:
        await web.TCPSite(runner, host, port, ssl_context=context.listening, backlog=1024).start()
        log.info("listening on port %d", port)
        while True:
            await asyncio.sleep(CERTIFICATE_PERIOD)
            present = _renewed(directory, present, context)
    finally:
        await runner.cleanup()


def _renewed(directory: Path, present: Credential, context: RotatingContext) -> Credential:
    """Use the certificate that is mounted now. A broken one is passed over: the present one may still be good."""
    try:
        mounted = credential(directory)
    except (NoCertificate, OSError) as error:
        log.error("%s", error)
        return present
    if mounted != present:
        context.renew(certificates.server_context(mounted))
        log.info("the certificate was renewed")
    return mounted
