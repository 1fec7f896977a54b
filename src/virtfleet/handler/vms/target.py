"""VMs on their way here: their Pods are made ready exactly as for a start, receive the guest, and let it run in time.

The guest is the source's for as long as anything of it is alive there, and so is most of what its owner reads. It runs
here only when all of it is here, and the source is known to have let it go: by its handler's word, or by the VMI's
status, where its handler writes it, or the controller, who sees its Pod end.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

import msgspec

from virtfleet.api import conditions, names, times
from virtfleet.api.migration import MigrationOptions, in_both_words, migration_failure
from virtfleet.api.migration import VirtualMachineInstanceMigrationState as MigrationState
from virtfleet.api.names import VMICondition
from virtfleet.handler.migration import progress
from virtfleet.handler.migration.proxy import Incoming, Proxy
from virtfleet.handler.pods.launchers import Presence
from virtfleet.handler.vms.instances import Instance, Role
from virtfleet.handler.vms.preparation import Preparation
from virtfleet.handler.vms.work import Attempts, PodWork, Step, next_step
from virtfleet.kube.events import Recorder
from virtfleet.kube.resource import Obj
from virtfleet.protocol.messages import Arrive, GetDocument, Kill, Prepare, Status
from virtfleet.work import tasks

logger = logging.getLogger(__name__)

_NO_ADDRESS = (
    "virt-handler of node %s does not know where other nodes reach it: its container needs POD_IP (status.podIP)"
)
_NOT_ON_NETWORK = (
    "virt-handler of node %s is not on network %s, which migrations are to use: Multus has not attached it. Install"
    " Multus and that NetworkAttachmentDefinition, or remove configuration.migrations.network"
)
_TRANSPORT = "Unix"  # how KubeVirt calls it that both sides use sockets


@dataclass
class Target:
    """Brings the Pod of a VM that is to come here in line with the VMI, and takes the VM over."""

    _recorder: Recorder
    _attempts: Attempts
    _preparation: Preparation
    _proxy: Proxy
    _node: str
    _pods: Path
    _write: Callable[[Instance, Obj], Awaitable[bool]]
    _stir: Callable[[str], None]

    async def reconcile(self, instance: Instance, vm: PodWork) -> float | None:
        """Make the Pod ready for the guest, and take it over; the answer is when to look again."""

        async def act(step: Step, wanted: bytes) -> None:
            if step is Step.KILL:
                await vm.launcher.call(Kill())
            elif vm.done != (step, wanted):
                await self._prepare(instance, vm)
                vm.done = (step, wanted)

        migration = instance.vmi.status.migration_state
        if self._proxy.refuses and vm.incoming is None:
            return None  # this handler ends; the next one goes on with it
        if migration and not migration.target_node_address and (why := self._unable(vm, migration)):
            await self._write(instance, instance.patch({"migrationState": migration_failure(why)}))
            return None
        step = next_step(instance, Role.TARGET, vm.launcher.presence, vm.launcher.state)
        again = await self._attempts.make(instance, vm, step, act)
        state = vm.launcher.state
        ready = vm.done is not None or (state is not None and state.status is not Status.ABSENT)
        if again is not None or step is Step.KILL or migration is None or not ready:
            return again
        if vm.launcher.presence is not Presence.HERE or state is None or state.status.ended:
            return None  # the source notices that there is nobody, and keeps the guest
        return await self._receive(instance, vm, migration)

    def _unable(self, vm: PodWork, migration: MigrationState) -> str:
        """Why no guest can come into a Pod, whatever is tried. Nothing is sent while the source has no address."""
        if not self._proxy.address:
            return _NO_ADDRESS % self._node
        network = migration.migration_configuration.network if migration.migration_configuration else ""
        if network and not self._proxy.dedicated:
            return _NOT_ON_NETWORK % (self._node, network)
        return vm.launcher.lacks(Prepare)

    def let_go(self, vm: PodWork) -> None:
        """The Pod is no target any more."""
        if vm.incoming:
            self._proxy.forget(vm.incoming.uid)
            vm.incoming = None

    async def _prepare(self, instance: Instance, vm: PodWork) -> None:
        migration = instance.vmi.status.migration_state
        order, _, _ = await self._preparation.make(instance, vm.launcher, Prepare, started=False)
        order = msgspec.structs.replace(order, migration=migration.migration_uid if migration else "")
        vm.launcher.state = await vm.launcher.call(order)
        logger.info("%s: the Pod is ready for the guest, which is to come from another node", vm.record.key)

    async def _receive(self, instance: Instance, vm: PodWork, migration: MigrationState) -> float | None:
        """Be there for the source, and let the guest run when it may."""
        incoming = await self._expect(vm, migration)
        incoming.source_ended = incoming.source_ended or bool(migration.source_end_timestamp)
        report = vm.launcher.report(incoming.uid)
        if incoming.source_keeps and not (incoming.by_itself and report.complete):
            logger.info("%s: the guest stays where it is: %s", vm.record.key, incoming.source_keeps)
            await vm.launcher.call(Kill())
            return None
        if await self._arrived(vm, incoming):
            await self._take_over(instance, vm, migration)
            return None
        change: Obj = {}
        ports = {str(self._proxy.port): 0}
        known = (migration.target_node_address, migration.target_direct_migration_node_ports)
        if self._proxy.address and known != (self._proxy.address, ports):
            stale = dict.fromkeys(migration.target_direct_migration_node_ports)  # null takes an entry away
            change = {
                "targetNodeAddress": self._proxy.address,
                "targetDirectMigrationNodePorts": {**stale, **ports},
                "migrationNetworkType": "Migration" if self._proxy.dedicated else "Pod",
            }
        if report.complete:
            await incoming.say(complete=True)
            if not migration.target_node_domain_detected:
                change["targetNodeDomainDetected"] = True
        if change:
            await self._write(instance, instance.patch({"migrationState": in_both_words(change)}))
        return None

    async def _expect(self, vm: PodWork, migration: MigrationState) -> Incoming:
        uid = migration.migration_uid
        if vm.incoming and vm.incoming.uid != uid:
            self.let_go(vm)
        if vm.incoming is None:
            document = (await vm.launcher.call(GetDocument())).xml
            options = migration.migration_configuration or MigrationOptions()
            vm.incoming = incoming = Incoming(
                uid,
                self._pods / vm.record.pod,
                document,
                lambda: self._heard(vm, incoming),
                plain=bool(options.disable_tls),
                by_itself=bool(options.allow_post_copy),
            )
            self._proxy.expect(incoming)
        return vm.incoming

    def _heard(self, vm: PodWork, incoming: Incoming) -> None:
        """The source has said something. Its guest stands still now: it is not to wait for a write that goes on."""
        if incoming.source_ended and vm.launcher.report(incoming.uid).complete:
            tasks.start(self._arrive(vm, incoming), f"arrival: {vm.record.key}", expected=(Exception,))
        self._stir(vm.record.key)

    async def _arrive(self, vm: PodWork, incoming: Incoming) -> None:
        try:
            await self._arrived(vm, incoming)
        finally:
            self._stir(vm.record.key)

    async def _arrived(self, vm: PodWork, incoming: Incoming) -> bool:
        """Whether the guest has been let run, which is done where it may be."""
        async with incoming.arriving:
            if incoming.arrived:
                return True
            state, report = vm.launcher.state, vm.launcher.report(incoming.uid)
            # Only the arrival lets it run; where it does, an earlier handler of this node has seen to it.
            runs = report.complete and state is not None and state.status in (Status.RUNNING, Status.BLOCKED)
            if not runs:
                may = incoming.by_itself or (incoming.source_ended and not incoming.source_keeps)
                if not report.complete or not may:
                    return False
                vm.launcher.state = await vm.launcher.call(Arrive(migration=incoming.uid))
            incoming.arrived = True
        await incoming.say(complete=True, running=True)
        return True

    async def _take_over(self, instance: Instance, vm: PodWork, migration: MigrationState) -> None:
        """Say that the VM is this node's from now on."""
        now = times.timestamp()
        state: Obj = {
            "completed": True,
            "endTimestamp": now,
            "targetNodeDomainDetected": True,
            "targetNodeDomainReadyTimestamp": migration.target_node_domain_ready_timestamp or now,
        }
        if vm.incoming and (report := vm.launcher.report(vm.incoming.uid)).total_bytes:
            state["migrationMetrics"] = progress.figures(report)
        if not migration.start_timestamp:
            state["startTimestamp"] = now
        status: Obj = {"nodeName": self._node, "migrationTransport": _TRANSPORT, "migrationState": in_both_words(state)}
        if instance.vmi.status.evacuation_node_name:
            status["evacuationNodeName"] = None
        held = instance.object()["status"].get("conditions") or []
        kept = conditions.drop(conditions.drop(held, VMICondition.MIGRATION_REQUIRED), VMICondition.EVICTION_REQUESTED)
        if instance.vmi.status.migrated_volumes:  # their data is in the other claims now
            kept = conditions.drop(kept, VMICondition.VOLUMES_CHANGE)
            status["migratedVolumes"] = None
            status["volumeStatus"] = _on_their_new_claims(instance.object()["status"])
        if kept != held:
            status["conditions"] = kept
        patch = instance.patch(status)
        gone = dict.fromkeys((names.MIGRATION_TARGET_NODE, names.OUTDATED_LAUNCHER_IMAGE))
        patch["metadata"]["labels"] = {**gone, names.NODE_NAME: self._node}
        if await self._write(instance, patch):
            vm.done = None
            what = f"The VirtualMachineInstance migrated to node {self._node}."
            self._recorder.normal(instance.reference, "Migrated", what)


def _on_their_new_claims(status: Obj) -> list[Obj]:
    claims = {v["volumeName"]: v.get("destinationPVCInfo") for v in status["migratedVolumes"]}
    return [
        {**volume, "persistentVolumeClaimInfo": claims[volume["name"]]} if volume["name"] in claims else volume
        for volume in status.get("volumeStatus") or ()
    ]
