"""`python -m virtfleet.controller`: virt-controller. Several may run; one of them leads, the others wait."""

from __future__ import annotations

import argparse
import asyncio
import sys

from prometheus_client import REGISTRY

from virtfleet.api.tlsrules import rules
from virtfleet.controller.assembly import VirtController
from virtfleet.controller.datavolumes.controller import Clients
from virtfleet.controller.metrics import LEADING
from virtfleet.controller.shared import COMPONENT
from virtfleet.installation import Installation, in_force, version_of
from virtfleet.kube import component, process
from virtfleet.kube.cache import Cache
from virtfleet.kube.election import Election
from virtfleet.kube.resource import KUBEVIRTS


async def control(options: argparse.Namespace) -> None:
    identity = component.identity()
    async with component.client(COMPONENT, options) as api, asyncio.TaskGroup() as group:
        # Those who wait follow the configuration, too: who wants to know whether it has arrived asks all of them.
        installations = Cache(api, KUBEVIRTS, decode=Installation.decode)
        following = group.create_task(installations.run())

        credential = component.MountedCredential(options.certificates)

        def uploaders() -> Clients:
            """virt-api, of the same authority."""
            return Clients(credential.current().bundle.decode(), f"{api.namespace}:virt-api")

        async def lead() -> None:
            controller = VirtController(api, identity, followed=installations, clients=uploaders)
            REGISTRY.register(controller.metrics)
            LEADING.set(1)
            await controller.run()

        election = Election(api, namespace=api.namespace, name=COMPONENT, identity=identity)
        serving = component.serve(
            options,
            configuration=lambda: version_of(installations.list()),
            tls=lambda: rules(in_force(installations.list()).configuration.tls_configuration),
        )
        await component.serve_and_lead(serving, election, lead)
        following.cancel()


def main() -> int:
    options = component.arguments(COMPONENT, __doc__ or "").parse_args()
    component.start_logging(COMPONENT, options)
    return process.run(control(options))


if __name__ == "__main__":
    sys.exit(main())
