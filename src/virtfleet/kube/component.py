"""What every component has at its edges: the same flags, and an HTTPS server with health, metrics and its own routes.

The operator mounts each component's certificate and replaces it in time; the server takes a new one up without refusing
a connection. A server may ask its clients for certificates: those are optional, since probes, metrics and webhooks come
without, but one that is presented has to be of an authority that the server trusts, or there is no connection at all.
Routes learn from `kube.peers` who called.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import math
import os
import socket
import ssl
import time
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST, Counter, generate_latest

import virtfleet
from virtfleet.api.tlsrules import TlsRules
from virtfleet.kube import certificates, config, process
from virtfleet.kube.certificates import Credential, RotatingContext
from virtfleet.kube.client import Client
from virtfleet.kube.election import Election
from virtfleet.work import tasks

log = logging.getLogger(__name__)

PORT = 8443
CERTIFICATES = Path("/etc/virtfleet/certificates")
# A file beside virt-api's certificate, and a part of the paths of its admission webhooks. API servers come without a
# certificate there; that they know the path is what tells them from anybody else on the network.
ADMISSION_KEY = "admission-key"
EVICTION = "evict"  # the webhook for evictions of launchers
BODY_LIMIT = 8 << 20  # an AdmissionReview holds an object twice, at up to 3 MiB each
CERTIFICATE_PERIOD = 5.0  # between looks at the mounted certificate
LISTENER_PERIOD = 1.0  # between looks at the authorities of clients, which are in memory
FAREWELL = 5.0  # seconds in which a cluster learns that a Pod which ends is no longer to be asked
DEBUG_VERBOSITY = 3
TASK_FAILURES = Counter("kubevirt_task_failures", "Background tasks that an unexpected error ended", ["task"])
tasks.witnesses.append(lambda task: TASK_FAILURES.labels(task).inc())


class NoCertificate(Exception):
    """The directory holds no certificate, or one whose key is another's."""


def admission_path(key: str, webhook: str) -> str:
    return f"/admission/{key}/{webhook}"


def arguments(name: str, description: str) -> argparse.ArgumentParser:
    """The flags that all components understand."""
    parser = argparse.ArgumentParser(prog=name, description=description)
    parser.add_argument("--kubeconfig", type=Path, help="how to reach the API server; in a pod, its service account")
    parser.add_argument("--certificates", type=Path, default=CERTIFICATES, help="the directory of tls.crt and tls.key")
    parser.add_argument("--host", default="0.0.0.0", help="the address to listen on")
    parser.add_argument("--port", type=int, default=PORT, help="the port to listen on")
    parser.add_argument("--verbosity", type=int, default=0, help=f"{DEBUG_VERBOSITY} and more: debug messages too")
    return parser


def client(name: str, options: argparse.Namespace) -> Client:
    """The component's way to the API server."""
    return Client(config.load(options.kubeconfig), user_agent=f"{name}/{virtfleet.__version__}")


async def serve_and_lead(
    serving: Coroutine[Any, Any, None], election: Election, lead: Callable[[], Coroutine[Any, Any, None]]
) -> None:
    """`serve`, and `lead` as soon as it is this process's turn; until that ends."""
    async with asyncio.TaskGroup() as group:
        answering = group.create_task(serving)
        await election.run(lead)
        answering.cancel()


def identity() -> str:
    """Who this process is among its likes."""
    return os.environ.get("POD_NAME") or socket.gethostname()


def start_logging(name: str, options: argparse.Namespace) -> None:
    Path("/proc/self/comm").write_text(name)  # by which people look for it, rather than by Python's
    process.log_as_json(name, "DEBUG" if options.verbosity >= DEBUG_VERBOSITY else "INFO")


class MountedCredential:
    """The certificate that the operator mounts, as it is now; before there is one, `otherwise`."""

    def __init__(self, directory: Path, otherwise: Credential | None = None) -> None:
        self._directory = directory
        self._otherwise = otherwise
        self._present = otherwise or _read(directory)
        self._looked = -math.inf if otherwise else time.monotonic()

    def current(self) -> Credential:
        """A broken one is passed over: the one before may still be good."""
        if time.monotonic() - self._looked >= CERTIFICATE_PERIOD:
            self._looked = time.monotonic()
            try:
                mounted = _read(self._directory)
                # The same object while nothing changed, so that what is made of it can be kept.
                self._present = self._present if mounted == self._present else mounted
            except (NoCertificate, OSError) as error:
                if self._present is not self._otherwise:
                    log.error("%s", error)
        return self._present


def _read(directory: Path) -> Credential:
    credential = Credential.of(certificates.read(directory))
    if credential is None:
        raise NoCertificate(f"{directory} holds no certificate with its key; the operator's Secret belongs there")
    return credential


# From a component's own credential to the authorities (PEM) that certificates of its clients must be of.
ClientAuthorities = Callable[[Credential], bytes]


def own_authority(credential: Credential) -> bytes:
    """Clients are components of the same installation."""
    return credential.bundle


async def serve(
    options: argparse.Namespace,
    routes: Sequence[web.RouteDef] = (),
    unready: Callable[[], str] = lambda: "",
    clients: ClientAuthorities | None = None,
    farewell: float = 0.0,
    configuration: Callable[[], str] = lambda: "",
    tls: Callable[[], TlsRules] = TlsRules,
    mounted: MountedCredential | None = None,
    more_ports: Sequence[int] = (),
) -> None:
    """Serve /livez, /healthz, /readyz, /metrics and `routes` until cancelled.

    `unready` says why the component is not ready, `configuration` which version of the KubeVirt object it goes by:
    KubeVirt's tools read that in /healthz, some of them with one slash more.

    With `clients`, callers are asked for certificates; it is called often, and what it answers counts from then on. So
    is `tls`, for versions and ciphers.
    For `farewell` seconds after it was cancelled the server says that it is not ready, answers all the same, and lets
    no connection live longer than its answer: requests go on coming until everybody knows that the Pod ends.
    """
    ending = False

    async def livez(_: web.Request) -> web.Response:
        return web.Response(text="ok")

    async def healthz(_: web.Request) -> web.Response:
        return web.json_response({"config-resource-version": configuration()})

    async def readyz(_: web.Request) -> web.Response:
        why = "it is told to end" if ending else unready()
        return web.Response(text=why or "ok", status=503 if why else 200)

    async def metrics(_: web.Request) -> web.Response:
        return web.Response(body=generate_latest(), headers={"Content-Type": CONTENT_TYPE_LATEST})

    async def last_answer(_: web.Request, response: web.StreamResponse) -> None:
        if ending:
            response.force_close()
            response.headers["Connection"] = "close"

    app = web.Application(client_max_size=BODY_LIMIT)
    app.on_response_prepare.append(last_answer)
    answers = {"/livez": livez, "/healthz": healthz, "//healthz": healthz, "/readyz": readyz, "/metrics": metrics}
    app.add_routes([*(web.get(path, answer) for path, answer in answers.items()), *routes])
    listener = _Listener(mounted or MountedCredential(options.certificates), clients, tls)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=5.0)
    await runner.setup()
    try:
        context = listener.context.listening
        for port in (options.port, *more_ports):
            await web.TCPSite(runner, options.host, port, ssl_context=context, backlog=1024).start()
            log.info("listening on port %d", port)
        while True:
            await asyncio.sleep(LISTENER_PERIOD)
            listener.renew()
    except asyncio.CancelledError:
        ending = True
        await asyncio.sleep(farewell)
        raise
    finally:
        await runner.cleanup()


class _Listener:
    """The TLS side of the server: its own certificate and the authorities of its clients, as both are now."""

    def __init__(
        self, mounted: MountedCredential, clients: ClientAuthorities | None, tls: Callable[[], TlsRules]
    ) -> None:
        self._mounted = mounted
        self._clients = clients
        self._tls = tls
        self._used = self._wanted()
        self.context = RotatingContext(self._made())

    def renew(self) -> None:
        wanted = self._wanted()
        if wanted == self._used:
            return
        previous, self._used = self._used, wanted
        try:
            self.context.renew(self._made())
            log.info("the certificate, the authorities of clients or the rules of TLS were renewed")
        except (ssl.SSLError, ValueError) as error:
            self._used = previous
            log.error(
                "kept the certificate and the authorities of clients that were in use, and the rules of TLS: %s", error
            )

    def _wanted(self) -> tuple[Credential, bytes | None, TlsRules]:
        credential = self._mounted.current()
        return credential, self._clients(credential) if self._clients else None, self._tls()

    def _made(self) -> ssl.SSLContext:
        credential, clients, tls = self._used
        context = certificates.server_context(credential, clients=clients)
        tls.apply(context)
        return context
