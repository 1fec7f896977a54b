"""One process that is a Kubernetes control plane: the API server and its controllers, put together.

This is the only place that knows all the parts. Everything in it finds its state on disk, so the process may be killed
at any point and started again.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import AsyncExitStack
from ipaddress import IPv4Network
from pathlib import Path

from virtfleet.kube.certificates import RotatingContext
from virtfleet.local.apiserver import builtin, services
from virtfleet.local.apiserver.admission import Chain
from virtfleet.local.apiserver.aggregated_roles import AggregatedRoles
from virtfleet.local.apiserver.bootstrap import Front, bootstrap
from virtfleet.local.apiserver.discovery import Discovery
from virtfleet.local.apiserver.escalation import EscalationGuard
from virtfleet.local.apiserver.http import Server
from virtfleet.local.apiserver.identity import Identity, listening_context
from virtfleet.local.apiserver.inprocess import InProcessApi
from virtfleet.local.apiserver.kinds import Kinds
from virtfleet.local.apiserver.namespace_defaults import NamespaceDefaults
from virtfleet.local.apiserver.openapi import OpenApi
from virtfleet.local.apiserver.operations import Operations
from virtfleet.local.apiserver.pki import Pki
from virtfleet.local.apiserver.rbac import Authorizer
from virtfleet.local.apiserver.reviews import Reviews
from virtfleet.local.apiserver.store import Store
from virtfleet.local.apiserver.tokens import ServiceAccountTokens
from virtfleet.local.apiserver.webhooks import Webhooks
from virtfleet.local.directory import Settings

log = logging.getLogger(__name__)

RENEWAL_PERIOD = 3600.0  # between looks at the certificates' ages


async def serve(data: Path, settings: Settings) -> None:
    """Run the control plane until cancelled."""
    service_network = IPv4Network(settings.services)
    front = Front(str(service_network[1]), "127.0.0.1", settings.port)
    pki = Pki(data, hosts=(front.cluster_ip,))
    async with AsyncExitStack() as stack:
        store = Store(data / "store")
        stack.push_async_callback(store.close)
        session = await stack.enter_async_context(services.session(store))
        kinds = Kinds()
        builtin.register(kinds, store, services=settings.services)
        authorizer = Authorizer(store)
        tokens = ServiceAccountTokens(store, pki.signing_keys)
        operations = Operations(store, kinds, Chain(EscalationGuard(authorizer), Webhooks(store, kinds, session)))
        operations.posts |= Reviews(tokens, authorizer).posts()
        operations.posts["", "serviceaccounts", "token"] = tokens.request
        server = Server(operations, kinds, Identity(tokens, authorizer), authorizer)
        discovery, openapi = Discovery(kinds), OpenApi(kinds)
        server.documents = lambda path: discovery.handler(path) or openapi.handler(path)
        api = InProcessApi(operations)

        context = RotatingContext(listening_context(pki.serving, pki.authority.bundle))
        bootstrapped = asyncio.Event()
        server.ready["bootstrap"] = bootstrapped.is_set
        await server.start([("127.0.0.1", settings.port)], context.listening)
        stack.push_async_callback(server.stop)
        pki.write_kubeconfig(f"https://127.0.0.1:{settings.port}")
        await bootstrap(api, pki, front)
        bootstrapped.set()
        log.info("the API server is ready on port %d", settings.port)
        async with asyncio.TaskGroup() as group:
            group.create_task(_renew(pki, context))
            group.create_task(AggregatedRoles(store, api).controller.run())
            group.create_task(NamespaceDefaults(store, api, pki.authority.bundle.decode()).controller.run())


async def _renew(pki: Pki, context: RotatingContext) -> None:
    """Serve with a new certificate before the old one ends."""
    while True:
        await asyncio.sleep(RENEWAL_PERIOD)
        pki.renew()
        context.renew(listening_context(pki.serving, pki.authority.bundle))
