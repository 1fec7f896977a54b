"""Running VMs get new launchers on a simulated cluster: as strategies say, and never otherwise."""

from __future__ import annotations

from collections import Counter
from functools import partial
from typing import Any

import pytest
from prometheus_client import REGISTRY
from virt_plane import Plane, a_vm, a_vmi

from bench.simulator import NAMESPACE
from virtfleet import __version__
from virtfleet.api import names
from virtfleet.controller.migration import retries
from virtfleet.controller.workloads import controller
from virtfleet.installation import Installation
from virtfleet.kube.resource import EVENTS, KUBEVIRTS, VMI_MIGRATIONS, VMIS, VMS, Obj
from virtfleet.local.controllers.podposts import evict

OLD, NEW = (f"virtfleet/virt-launcher:{tag}" for tag in (__version__, "new"))
MOVABLE = [{"type": "LiveMigratable", "status": "True"}]
ROOTED = [{"type": "LiveMigratable", "status": "False", "reason": "DisksNotLiveMigratable", "message": "a disk"}]


@pytest.fixture(autouse=True)
def _quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(controller, "GATHERED", 0.02)
    monkeypatch.setattr(controller, "LOOK_AGAIN", 0.2)


async def says(virt: Plane, *, settled: bool = True, **spec: Any) -> None:
    """The administrator changes the KubeVirt object, and the operator is done with it or not."""
    virt.cluster.operations.posts["", "pods", "eviction"] = partial(evict, virt.api)
    stored = await virt.api.patch(KUBEVIRTS, "kubevirt", {"spec": spec}, NAMESPACE)
    read, generation = Installation(stored), stored["metadata"]["generation"]
    status = {"phase": "Deployed", "observedGeneration": generation, "targetDeploymentConfig": f"id{generation}"}
    if settled:
        status |= {
            "observedDeploymentConfig": f"id{generation}",
            "observedKubeVirtVersion": read.tag,
            "observedKubeVirtRegistry": read.registry,
        }
    await virt.api.patch(KUBEVIRTS, "kubevirt", {"status": status}, NAMESPACE, subresource="status")


async def runs(virt: Plane, *vms: str, conditions: list[Obj] = MOVABLE, **spec: Any) -> None:
    for name in vms:
        await virt.create(VMIS, a_vmi(name, **spec))
    for name in vms:
        await virt.phase("Running", name)
        await virt.api.patch(VMIS, name, {"status": {"conditions": conditions}}, NAMESPACE)


async def images(virt: Plane) -> dict[str, str]:
    found = await virt.api.list(VMIS, NAMESPACE)
    return {vmi["metadata"]["name"]: vmi["status"].get("launcherContainerImageVersion", "") for vmi in found}


async def marked(virt: Plane) -> set[str]:
    listed = await virt.api.list(VMIS, NAMESPACE, labels=names.OUTDATED_LAUNCHER_IMAGE)
    return {vmi["metadata"]["name"] for vmi in listed}


async def migrations(virt: Plane) -> list[Obj]:
    return await virt.api.list(VMI_MIGRATIONS, NAMESPACE)


async def looked(virt: Plane) -> None:
    """Return when the updater has had its turn on all that was there: twice, as one may have been under way."""
    for turn in ("1", "2"):
        before = turns()
        await virt.api.patch(KUBEVIRTS, "kubevirt", {"metadata": {"annotations": {"turn": turn}}}, NAMESPACE)

        async def done(before: float = before) -> bool:
            return turns() > before

        await virt.until(done)


def turns() -> float:
    name = "kubevirt_workqueue_work_duration_seconds_count"
    return REGISTRY.get_sample_value(name, {"name": "workload-update"}) or 0.0


async def test_11679_vms_move_to_the_new_image_only_as_the_strategy_says_and_within_the_limits(virt: Plane) -> None:
    """Without a strategy nothing moves by itself (KubeVirt #11679), and a user's migration keeps the old image."""
    await runs(virt, "a", "b", "c", "d")
    await says(virt, imageTag="new")
    await virt.until(lambda: _is(marked(virt), {"a", "b", "c", "d"}))
    user = {"apiVersion": VMI_MIGRATIONS.api_version, "kind": VMI_MIGRATIONS.kind, "metadata": {"name": "user"}}
    await virt.create(VMI_MIGRATIONS, {**user, "spec": {"vmiName": "a"}})
    await virt.until(lambda: _phase(virt, "user", "Succeeded"))
    assert set((await images(virt)).values()) == {OLD}, "nothing moves to the new image by itself"
    assert len(await migrations(virt)) == 1

    virt.handlers.lets_move = lambda vmi, step: step != "arrive"
    limits = {"parallelMigrationsPerCluster": 2}
    updates = {"workloadUpdateMethods": ["LiveMigrate"]}
    await says(virt, workloadUpdateStrategy=updates, configuration={"migrations": limits})
    await virt.until(lambda: _count(virt, 2))
    made = [m for m in await migrations(virt) if m["metadata"]["name"] != "user"]
    assert all(m["metadata"]["name"].startswith("kubevirt-workload-update-") for m in made)
    assert {m["metadata"]["annotations"][names.WORKLOAD_UPDATE] for m in made} == {""}
    assert {m["spec"]["priority"] for m in made} == {"system-critical"}
    virt.handlers.lets_move = lambda vmi, step: True
    virt.handlers.look_again()
    await virt.until(lambda: _is(_values(images(virt)), {NEW}))
    await virt.until(lambda: _is(marked(virt), set()))
    ours = [m["spec"]["vmiName"] for m in await migrations(virt) if m["metadata"]["name"] != "user"]
    assert sorted(ours) == ["a", "b", "c", "d"], "each VM moved once"
    assert "SuccessfulCreate" in await virt.reasons()


async def test_nothing_moves_until_the_operator_is_done(virt: Plane) -> None:
    """Handlers that are replaced and VMs that move at one time would lose each other (pools A.4.5, A.9: #18670)."""
    await runs(virt, "vm")
    updates = {"workloadUpdateMethods": ["LiveMigrate"]}
    await says(virt, settled=False, imageTag="new", workloadUpdateStrategy=updates)
    await virt.until(lambda: _is(marked(virt), {"vm"}))
    await looked(virt)
    assert not await migrations(virt)
    await says(virt)
    await virt.until(lambda: _is(_values(images(virt)), {NEW}))


async def test_a_pool_has_its_own_strategy_and_a_label_takes_a_vm_into_it(virt: Plane) -> None:
    """pools A.4.4, A.11: what is expected is the image of the pool that matches now, however it came to match."""
    await runs(virt, "plain", "gold")
    pool = {
        "name": "gold",
        "nodeSelector": {"ring": "gold"},
        "virtLauncherImage": NEW,
        "selector": {"vmLabels": {"matchLabels": {"ring": "gold"}}},
        "workloadUpdateStrategy": {"workloadUpdateMethods": ["LiveMigrate"]},
    }
    gates = {"developerConfiguration": {"featureGates": ["VirtHandlerPools"]}}
    await says(virt, configuration=gates, virtHandlerPools=[pool])
    assert not await marked(virt)
    await virt.api.patch(VMIS, "gold", {"metadata": {"labels": {"ring": "gold"}}}, NAMESPACE)
    await virt.until(lambda: _is(images(virt), {"plain": OLD, "gold": NEW}))
    await virt.until(lambda: _is(_pool_of(virt, "gold"), "gold"))
    # Its images change, and only the pool's VMs follow.
    await says(virt, virtHandlerPools=[{**pool, "virtLauncherImage": "gold:2"}], imageTag="later")
    await virt.until(lambda: _is(images(virt), {"plain": OLD, "gold": "gold:2"}))
    await virt.until(lambda: _is(marked(virt), {"plain"}))
    # The pool goes: its VM is the installation's again, whose strategy leaves it alone.
    await says(virt, virtHandlerPools=[])
    await virt.until(lambda: _is(marked(virt), {"plain", "gold"}))
    await looked(virt)
    assert (await images(virt))["gold"] == "gold:2"
    # It comes again: its VM is as it should be, though not on the installation's image.
    await says(virt, virtHandlerPools=[{**pool, "virtLauncherImage": "gold:2"}])
    await virt.until(lambda: _is(marked(virt), {"plain"}))


async def test_vms_that_cannot_move_restart_in_batches_where_that_is_allowed(virt: Plane) -> None:
    for name in ("a", "b"):
        await virt.create(VMS, a_vm(name=name))
        await virt.phase("Running", name)
        await virt.api.patch(VMIS, name, {"status": {"conditions": ROOTED}}, NAMESPACE)
    await runs(virt, "held", conditions=ROOTED, evictionStrategy="LiveMigrate")
    updates = {"workloadUpdateMethods": ["LiveMigrate"], "batchEvictionSize": 1, "batchEvictionInterval": "1s"}
    await says(virt, imageTag="new", workloadUpdateStrategy=updates)
    await virt.until(lambda: _is(marked(virt), {"a", "b", "held"}))
    await looked(virt)
    assert set((await images(virt)).values()) == {OLD}, "Evict was not allowed"
    await says(virt, workloadUpdateStrategy={"workloadUpdateMethods": ["LiveMigrate", "Evict"]})
    await virt.until(lambda: _is(images(virt), {"a": NEW, "b": NEW, "held": OLD}))
    evicted = [e for e in await virt.api.list(EVENTS, NAMESPACE) if e["reason"] == "SuccessfulEvict"]
    assert {e["involvedObject"]["name"] for e in evicted} == {"a", "b"}
    assert not await migrations(virt)


async def test_a_change_that_is_taken_back_takes_its_migrations_back(virt: Plane) -> None:
    await runs(virt, "vm")
    [before] = await virt.pods()
    virt.kubelets.lets_run = lambda pod: not pod.for_migration
    await says(virt, imageTag="bad", workloadUpdateStrategy={"workloadUpdateMethods": ["LiveMigrate"]})
    await virt.until(lambda: _two_pods(virt))
    await says(virt, settled=False, imageTag=None)
    await virt.until(lambda: _is(_names(migrations(virt)), set()))
    await virt.until(lambda: _is(_names(virt.pods()), {before["metadata"]["name"]}))
    await virt.until(lambda: _is(marked(virt), set()))
    assert "SuccessfulChangeAbortion" in await virt.reasons()


async def test_a_vm_that_fails_to_move_is_tried_again_after_ever_longer_pauses(
    virt: Plane, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retries, "FIRST_PAUSE", 1.0)
    await runs(virt, "vm")
    virt.handlers.lets_move = lambda vmi, step: step == "abort"
    await says(virt, imageTag="new", workloadUpdateStrategy={"workloadUpdateMethods": ["LiveMigrate"]})
    for number in (1, 2):
        [under_way] = await virt.until(lambda: _unfinished(virt))
        uid = under_way["metadata"]["uid"]
        [target] = [pod for pod in virt.kubelets._cache.list() if pod.migration_uid == uid]
        await virt.kubelets.report(target, {"phase": "Failed"})
        await virt.until(lambda under_way=under_way: _phase(virt, under_way["metadata"]["name"], "Failed"))
        assert len(await migrations(virt)) == number
    virt.handlers.lets_move = lambda vmi, step: True
    await virt.until(lambda: _is(_values(images(virt)), {NEW}))
    await virt.until(lambda: _is(_outcomes(virt), {"Failed": 2, "Succeeded": 1}))


async def test_controllers_that_die_at_any_moment_move_every_vm_once(virt: Plane) -> None:
    vms = [f"vm{i}" for i in range(6)]
    await runs(virt, *vms)
    await says(virt, imageTag="new", workloadUpdateStrategy={"workloadUpdateMethods": ["LiveMigrate"]})
    for _ in range(8):
        writes = sum(virt.controller_api.writes.values())
        await virt.until(lambda writes=writes: _is_more(virt, writes + 7))
        await virt.stop()
        virt.start()
        if set((await images(virt)).values()) == {NEW}:
            break
    await virt.until(lambda: _is(_values(images(virt)), {NEW}), deadline=40)
    assert Counter(m["spec"]["vmiName"] for m in await migrations(virt)) == dict.fromkeys(vms, 1)
    await virt.until(lambda: _is(_length(virt.pods()), 6))


# --- questions, to be asked until they come true


async def _outcomes(virt: Plane) -> Counter[str]:
    return Counter(m["status"]["phase"] for m in await migrations(virt))


async def _is(question: Any, answer: Any) -> bool:
    return bool(await question == answer)


async def _values(question: Any) -> set[str]:
    return set((await question).values())


async def _length(question: Any) -> int:
    return len(await question)


async def _names(question: Any) -> set[str]:
    return {obj["metadata"]["name"] for obj in await question}


async def _phase(virt: Plane, name: str, phase: str) -> bool:
    found = await virt.api.get(VMI_MIGRATIONS, name, NAMESPACE)
    return bool((found.get("status") or {}).get("phase") == phase)


async def _unfinished(virt: Plane) -> list[Obj]:
    """The migration that has a target Pod and has not ended."""
    targets = {
        pod["metadata"]["labels"].get(names.MIGRATION_UID) for pod in await virt.pods() if "nodeName" in pod["spec"]
    }
    unfinished = [m for m in await migrations(virt) if m.get("status", {}).get("phase") not in names.FINAL]
    return [m for m in unfinished if m["metadata"]["uid"] in targets]


async def _count(virt: Plane, number: int) -> bool:
    return sum(m["metadata"]["name"] != "user" for m in await migrations(virt)) == number


async def _two_pods(virt: Plane) -> bool:
    return len(await virt.pods()) == 2


async def _pool_of(virt: Plane, name: str) -> str | None:
    labels: dict[str, str] = (await virt.vmi(name))["metadata"]["labels"]
    return labels.get(names.HANDLER_POOL)


async def _is_more(virt: Plane, writes: int) -> bool:
    done = set((await images(virt)).values()) == {NEW}
    return done or sum(virt.controller_api.writes.values()) >= writes
