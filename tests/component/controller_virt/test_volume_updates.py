"""Volumes that are put on other claims while the VM runs: their data is copied by a migration, or nothing happens."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import orjson
import pytest
from virt_plane import Plane, a_vm

from bench.simulator import NAMESPACE
from virtfleet.api import names
from virtfleet.controller.migration import retries
from virtfleet.controller.records.instance import decode_instance
from virtfleet.kube.resource import DATA_VOLUMES, PERSISTENT_VOLUME_CLAIMS, PODS, VMI_MIGRATIONS, VMIS, VMS, Obj


def volume(claim: str) -> list[Obj]:
    return [{"name": "data", "persistentVolumeClaim": {"claimName": claim}}]


async def claim(virt: Plane, name: str) -> None:
    spec = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
    made = await virt.create(
        PERSISTENT_VOLUME_CLAIMS,
        {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": name}, "spec": spec},
    )
    bound = {"status": {"phase": "Bound", "capacity": {"storage": "1Gi"}}}
    await virt.api.patch(PERSISTENT_VOLUME_CLAIMS, made["metadata"]["name"], bound, NAMESPACE, subresource="status")


async def started(virt: Plane, strategy: str = "Always") -> Obj:
    await claim(virt, "old")
    vm = a_vm(strategy, volumes=volume("old"))
    vm["spec"]["updateVolumesStrategy"] = "Migration"
    await virt.create(VMS, vm)
    return await virt.phase("Running")


async def change(virt: Plane, claim: str, **spec: Any) -> None:
    patch = {"spec": {"template": {"spec": {"volumes": volume(claim)}}, **spec}}
    await virt.api.patch(VMS, "vm", patch, NAMESPACE)


def claims(obj: Obj) -> list[str]:
    return [v["persistentVolumeClaim"]["claimName"] for v in obj["spec"]["volumes"]]


def is_told(virt: Plane, told: bool) -> Callable[[], Awaitable[bool]]:
    async def says() -> bool:
        return ((await virt.vm())["status"].get("volumeUpdateState") is not None) is told

    return says


def hold(virt: Plane, *steps: str) -> None:
    virt.handlers.lets_move = lambda vmi, step: step not in steps
    virt.handlers.look_again()


async def test_data_goes_to_another_claim_with_the_vm(virt: Plane) -> None:
    before = await started(virt)
    hold(virt, "arrive")
    await change(virt, "new")
    why = await virt.condition("VolumesChange", "False")
    assert why["message"] == "One of the destination volumes doesn't exist: PVC new not found"
    assert await virt.api.list(VMI_MIGRATIONS, NAMESPACE) == []
    await claim(virt, "new")
    await virt.condition("VolumesChange")
    vmi = await virt.vmi()
    (copied,) = vmi["status"]["migratedVolumes"]
    info = {"accessModes": ["ReadWriteOnce"], "requests": {"storage": "1Gi"}}
    assert copied["volumeName"] == "data" and claims(vmi) == ["new"]
    for side, name in (("source", "old"), ("destination", "new")):
        known = copied[f"{side}PVCInfo"]
        assert {**known, "claimName": name, **info} == known, "it may not be bound yet"
    vm = await virt.vm()
    assert vm["status"]["volumeUpdateState"]["volumeMigrationState"]["migratedVolumes"] == [copied]
    await virt.printable("Migrating")
    await virt.stop()  # any controller goes on with it
    hold(virt)
    virt.start()
    await virt.until(is_told(virt, False))
    vm, vmi = await virt.vm(), await virt.vmi()
    assert vmi["metadata"]["uid"] == before["metadata"]["uid"] and claims(vmi) == ["new"]
    assert vmi["status"]["nodeName"] != before["status"]["nodeName"]
    assert "migratedVolumes" not in vmi["status"]
    for obj in (vm, vmi):
        assert not {c["type"] for c in obj["status"]["conditions"]} & {"VolumesChange", "RestartRequired"}
    (move,) = await virt.api.list(VMI_MIGRATIONS, NAMESPACE)
    assert move["metadata"]["labels"]["kubevirt.io/volume-update-migration"] == "vm"


async def test_data_does_not_go_where_somebody_else_still_writes(virt: Plane) -> None:
    await started(virt)
    storage = {"resources": {"requests": {"storage": "1Gi"}}}
    about = {"apiVersion": DATA_VOLUMES.api_version, "kind": DATA_VOLUMES.kind, "metadata": {"name": "new"}}
    await virt.create(DATA_VOLUMES, {**about, "spec": {"source": {"blank": {}}, "storage": storage}})
    importer = await virt.until(lambda: _importer(virt))
    await change(virt, "new")
    why = await virt.condition("VolumesChange", "False")
    assert "to be filled: new" in why["message"] or "doesn't exist" in why["message"]
    assert claims(await virt.vmi()) == ["old"]
    ended = {"name": "importer", "ready": False, "image": "", "imageID": "", "restartCount": 0}
    ended["state"] = {"terminated": {"exitCode": 0, "reason": "Completed"}}
    status = {"status": {"phase": "Succeeded", "containerStatuses": [ended]}}
    await virt.api.patch(PODS, importer["metadata"]["name"], status, NAMESPACE, subresource="status")
    await virt.until(lambda: _copied(virt))


async def _importer(virt: Plane) -> Obj | None:
    return next(iter(await virt.api.list(PODS, NAMESPACE, labels=f"{names.APP_LABEL}={names.IMPORTER_APP}")), None)


async def _copied(virt: Plane) -> bool:
    return claims(await virt.vmi()) == ["new"]


async def test_a_vm_with_a_disk_that_cannot_follow_says_what_waits_for_a_restart(virt: Plane) -> None:
    for name in ("old", "fixed", "new"):
        await claim(virt, name)
    fixed = {"name": "more", "persistentVolumeClaim": {"claimName": "fixed"}}
    vm = a_vm("Always", volumes=[*volume("old"), fixed])
    vm["spec"]["updateVolumesStrategy"] = "Migration"
    await virt.create(VMS, vm)
    await virt.phase("Running")
    volumes = {"spec": {"template": {"spec": {"volumes": [*volume("new"), fixed]}}}}
    await virt.api.patch(VMS, "vm", volumes, NAMESPACE)
    said = (await virt.condition("RestartRequired", of=VMS))["message"]
    assert said == "cannot migrate the VM. The volume more is RWO and not included in the migration volumes"


async def test_a_change_that_is_taken_back_ends_the_copying_first(virt: Plane) -> None:
    await started(virt)
    await claim(virt, "new")
    hold(virt, "arrive", "abort")
    await change(virt, "new")
    await virt.printable("Migrating")
    await change(virt, "third")
    await virt.until(lambda: _said(virt, "VolumesUpdateError"))
    await change(virt, "old")

    async def asked() -> Any:
        return (await virt.vmi())["status"]["migrationState"].get("abortRequested")

    await virt.until(asked)
    assert claims(await virt.vmi()) == ["new"], "while the guest may arrive there"
    hold(virt, "arrive")
    cancelled = await virt.condition("VolumesChange", "False")
    assert cancelled["reason"] == "VolumesChangeCancellation"
    await virt.until(is_told(virt, False))
    vmi = await virt.vmi()
    assert claims(vmi) == ["old"] and "migratedVolumes" not in vmi["status"]


async def test_a_copy_that_failed_is_tried_again_after_a_pause(virt: Plane, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retries, "FIRST_PAUSE", 1.0)
    await started(virt)
    await claim(virt, "new")
    hold(virt, "arrive")
    await change(virt, "new")

    async def moves() -> list[tuple[str, str]]:
        found = await virt.api.list(VMI_MIGRATIONS, NAMESPACE)
        return [(m["metadata"]["creationTimestamp"], m["status"].get("phase", "")) for m in found if "status" in m]

    async def running() -> bool:
        return (await virt.vmi())["status"].get("migrationState", {}).get("startTimestamp") is not None

    await virt.until(running)
    state = {"failed": True, "failureReason": "the claim is too small", "endTimestamp": "2026-01-01T00:00:00Z"}
    await virt.api.patch(VMIS, "vm", {"status": {"migrationState": state}}, NAMESPACE)

    async def again() -> bool:
        return sorted(phase for _, phase in await moves()) == ["Failed", "Running"]

    await virt.until(again)
    hold(virt)
    await virt.until(is_told(virt, False))
    assert claims(await virt.vmi()) == ["new"] and len(await moves()) == 2, "the one that failed stays to be read"


async def _said(virt: Plane, reason: str) -> bool:
    return reason in await virt.reasons()


@pytest.mark.parametrize("remedy", ["old", "new"])
async def test_a_vm_that_ends_on_the_way_is_not_started_on_half_of_its_data(virt: Plane, remedy: str) -> None:
    vmi = await started(virt)
    await claim(virt, "new")
    hold(virt, "arrive")
    await change(virt, "new")
    await virt.printable("Migrating")
    await virt.handlers.end(decode_instance(orjson.dumps(await virt.vmi())), "Failed")
    needed = await virt.condition("ManualRecoveryRequired", of=VMS)
    assert "put the old claims back" in needed["message"]
    assert (await virt.vm())["status"]["volumeUpdateState"]
    if remedy == "old":
        await change(virt, "old")
    else:
        await change(virt, "new", updateVolumesStrategy="Replacement")

    async def again() -> bool:
        now = await virt.vmi()
        return bool(now["metadata"]["uid"] != vmi["metadata"]["uid"] and claims(now) == [remedy])

    await virt.until(again)


async def move(virt: Plane) -> Callable[[str], Awaitable[bool]]:
    """A migration that somebody asks for; the answer tells whether it is in a phase."""
    made: Obj = {"apiVersion": VMI_MIGRATIONS.api_version, "kind": VMI_MIGRATIONS.kind, "metadata": {"name": "move"}}
    await virt.create(VMI_MIGRATIONS, {**made, "spec": {"vmiName": "vm"}})

    async def reached(phase: str) -> bool:
        return bool((await virt.api.get(VMI_MIGRATIONS, "move", NAMESPACE))["status"]["phase"] == phase)

    return reached


async def test_a_change_waits_for_a_migration_that_is_under_way(virt: Plane) -> None:
    await started(virt)
    await claim(virt, "new")
    hold(virt, "prepare")
    reached = await move(virt)

    await virt.until(lambda: reached("PreparingTarget"))
    await change(virt, "new")
    hold(virt)
    await virt.until(lambda: reached("Succeeded"))

    async def followed() -> bool:
        vmi = await virt.vmi()
        return claims(vmi) == ["new"] and "migratedVolumes" not in vmi["status"]

    await virt.until(followed)
    assert len(await virt.api.list(VMI_MIGRATIONS, NAMESPACE)) == 2


async def test_a_target_pod_with_the_claims_from_before_gets_nothing(virt: Plane) -> None:
    """Its disk would be the very one that is copied, or one without the data."""
    await started(virt)
    await claim(virt, "new")
    virt.kubelets.lets_run = lambda pod: False
    reached = await move(virt)
    await virt.until(lambda: reached("Scheduling"))
    await change(virt, "new")  # else the instance is moved back to what its VM has, once the migration has ended
    await virt.api.patch(VMIS, "vm", {"spec": {"volumes": volume("new")}}, NAMESPACE)
    virt.kubelets.lets_run = lambda pod: True
    virt.kubelets.look_again()
    await virt.until(lambda: reached("Failed"))
    why = (await virt.api.get(VMI_MIGRATIONS, "move", NAMESPACE))["status"]["migrationState"]["failureReason"]
    assert "was made before volume data of the VM was put on claim new" in why
    assert "migrationState" not in (await virt.vmi())["status"], "no handler has heard of it"
