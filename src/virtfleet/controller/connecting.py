"""Interfaces of running VMs on networks beside the cluster's: the Pod is to have what the VMI's spec says.

A Pod is told by its annotation. Where nobody acts on that while it runs, as Multus alone does not, the interface comes
with a migration, into a Pod that has it from the start; so does a VM that goes to another network.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from hashlib import blake2s

import msgspec

from virtfleet.api import conditions, kinds, times
from virtfleet.api.conditions import Condition
from virtfleet.api.names import Phase, VMICondition
from virtfleet.api.view import read
from virtfleet.api.vmi import VirtualMachineInstance as VMI
from virtfleet.controller import lifecycle
from virtfleet.controller.launcherpod import LauncherPod
from virtfleet.controller.migration.records import Migration, migration_of
from virtfleet.controller.pods import LauncherPods, owners
from virtfleet.controller.records import Instance
from virtfleet.kube.api import KubeApi
from virtfleet.kube.cache import Cache
from virtfleet.kube.controller import Controller
from virtfleet.kube.errors import ApiError, ignoring, is_already_exists, is_not_found
from virtfleet.kube.events import Recorder
from virtfleet.kube.resource import NETWORK_ATTACHMENTS, VMI_MIGRATIONS, VMIS, Obj
from virtfleet.pods.networks import NETWORKS, attachments

PATIENCE = 15.0  # seconds that somebody has to act on a Pod's annotation, as KubeVirt gives them
NOT_FOUND = "FailedNetworkNotFound"
_LOOK_AGAIN = 5.0
_PENDING, _DUE = "AutoMigrationPending", "AutoMigrationDueToLiveUpdate"


class Attached(msgspec.Struct, omit_defaults=True):
    """An entry of the annotation."""

    name: str = ""
    namespace: str = ""
    interface: str = ""
    mac: str = ""

    @property
    def network(self) -> str:
        return f"{self.namespace}/{self.name}"


def read_networks(text: str) -> list[Attached]:
    """What an annotation names; nothing where somebody else has written it in another way."""
    try:
        return msgspec.json.decode(text or "[]", type=list[Attached])
    except msgspec.MsgspecError:
        return []


def told(wanted: Iterable[Attached], present: Iterable[Attached]) -> list[Attached]:
    """What a running Pod is asked for: no interface of it goes to another network, which takes a migration."""
    there = {each.interface: each for each in present}
    return [there.get(each.interface, each) for each in wanted]


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


def verdict(
    vmi: VMI, held: Sequence[Condition], wanted: Iterable[Attached], pod: Iterable[Attached], now: float
) -> tuple[str, str]:
    """Status and message of the condition that a migration is required; "" where it is not. `held` are those now."""
    there = {each.interface: each.network for each in pod}
    others = [each for each in wanted if there.get(each.interface, each.network) != each.network]
    known = {status.name for status in vmi.status.interfaces}
    secondary = {n.name for n in vmi.spec.networks if n.multus and not n.multus.default}
    awaited = [
        interface.name
        for interface in vmi.spec.domain.devices.interfaces
        if interface.name in secondary - known and interface.state != "absent" and interface.bridge is not None
    ]
    if not others and not awaited:
        return "", ""
    what = f"it goes to network {others[0].network}" if others else f"interface {awaited[0]} is not in its Pod"
    before = conditions.find(held, VMICondition.MIGRATION_REQUIRED)
    waited = now - times.seconds(before["lastTransitionTime"]) if before else 0.0
    if others or waited > PATIENCE or (before and before["status"] == "True"):
        return "True", f"{what}, which takes a migration"
    return "False", f"{what}; it takes a migration if nobody attaches it within {PATIENCE:.0f} s"


class Connecting:
    """The controller. Its keys are those of VMIs."""

    def __init__(
        self,
        api: KubeApi,
        recorder: Recorder,
        *,
        instances: Cache[Instance],
        launchers: LauncherPods,
        migrations: Cache[Migration],
    ) -> None:
        self._api = api
        self._recorder = recorder
        self._instances = instances
        self._launchers = launchers
        self._migrations = migrations
        self.controller = Controller(f"{kinds.VMI.singular}-interfaces", self.reconcile, [migrations])
        self.controller.follow(instances, lambda vmi: [vmi.key] if self._concerns(vmi) else [])
        self.controller.follow(launchers.cache, lambda pod: owners(pod) if pod.metadata.annotations.networks else [])

    def _concerns(self, vmi: Instance) -> bool:
        pods = self._launchers.of(vmi.uid)
        return vmi.spec.secondary or any(pod.metadata.annotations.networks for pod in pods)

    async def reconcile(self, key: str) -> float | None:
        """Ask for what the VMI is to have, and say whether that takes a migration."""
        vmi = self._instances.get(key)
        if vmi is None or vmi.deleting or vmi.phase != Phase.RUNNING or vmi.open_migration:
            return None
        pod = lifecycle.current_pod(vmi, self._launchers.of(vmi.uid))
        if pod is None or pod.going_down:
            return None
        with ignoring(is_not_found):
            whole = await self._api.get(VMIS, vmi.name, vmi.namespace)
            if whole["metadata"]["uid"] == vmi.uid:
                return await self._connect(vmi, whole, pod)
        return None

    async def _connect(self, vmi: Instance, whole: Obj, pod: LauncherPod) -> float | None:
        view, present = read(VMI, whole), read_networks(pod.metadata.annotations.networks)
        wanted = read_networks(attachments(view, [s.name for s in view.status.interfaces]).get(NETWORKS, ""))
        known = {each.network for each in present}
        if lacks := await missing(self._api, [each for each in wanted if each.network not in known]):
            self._recorder.warning(vmi.reference, NOT_FOUND, lacks)
            return _LOOK_AGAIN
        if (asked := told(wanted, present)) != present:
            await self._launchers.annotate(pod, {NETWORKS: msgspec.json.encode(asked).decode()})
        before = (whole.get("status") or {}).get("conditions") or []
        status, message = verdict(view, before, wanted, present, time.time())
        await self._say(vmi, whole, before, status, message)
        if status == "True":
            await self._move(vmi, wanted)
        return _LOOK_AGAIN if status == "False" else None

    async def _say(self, vmi: Instance, whole: Obj, before: list[Condition], status: str, message: str) -> None:
        kind, reason = VMICondition.MIGRATION_REQUIRED, _DUE if status == "True" else _PENDING
        if status == "True" and not vmi.migratable:
            message = f"{message}; the VM cannot migrate, so restart it"
        after = conditions.drop(before, kind)
        if status:
            after = conditions.put(before, kind, status, time.time(), reason=reason, message=message)
        if after != before:
            about = {"resourceVersion": whole["metadata"]["resourceVersion"], "uid": vmi.uid}
            patch = {"metadata": about, "status": {"conditions": after}}
            self._instances.observe(await self._api.patch(VMIS, vmi.name, patch, vmi.namespace))

    async def _move(self, vmi: Instance, wanted: Iterable[Attached]) -> None:
        """One migration for what is wanted now and where the VM is; one that failed stays to be read."""
        busy = any(not migration.final for migration in self._migrations.by_index("vmi", vmi.key))
        if busy or not vmi.migratable:
            return
        about = msgspec.json.encode([vmi.uid, vmi.status.node_name, *wanted])
        name = f"kubevirt-interfaces-{blake2s(about, digest_size=8).hexdigest()}"
        with ignoring(is_already_exists):
            self._migrations.observe(await self._api.create(VMI_MIGRATIONS, migration_of(vmi, name)))
            self._recorder.normal(vmi.reference, "SuccessfulCreate", f"Created Migration {name} for its interfaces")
