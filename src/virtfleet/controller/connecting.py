"""Interfaces of running VMs on networks beside the cluster's: the Pod is to have what the VMI's spec says.

A Pod is told by its annotation. Where nobody acts on that while it runs, as Multus alone does not, the VM says that it
needs a migration, into a Pod that has the interface from the start; so does one that goes to another network.
"""

from __future__ import annotations

import time
from collections.abc import Iterable

import msgspec

from virtfleet.api import conditions, kinds
from virtfleet.api.names import Phase, VMICondition
from virtfleet.api.view import read
from virtfleet.api.vmi import VirtualMachineInstance as VMI
from virtfleet.controller import connections, lifecycle
from virtfleet.controller.connections import Attached
from virtfleet.controller.launcherpod import LauncherPod
from virtfleet.controller.pods import owners
from virtfleet.controller.records.instance import Instance
from virtfleet.controller.shared import Part, Shared
from virtfleet.kube.api import KubeApi
from virtfleet.kube.controller import Controller
from virtfleet.kube.errors import ApiError, ignoring, is_not_found
from virtfleet.kube.resource import NETWORK_ATTACHMENTS, Obj
from virtfleet.pods.networks import NETWORKS

PATIENCE = 15.0  # seconds that somebody has to act on a Pod's annotation, as KubeVirt gives them
NOT_FOUND = "FailedNetworkNotFound"
_LOOK_AGAIN = 5.0


async def missing(api: KubeApi, wanted: Iterable[Attached]) -> str:
    """What a cluster lacks of the networks that are wanted, and what to do; "" where nothing is missing."""
    for each in wanted:
        try:
            await api.get(NETWORK_ATTACHMENTS, each.name, each.namespace)
        except ApiError as error:
            if not is_not_found(error):
                raise
            if f'"{each.name}"' in error.message:
                return f"NetworkAttachmentDefinition {each.network} does not exist; create it"
            return (
                f"network {each.network}: this cluster has no secondary networks, as it does not know the kind"
                " NetworkAttachmentDefinition; install Multus, or remove the network from the VM"
            )
    return ""


class Connecting(Part):
    """The controller. Its keys are those of VMIs."""

    def __init__(self, shared: Shared) -> None:
        super().__init__(shared)
        self._awaited: dict[str, tuple[list[str], float]] = {}  # Pod -> interfaces that it was asked for, and when
        self.controller = Controller(f"{kinds.VMI.singular}-interfaces", self.reconcile)
        self.controller.follow(self._instances, lambda vmi: [vmi.key] if self._concerns(vmi) else [])
        self.controller.follow(self._pods.cache, lambda pod: owners(pod) if pod.metadata.annotations.networks else [])

    def _concerns(self, vmi: Instance) -> bool:
        pods = self._pods.of(vmi.uid)
        return vmi.spec.secondary or any(pod.metadata.annotations.networks for pod in pods)

    async def reconcile(self, key: str) -> float | None:
        """Ask for what the VMI is to have, and say whether that takes a migration."""
        vmi = self._instances.get(key)
        if vmi is None or vmi.deleting or vmi.phase != Phase.RUNNING or vmi.open_migration:
            return None
        pod = lifecycle.current_pod(vmi, self._pods.of(vmi.uid))
        if pod is None or pod.going_down:
            return None
        with ignoring(is_not_found):
            whole = await self._whole(vmi)
            if whole["metadata"]["uid"] == vmi.uid:
                return await self._connect(vmi, whole, pod)
        return None

    async def _connect(self, vmi: Instance, whole: Obj, pod: LauncherPod) -> float | None:
        view, present = read(VMI, whole), connections.read_networks(pod.metadata.annotations.networks)
        wanted, known = connections.wanted(view), {each.network for each in present}
        if lacks := await missing(self._api, [each for each in wanted if each.network not in known]):
            self._recorder.warning(vmi.reference, NOT_FOUND, lacks)
            return _LOOK_AGAIN
        if (asked := connections.requested(wanted, present)) != present:
            await self._pods.annotate(pod, {NETWORKS: msgspec.json.encode(asked).decode()})
        left = self._patience(pod, connections.awaited(view))
        if connections.moved(view, present) or (left is not None and left <= 0):
            await self._say(vmi, whole, connections.move(whole, pod.metadata.annotations.networks))
            return None
        return left

    def _patience(self, pod: LauncherPod, awaited: list[str]) -> float | None:
        """Seconds that are left for somebody to give a Pod its interfaces; None where it has them."""
        if not awaited:
            self._awaited.pop(pod.uid, None)
            return None
        if pod.uid not in self._awaited or self._awaited[pod.uid][0] != awaited:
            self._awaited[pod.uid] = (awaited, time.monotonic())
        return self._awaited[pod.uid][1] + PATIENCE - time.monotonic()

    async def _say(self, vmi: Instance, whole: Obj, why: str) -> None:
        """That a migration is required; whether there is one is then for `Fitting` to see."""
        before = (whole.get("status") or {}).get("conditions") or []
        kind = VMICondition.MIGRATION_REQUIRED
        if conditions.find(before, kind) is None:
            after = conditions.put(before, kind, "False", time.time(), reason="AutoMigrationPending", message=why)
            await self._patch_instance(vmi, {"status": {"conditions": after}}, whole)
