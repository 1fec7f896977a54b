"""Taking an installation away: VMs first, as far as that is wanted, then the components, then the record of it all."""

from __future__ import annotations

import logging

from virtfleet.api import names
from virtfleet.kube.api import KubeApi
from virtfleet.kube.errors import ApiError, is_not_found
from virtfleet.kube.resource import KUBEVIRTS, VMI_REPLICA_SETS, VMIS, VMS, Obj
from virtfleet.operator.conditions import DELETED, DELETING
from virtfleet.operator.render import OWN_DEFINITION
from virtfleet.operator.world import INSTALLED, World

logger = logging.getLogger(__name__)

BLOCK = "BlockUninstallIfWorkloadsExist"
WAIT = 2.0
"""Seconds between two looks at what is going away."""


class Uninstall:
    """One step at a time; the answer of `step` is when to take the next one."""

    def __init__(self, api: KubeApi, world: World) -> None:
        self._api = api
        self._world = world

    async def step(self, kubevirt: Obj) -> float | None:
        if names.OPERATOR_FINALIZER not in (kubevirt["metadata"].get("finalizers") or ()):
            return None
        await self._tell(kubevirt, DELETING)
        if await self._workloads_exist():
            if (kubevirt.get("spec") or {}).get("uninstallStrategy") == BLOCK:
                logger.info("VMs exist and the uninstall strategy is %s: waiting for them to go", BLOCK)
            else:
                await self._remove_workloads()
            return WAIT
        if await self._remove_components():
            return WAIT
        await self._tell(kubevirt, DELETED)
        await self._let_go(kubevirt)
        return None

    async def _workloads_exist(self) -> bool:
        for resource in (VMS, VMI_REPLICA_SETS, VMIS):
            try:
                if await self._api.list(resource):
                    return True
            except ApiError as error:
                if not is_not_found(error):  # the kind is gone already
                    raise
        return False

    async def _remove_workloads(self) -> None:
        """VMs before their instances, so that nobody starts these again."""
        for resource in (VMS, VMI_REPLICA_SETS, VMIS):
            for obj in await self._api.list(resource):
                meta = obj["metadata"]
                if not meta.get("deletionTimestamp"):
                    await self._api.delete(resource, meta["name"], meta["namespace"], uid=meta["uid"])

    async def _remove_components(self) -> bool:
        """Delete what is installed, kind by kind; True while something is left."""
        for resource in INSTALLED:
            objects = self._world.installed[resource.kind].list()
            left = [obj for obj in objects if obj["metadata"]["name"] != OWN_DEFINITION]
            for obj in left:
                meta = obj["metadata"]
                if not meta.get("deletionTimestamp"):
                    try:
                        await self._api.delete(resource, meta["name"], meta.get("namespace"), uid=meta["uid"])
                    except ApiError as error:
                        if not is_not_found(error):
                            raise
            if left:
                return True
        return False

    async def _tell(self, kubevirt: Obj, phase: str) -> None:
        meta = kubevirt["metadata"]
        if (kubevirt.get("status") or {}).get("phase") != phase:
            status = {"status": {"phase": phase}}
            stored = await self._api.patch(KUBEVIRTS, meta["name"], status, meta["namespace"], subresource="status")
            self._world.kubevirts.observe(stored)

    async def _let_go(self, kubevirt: Obj) -> None:
        meta = kubevirt["metadata"]
        left = [f for f in meta["finalizers"] if f != names.OPERATOR_FINALIZER]
        await self._api.patch(KUBEVIRTS, meta["name"], {"metadata": {"finalizers": left or None}}, meta["namespace"])
