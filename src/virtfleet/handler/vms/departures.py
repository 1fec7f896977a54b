"""VMs that leave this node: each migration begun, followed and told of in the VMI's status, up to its end here.

Nothing that matters is remembered: a handler that restarts finds in the VMI's status that the guest leaves, from its
launcher how far that is, and from the kernel whether anything of the guest is alive.
"""

from __future__ import annotations

import enum
import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import msgspec

from virtfleet.api import times
from virtfleet.api.migration import MigrationOptions, migration_failure
from virtfleet.api.migration import VirtualMachineInstanceMigrationState as MigrationState
from virtfleet.api.vmi import VirtualMachineInstance as VMI
from virtfleet.handler.migration import progress
from virtfleet.handler.migration.outgoing import Address, Outgoing
from virtfleet.handler.migration.proxy import Proxy
from virtfleet.handler.pods import process
from virtfleet.handler.pods.launchers import Presence, Unresponsive
from virtfleet.handler.vms.instances import Instance
from virtfleet.handler.vms.preparation import NotPossible
from virtfleet.handler.vms.work import PodWork
from virtfleet.kube.resource import Obj
from virtfleet.protocol.client import Refused
from virtfleet.protocol.messages import Depart, MigrationReport, Stay

logger = logging.getLogger(__name__)

_AGAIN = 1.0  # seconds after which a launcher that did not hear is told again
_UNHEARD = 2.0  # seconds after which the target is told by the VMI's status what it did not hear directly
# Seconds for the target to take the guest over: it has all of it, or it is not known whether it has.
_TAKE_OVER, _SAY_SO = 120.0, 10.0
LOST = "nothing of the guest is alive on node %s, and node %s has not taken it over within %.0f s"


class Leaving(enum.Enum):
    """How far a guest is on its way."""

    NO = "it stays"
    MOVING = "it moves"
    LEFT = "nothing of it is here any more, and the target has not taken it over yet"


def departing(vmi: VMI, node: str) -> MigrationState | None:
    """The migration by which the VM leaves a node, from the moment at which its target is ready for it."""
    state = vmi.status.migration_state
    if state is None or not state.migration_uid or state.source_node != node or vmi.status.node_name != node:
        return None
    return None if state.ended else state


def address(vmi: VMI) -> Address | None:
    """Where the target's handler listens."""
    state = vmi.status.migration_state
    ports = [int(port) for port in state.target_direct_migration_node_ports if port.isdecimal()] if state else []
    if state is None or not state.target_node_address or not ports:
        return None
    options = state.migration_configuration or MigrationOptions()
    return Address(state.target_node_address, ports[0], plain=bool(options.disable_tls))


@dataclass
class Departures:
    """All migrations away from a node. `known` is the latest state of a VMI, by its key."""

    _proxy: Proxy
    _node: str
    _pods: Path
    _known: Callable[[str], Instance | None]
    _write: Callable[[Instance, Obj], Awaitable[bool]]
    _stir: Callable[[str], None]

    async def reconcile(self, instance: Instance, vm: PodWork) -> tuple[Leaving, float | None]:
        """Begin or follow the migration, and say how it is; how far it is, and when to look again."""
        migration = departing(instance.vmi, self._node)
        if vm.outgoing and (migration is None or vm.outgoing.uid != migration.migration_uid):
            await self.let_go(vm)
        if vm.launcher.state and (report := vm.launcher.state.migration) and report.asks:
            return Leaving.NO, await self._stay(instance, vm, migration, report)
        if migration is None:
            return Leaving.NO, None
        try:
            outgoing = vm.outgoing or self._open(instance, vm, migration)
        except NotPossible as error:
            await self._report(instance, _kept(str(error)))
            return Leaving.NO, None
        if outgoing is None:
            if migration.abort_requested and not migration.start_timestamp:
                await self._report(instance, _kept("it was aborted before it began", aborted=True))
            return Leaving.NO, None
        vm.outgoing = outgoing
        return await self._follow(instance, vm, migration, outgoing)

    async def _stay(
        self, instance: Instance, vm: PodWork, migration: MigrationState | None, report: MigrationReport
    ) -> float | None:
        """The guest stands still, because all of it may be on the target. It runs on when nobody lets it run there.

        Which is what the VMI's status says once the migration has ended there as failed, whoever wrote it.
        """
        if migration and migration.migration_uid == report.uid:
            vm.outgoing = vm.outgoing or self._open(instance, vm, migration)
            if vm.outgoing:
                await vm.outgoing.keep(report.asks)
            if migration.migration_configuration and migration.migration_configuration.allow_post_copy:
                return _AGAIN  # it may run there by itself: the target says so, or ends, and the controller sees that
            aborted = bool(migration.abort_requested)
            if not await self._report(instance, _kept(report.asks, aborted=aborted)):
                return None  # there is no VMI any more
        try:
            await vm.launcher.call(Stay(migration=report.uid))
        except (Refused, Unresponsive) as error:
            logger.warning("%s: the guest cannot be told to run on: %s", vm.record.key, error)
            return _AGAIN
        return None

    async def let_go(self, vm: PodWork) -> None:
        """The migration has come to its end, here or there."""
        outgoing, vm.outgoing, vm.left_at = vm.outgoing, None, None
        if outgoing:
            await outgoing.close()

    def _open(self, instance: Instance, vm: PodWork, migration: MigrationState) -> Outgoing | None:
        """A new one begins where the domain runs; one that had begun is taken up, whatever is left of the domain."""
        state = vm.launcher.state
        runs = state is not None and bool(state.status) and not state.status.ended
        begun = bool(migration.start_timestamp)
        unknown = vm.launcher.presence is Presence.COMING
        if runs and not begun and (why := vm.launcher.lacks(Depart)):
            raise NotPossible(why)
        if address(instance.vmi) is None or unknown or not (runs or begun) or (self._proxy.refuses and not begun):
            return None
        guests = process.of_pod(vm.record.pod, instance.hypervisor.descriptor.processes)
        if runs and not guests:
            if begun:
                return None  # it has ended in this moment, and its launcher is about to say so
            raise NotPossible("no process of the guest is alive in its Pod")

        def where() -> Address | None:
            known = self._known(vm.record.vmi)
            return address(known.vmi) if known else None

        uid, pod, stir = migration.migration_uid, self._pods / vm.record.pod, partial(self._stir, vm.record.key)
        return Outgoing(uid, vm.launcher, pod, guests, self._proxy.identity, where, stir)

    async def _follow(
        self, instance: Instance, vm: PodWork, migration: MigrationState, outgoing: Outgoing
    ) -> tuple[Leaving, float | None]:
        if outgoing.ended and not outgoing.keeps:
            return Leaving.LEFT, await self._let_go(instance, vm, migration, outgoing)
        report, change = vm.launcher.report(outgoing.uid), Obj()
        if report.failure and not report.running:
            await outgoing.keep(report.failure)
        if migration.abort_requested and not outgoing.aborting and not outgoing.keeps:
            refusal = await outgoing.abort()
            change["abortStatus"] = "Failed" if refusal else "Aborting"
        if outgoing.keeps:
            aborted = report.aborted or bool(migration.abort_requested and not report.failure)
            await self._report(instance, _kept(outgoing.keeps, aborted=aborted))
            return Leaving.NO, None
        outgoing.begin(instance.raw, msgspec.json.encode(migration.migration_configuration or MigrationOptions()))
        if outgoing.begun and not migration.start_timestamp:
            change |= {"startTimestamp": times.timestamp(), "mode": report.mode or "PreCopy"}
        elif report.mode and report.mode != migration.mode:
            change["mode"] = report.mode
        if progress.due(report, outgoing.reported):
            outgoing.reported = report.elapsed_seconds
            change["migrationMetrics"] = progress.figures(report)
        await self._report(instance, change)
        # Where its launcher has gone, or says that the domain has, the guest's process is about to.
        state = vm.launcher.state
        gone = vm.launcher.presence is Presence.GONE or (state is not None and state.status.ended)
        return Leaving.LEFT if gone else Leaving.MOVING, None

    async def _let_go(
        self, instance: Instance, vm: PodWork, migration: MigrationState, outgoing: Outgoing
    ) -> float | None:
        """The guest is the target's now. That it has been lost is said only when the target had its time."""
        now = time.monotonic()
        vm.left_at = vm.left_at or now
        # That all of it is there is known by the target, who may be away for now, and by libvirt here.
        arrived = outgoing.complete or migration.target_node_domain_detected or vm.launcher.report(outgoing.uid).left
        passed, limit = now - vm.left_at, _TAKE_OVER if arrived else _SAY_SO
        if passed > limit and not outgoing.running:
            why = LOST % (self._node, migration.target_node, limit)
            await self._report(instance, _kept(why))
            return None
        if passed > _UNHEARD and not outgoing.running and not migration.source_end_timestamp:
            await self._report(instance, {"sourceEndTimestamp": times.timestamp()})
        return limit - passed if passed > _UNHEARD else _UNHEARD

    async def _report(self, instance: Instance, change: Obj) -> bool:
        """Whether there was anything to write, and a VMI to write it of."""
        return bool(change) and await self._write(instance, instance.patch({"migrationState": change}))


def _kept(why: str, *, aborted: bool = False) -> Obj:
    """The end of a migration whose guest stays."""
    end = migration_failure(why)
    return {**end, "abortStatus": "Succeeded"} if aborted else end
