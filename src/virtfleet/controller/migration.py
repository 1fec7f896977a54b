"""Migrations: admission refuses them, because VMs cannot move yet; those that are there all the same fail at once.

Whoever waits for a migration learns so from its phase instead of waiting for ever, and nothing keeps the object, or its
namespace, from being deleted.
"""

from __future__ import annotations

import time

import msgspec

from virtfleet.api import kinds, names
from virtfleet.api.names import FINAL, Phase
from virtfleet.api.times import timestamp
from virtfleet.controller.records import Kept, Record
from virtfleet.kube.api import KubeApi
from virtfleet.kube.cache import Cache
from virtfleet.kube.controller import Controller
from virtfleet.kube.errors import ignoring, is_not_found
from virtfleet.kube.events import Recorder
from virtfleet.kube.resource import VMI_MIGRATIONS, Obj

FAILED_MIGRATION = "FailedMigration"
WHY = "VirtFleet cannot move VMs yet: the VM runs on where it is; restart it to have it placed anew"


class MigrationStatus(Record):
    phase: str = ""


class Migration(Kept):
    """A request to move a VM."""

    resource = VMI_MIGRATIONS
    status: MigrationStatus = msgspec.field(default_factory=MigrationStatus)


decode_migration = msgspec.json.Decoder(Migration).decode


def failure(now: float) -> Obj:
    """The status of a migration that is not carried out."""
    entry = {"phase": Phase.FAILED, "phaseTransitionTimestamp": timestamp(now)}
    return {
        "phase": Phase.FAILED,
        "phaseTransitionTimestamps": [entry],
        "migrationState": {"failed": True, "failureReason": WHY},
    }


class Migrations:
    """The controller."""

    def __init__(self, api: KubeApi, recorder: Recorder, *, migrations: Cache[Migration]) -> None:
        self._api = api
        self._recorder = recorder
        self._migrations = migrations
        self.controller = Controller(kinds.MIGRATION.singular, self.reconcile)
        self.controller.follow(migrations)

    async def reconcile(self, key: str) -> None:
        """Say that it failed, and let it go."""
        migration = self._migrations.get(key)
        if migration is None:
            return
        if migration.status.phase not in FINAL and not migration.deleting:
            await self._patch(migration, {"status": failure(time.time())}, "status")
            self._recorder.warning(migration.reference, FAILED_MIGRATION, WHY)
            return  # this write is a change, after which it is let go
        left = [f for f in migration.metadata.finalizers if f != names.MIGRATION_FINALIZER]
        if left != migration.metadata.finalizers:
            await self._patch(migration, {"metadata": {"finalizers": left}})

    async def _patch(self, migration: Migration, patch: Obj, subresource: str | None = None) -> None:
        """Finalizers are everybody's: no write over what was not seen."""
        seen = {"resourceVersion": migration.metadata.resource_version}
        patch = {**patch, "metadata": {**patch.get("metadata", {}), **seen}}
        with ignoring(is_not_found):
            answer = await self._api.patch(
                VMI_MIGRATIONS, migration.name, patch, migration.namespace, subresource=subresource
            )
            self._migrations.observe(answer)
