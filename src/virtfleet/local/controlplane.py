"""One process that is a Kubernetes control plane: the API server and its controllers, put together.

This is the only place that knows all the parts. Everything in it finds its state on disk, so the process may be killed
at any point and started again.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path

from virtfleet.kube.certificates import RotatingContext
from virtfleet.local.apiserver.bootstrap import Front, NamespaceDefaults, bootstrap
from virtfleet.local.apiserver.extensions import services
from virtfleet.local.apiserver.extensions.admission import Chain
from virtfleet.local.apiserver.extensions.aggregation import Aggregation
from virtfleet.local.apiserver.extensions.policies import Policies
from virtfleet.local.apiserver.extensions.webhooks import Webhooks
from virtfleet.local.apiserver.kinds import builtin
from virtfleet.local.apiserver.kinds.crds import CustomKinds
from virtfleet.local.apiserver.kinds.registry import Kinds
from virtfleet.local.apiserver.objects.inprocess import InProcessApi
from virtfleet.local.apiserver.objects.operations import Operations
from virtfleet.local.apiserver.objects.store import Store
from virtfleet.local.apiserver.rights.escalation import EscalationGuard
from virtfleet.local.apiserver.rights.identity import Identity, listening_context
from virtfleet.local.apiserver.rights.pki import Pki
from virtfleet.local.apiserver.rights.rbac import AggregatedRoles, Authorizer
from virtfleet.local.apiserver.rights.reviews import Reviews
from virtfleet.local.apiserver.rights.tokens import AccountSecrets, ServiceAccountTokens
from virtfleet.local.apiserver.serving.discovery import Discovery
from virtfleet.local.apiserver.serving.http import Server
from virtfleet.local.apiserver.serving.openapi import OpenApi
from virtfleet.local.controllers import all as controllers
from virtfleet.local.controllers.podposts import bind, evict
from virtfleet.local.directory import Settings
from virtfleet.local.identities import LOOPBACK, address_for_pods, cluster_ip, open_pki, server_url
from virtfleet.local.node import network, nodeproxy
from virtfleet.local.node.network import network_of
from virtfleet.local.node.services import ServiceNetwork

log = logging.getLogger(__name__)

RENEWAL_PERIOD = 3600.0  # between looks at the certificates' ages


async def serve(data: Path, settings: Settings) -> None:
    """Run the control plane until cancelled."""
    net, for_pods = network_of(settings), address_for_pods(settings)
    front = Front(cluster_ip(settings), for_pods, settings.port)
    pki = open_pki(data, settings)
    async with AsyncExitStack() as stack:
        store = Store(data / "store")
        stack.push_async_callback(store.close)
        session = await stack.enter_async_context(services.session(store))

        kinds = Kinds()
        builtin.register(kinds, store, services=settings.services)
        authorizer = Authorizer(store)
        tokens = ServiceAccountTokens(store, pki.signing_key)
        operations = Operations(
            store, kinds, Chain(EscalationGuard(authorizer), Policies(store, kinds), Webhooks(store, kinds, session))
        )
        api = InProcessApi(operations)
        custom_kinds = CustomKinds(kinds, operations)
        custom_kinds.load()
        of_pods = {("", "pods", "binding"): partial(bind, api), ("", "pods", "eviction"): partial(evict, api)}
        operations.posts |= Reviews(tokens, authorizer).posts() | of_pods

        server = Server(operations, kinds, Identity(tokens, authorizer), authorizer)
        server.aggregator = aggregation = Aggregation(store, api, session, lambda: pki.front_proxy)
        nodes = nodeproxy.NodeProxy(api, data, settings.name)
        stack.push_async_callback(nodes.close)
        server.connectors |= nodes.connectors()
        for kind in nodeproxy.KINDS:
            kinds.add(kind)
        discovery, openapi = Discovery(kinds, aggregation.extra_groups), OpenApi(kinds)
        server.documents = lambda path: discovery.handler(path) or openapi.handler(path)

        if for_pods != LOOPBACK:
            await network.set_up(net)
        context = RotatingContext(listening_context(pki.serving, pki.authority.bundle))
        bootstrapped = asyncio.Event()

        async def unfinished() -> str:
            return "" if bootstrapped.is_set() else "not ready yet"

        server.ready |= {"bootstrap": unfinished, "store": store.trouble}
        await server.start([(host, settings.port) for host in {LOOPBACK, for_pods}], context.listening)
        stack.push_async_callback(server.stop)
        pki.write_kubeconfig(server_url(settings))
        async with asyncio.TaskGroup() as group:
            await bootstrap(api, pki, front)
            bootstrapped.set()
            log.info("the API server is ready on port %d", settings.port)
            group.create_task(custom_kinds.controller.run())
            group.create_task(aggregation.controller.run())
            group.create_task(AggregatedRoles(store, api).controller.run())
            group.create_task(NamespaceDefaults(store, api, pki.authority.bundle.decode()).controller.run())
            group.create_task(AccountSecrets(store, api, tokens, pki.authority.bundle).controller.run())
            group.create_task(controllers.run(api, kinds, data / "volumes"))
            group.create_task(_renew(pki, context))
            if for_pods != LOOPBACK:
                group.create_task(ServiceNetwork(api, net).run())


async def _renew(pki: Pki, context: RotatingContext) -> None:
    """Serve with a new certificate before the old one ends."""
    while True:
        await asyncio.sleep(RENEWAL_PERIOD)
        pki.renew()
        context.renew(listening_context(pki.serving, pki.authority.bundle))
