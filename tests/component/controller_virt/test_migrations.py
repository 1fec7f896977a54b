"""VMs cannot move yet: migrations say so, and are in nobody's way."""

from __future__ import annotations

from typing import Any

from virt_plane import Plane, a_vmi

from bench.simulator import NAMESPACE
from virtfleet.api import names
from virtfleet.kube.resource import VMI_MIGRATIONS, VMIS, Obj


def a_migration(name: str = "move", finalizers: tuple[str, ...] = (names.MIGRATION_FINALIZER,)) -> Obj:
    """As admission completes it."""
    return {
        "apiVersion": VMI_MIGRATIONS.api_version,
        "kind": VMI_MIGRATIONS.kind,
        "metadata": {"name": name, "labels": {names.MIGRATION_VMI: "vm"}, "finalizers": list(finalizers)},
        "spec": {"vmiName": "vm"},
    }


async def let_go(virt: Plane, finalizers: Any = None) -> Obj:
    """The migration, once the controller has no finalizer on it any more."""

    async def free() -> Obj | None:
        found = await virt.api.get(VMI_MIGRATIONS, "move", NAMESPACE)
        return found if found["metadata"].get("finalizers") == finalizers else None

    found: Obj = await virt.until(free)
    return found


async def test_a_migration_fails_at_once_and_the_vm_runs_on(virt: Plane) -> None:
    await virt.create(VMIS, a_vmi())
    before = await virt.phase("Running")
    await virt.create(VMI_MIGRATIONS, a_migration())
    found = await let_go(virt)
    assert found["status"]["phase"] == "Failed"
    assert "cannot move VMs yet" in found["status"]["migrationState"]["failureReason"]
    await virt.until(lambda: _told(virt))
    after = await virt.vmi()
    assert after["status"]["phase"] == "Running"
    assert after["status"]["activePods"] == before["status"]["activePods"]


async def _told(virt: Plane) -> bool:
    return "FailedMigration" in await virt.reasons()


async def test_a_migration_that_was_deleted_without_a_controller_goes(virt: Plane) -> None:
    await virt.stop()
    await virt.create(VMI_MIGRATIONS, a_migration())
    await virt.api.delete(VMI_MIGRATIONS, "move", NAMESPACE)
    virt.start()
    await virt.gone(VMI_MIGRATIONS, "move")


async def test_the_finalizers_of_others_stay(virt: Plane) -> None:
    await virt.create(VMI_MIGRATIONS, a_migration(finalizers=("example.com/mine", names.MIGRATION_FINALIZER)))
    found = await let_go(virt, ["example.com/mine"])
    assert found["status"]["phase"] == "Failed"
