"""What every component has at its edges: the same flags, and an HTTPS server with health, metrics and its own routes.

The operator mounts each component's certificate and replaces it in time; the server takes a new one up without refusing
a connection.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
from collections.abc import Callable, Sequence
from pathlib import Path

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from virtfleet.kube import certificates, process
from virtfleet.kube.certificates import Credential, RotatingContext

log = logging.getLogger(__name__)

PORT = 8443
CERTIFICATES = Path("/etc/virtfleet/certificates")
BODY_LIMIT = 8 << 20  # an AdmissionReview holds an object twice, at up to 3 MiB each
CERTIFICATE_PERIOD = 5.0  # between looks at the mounted certificate
DEBUG_VERBOSITY = 3


class NoCertificate(Exception):
    """The directory holds no certificate, or one whose key is another's."""


def arguments(name: str, description: str) -> argparse.ArgumentParser:
    """The flags that all components understand."""
    parser = argparse.ArgumentParser(prog=name, description=description)
    parser.add_argument("--kubeconfig", type=Path, help="how to reach the API server; in a pod, its service account")
    parser.add_argument("--certificates", type=Path, default=CERTIFICATES, help="the directory of tls.crt and tls.key")
    parser.add_argument("--host", default="0.0.0.0", help="the address to listen on")
    parser.add_argument("--port", type=int, default=PORT, help="the port to listen on")
    parser.add_argument("--verbosity", type=int, default=2, help=f"{DEBUG_VERBOSITY} and more: debug messages too")
    return parser


def log_as_told(name: str, options: argparse.Namespace) -> None:
    process.log_as_json(name, "DEBUG" if options.verbosity >= DEBUG_VERBOSITY else "INFO")


async def serve(
    options: argparse.Namespace, routes: Sequence[web.RouteDef] = (), unready: Callable[[], str] = lambda: ""
) -> None:
    """Serve /healthz, /readyz, /metrics and `routes` until cancelled. `unready` says why the component is not ready."""

    async def healthz(_: web.Request) -> web.Response:
        return web.Response(text="ok")

    async def readyz(_: web.Request) -> web.Response:
        why = unready()
        return web.Response(text=why or "ok", status=503 if why else 200)

    async def metrics(_: web.Request) -> web.Response:
        return web.Response(body=generate_latest(), headers={"Content-Type": CONTENT_TYPE_LATEST})

    app = web.Application(client_max_size=BODY_LIMIT)
    app.add_routes([web.get("/healthz", healthz), web.get("/readyz", readyz), web.get("/metrics", metrics), *routes])
    present = _credential(options.certificates)
    context = RotatingContext(certificates.server_context(present))
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=5.0)
    await runner.setup()
    try:
        await web.TCPSite(runner, options.host, options.port, ssl_context=context.listening, backlog=1024).start()
        log.info("listening on port %d", options.port)
        while True:
            await asyncio.sleep(CERTIFICATE_PERIOD)
            present = _renewed(options.certificates, present, context)
    finally:
        await runner.cleanup()


def _credential(directory: Path) -> Credential:
    found = Credential.of(certificates.read(directory))
    if found is None:
        raise NoCertificate(f"{directory} holds no certificate with its key; the operator's Secret belongs there")
    return found


def _renewed(directory: Path, present: Credential, context: RotatingContext) -> Credential:
    """Use the certificate that is mounted now. A broken one is passed over: the present one may still be good."""
    try:
        mounted = _credential(directory)
    except (NoCertificate, OSError) as error:
        log.error("%s", error)
        return present
    if mounted != present:
        context.renew(certificates.server_context(mounted))
        log.info("the certificate was renewed")
    return mounted
