"""`python -m virtfleet.handler`: virt-handler, which serves the VMs of one node."""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import socket
import sys
from pathlib import Path

from prometheus_client import REGISTRY

from virtfleet.api import names
from virtfleet.handler.assembly import COMPONENT, Place, VirtHandler
from virtfleet.handler.migration.links import Identity
from virtfleet.handler.migration.proxy import Proxy, dedicated_address
from virtfleet.installation import VMS_PER_NODE
from virtfleet.kube import certificates, component, process

logger = logging.getLogger(__name__)


async def handle(options: argparse.Namespace) -> None:
    place = Place(options.pods, options.kubelet, options.private, options.facts, options.node_root)
    name = f"{component.identity()} {options.pool}".strip()
    async with component.client(COMPONENT, options) as api:
        gateway = f"{api.namespace}:virt-api"
        credential = component.MountedCredential(options.certificates)
        identity, own = Identity(credential.current, f"{api.namespace}:{COMPONENT}"), await dedicated_address()
        proxy = Proxy(identity, own or options.address, host=own, port=options.migration_port, dedicated=bool(own))
        handler = VirtHandler(
            api,
            options.node,
            name,
            place,
            proxy,
            gateway=gateway,
            to_guests=lambda: certificates.for_guests(certificates.read(options.certificates)),
            most_vms=options.max_devices,
            stand_in=names.STAND_IN_VARIABLE in os.environ,
        )
        REGISTRY.register(handler.usage)
        async with asyncio.TaskGroup() as group:
            routes = handler.access.routes()
            server = component.serve(
                options,
                routes,
                lambda: handler.unready() or handler.out_of_touch(),
                clients=component.own_authority,
                configuration=handler.configuration,
                tls=handler.tls,
            )
            serving = group.create_task(server)
            await handler.run()
            serving.cancel()


def main() -> int:
    parser = component.arguments(COMPONENT, __doc__ or "")
    place = Place()
    parser.add_argument("--node", default=os.environ.get("NODE_NAME") or socket.gethostname(), help="name of the Node")
    parser.add_argument(
        "--address", default=os.environ.get("POD_IP", ""), help="where handlers of other nodes reach it"
    )
    parser.add_argument("--migration-port", type=int, default=0, help="port for migrations; 0: any that is free")
    parser.add_argument("--pool", default="", help="the pool that this handler is of")
    parser.add_argument("--max-devices", type=int, default=VMS_PER_NODE, help="most VMs on this node")
    parser.add_argument("--pods", type=Path, default=place.pods, help="the kubelet's directory of Pods")
    parser.add_argument("--kubelet", type=Path, default=place.kubelet, help="the kubelet's directory")
    parser.add_argument("--private", type=Path, default=place.private, help="directory for what must be remembered")
    parser.add_argument("--facts", type=Path, default=place.facts, help="what the launcher image found out")
    parser.add_argument("--node-root", type=Path, default=place.root, help="the node's own root directory")
    options = parser.parse_args()
    component.start_logging(COMPONENT, options)
    if not options.address:
        logger.error("POD_IP is not set: other nodes cannot send VMs here, and migrations to this node fail")
    return process.run(handle(options), process.spawning_loop)


if __name__ == "__main__":
    sys.exit(main())
