"""What the API server knows of a migration's other side, for when its handler cannot be asked.

That a Pod is gone, or is said to have failed, proves nothing: whoever cannot reach a node writes that too. Only the
kubelet of the node writes that a container has ended, and only an administrator that a node is out of service.
"""

from __future__ import annotations

from virtfleet.api import names
from virtfleet.api.migration import VirtualMachineInstanceMigrationState as MigrationState
from virtfleet.api.vmi import VirtualMachineInstance as VMI
from virtfleet.kube.api import KubeApi
from virtfleet.kube.errors import ApiError, is_not_found
from virtfleet.kube.resource import NODES, PODS, Obj, Resource

COMPUTE = "compute"


class Witness:
    """Asks the API server."""

    def __init__(self, api: KubeApi) -> None:
        self._api = api

    async def source_ended(self, vmi: VMI, migration: MigrationState) -> bool:
        """Whether it is certain that nothing of the guest is alive on the source."""
        if migration.source_end_timestamp:
            return True
        pod = await self._get(PODS, migration.source_pod, vmi.metadata.namespace)
        statuses = ((pod or {}).get("status") or {}).get("containerStatuses") or []
        if any(status["name"] == COMPUTE and (status.get("state") or {}).get("terminated") for status in statuses):
            return True
        node = await self._get(NODES, migration.source_node, None)
        taints = ((node or {}).get("spec") or {}).get("taints") or []
        return any(taint["key"] == names.OUT_OF_SERVICE for taint in taints)

    async def image(self, vmi: VMI, pod: str) -> str:
        """The image of a launcher's Pod."""
        known = await self._get(PODS, pod, vmi.metadata.namespace)
        containers = ((known or {}).get("spec") or {}).get("containers") or []
        return next((container.get("image", "") for container in containers if container["name"] == COMPUTE), "")

    async def _get(self, resource: Resource, name: str, namespace: str | None) -> Obj | None:
        if not name:
            return None
        try:
            return await self._api.get(resource, name, namespace)
        except ApiError as error:
            if is_not_found(error):
                return None
            raise
