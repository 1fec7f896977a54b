"""New images cost no node its handler: first the control plane, then a proof on the node, one canary, the others."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import orjson
import pytest
from hollow import NAMESPACE, Hollow, hollow

from virtfleet import __version__
from virtfleet.kube.resource import PODS, Obj
from virtfleet.local.apiserver.objects.store import Change
from virtfleet.operator import standin

GATES = {"developerConfiguration": {"featureGates": ["VirtHandlerPools", "AdditionalVirtHandlers"]}}
BAD = "registry.invalid/virt-launcher:none"


def pool(name: str, image: str = "", **node_selector: str) -> dict[str, Any]:
    return {
        "name": name,
        "nodeSelector": node_selector,
        "virtLauncherImage": image or f"registry.example.com/virt-launcher:{name}",
        "selector": {"deviceNames": [f"superduper.io/{name}"]},
    }


@pytest.fixture
async def fleet(tmp_path: Path) -> AsyncIterator[Hollow]:
    async with hollow(tmp_path) as cluster:
        cluster.refuse(lambda image: "invalid" in image or image.endswith(":nope"))
        yield cluster


async def proofs(fleet: Hollow) -> list[Obj]:
    return await fleet.api.list(PODS, NAMESPACE, labels="kubevirt.io=virt-handler-proof")


async def told(fleet: Hollow) -> dict[str, str]:
    return {c["type"]: c["status"] for c in (await fleet.kubevirt())["status"]["conditions"]}


@pytest.mark.slow
async def test_a_tag_that_cannot_be_pulled_costs_no_node_its_handler(fleet: Hollow) -> None:
    """virt-api does not come up with it, so no handler is touched."""
    await fleet.install()
    before = dict(fleet.tower.handlers())
    await fleet.configure(imageTag="nope")
    degraded = await fleet.condition("Degraded", reason="ControlPlaneFailed")
    assert "no handler is touched" in degraded["message"] and "ErrImagePull" in degraded["message"]
    assert ":nope" in degraded["message"]
    assert (await told(fleet))["Available"] == "True", "the old replicas serve"
    assert (await fleet.kubevirt())["status"]["health"] == "Degraded"
    assert fleet.tower.handlers() == before and not await proofs(fleet)
    await fleet.configure(imageTag=None)
    await fleet.settled()
    assert fleet.tower.handlers() == before


@pytest.mark.slow
async def test_handlers_are_not_touched_before_the_control_plane_is_new(fleet: Hollow) -> None:
    await fleet.install()
    before = dict(fleet.tower.handlers())
    fleet.fail(lambda pod: pod.name.startswith("virt-controller"))
    await fleet.configure(imageTag="v2")
    waiting = await fleet.condition("Progressing", reason="Changing")

    async def waits() -> bool:
        nonlocal waiting
        waiting = await fleet.condition("Progressing", reason="Changing")
        return "handlers wait for the control plane" in waiting["message"]

    await fleet.until(waits)
    assert fleet.tower.handlers() == before and not await proofs(fleet)
    fleet.fail(lambda pod: False)
    fleet.kubelets.look_again()
    await fleet.settled()
    assert set(fleet.tower.handlers().values()).isdisjoint(before.values())
    assert not await proofs(fleet), "what was proven is cleared away"
    assert not fleet.tower.unproven


@pytest.mark.slow
async def test_a_new_pool_whose_image_cannot_be_pulled_takes_no_handler_away(fleet: Hollow) -> None:
    await fleet.label("node1", slop="true")
    await fleet.install(configuration=GATES)
    before = dict(fleet.tower.handlers())
    await fleet.configure(virtHandlerPools=[pool("slop", BAD, slop="true")])
    degraded = await fleet.condition("Degraded", reason="ImageUnproven")
    for part in ("virt-handler-slop", "node1", BAD, "ErrImagePull", before["node1"]):
        assert part in degraded["message"]
    assert fleet.tower.handlers() == before
    assert (await told(fleet))["Available"] == "True", "every node is served"
    await fleet.event("ImageUnproven")
    # Corrected, it goes on by itself.
    await fleet.configure(virtHandlerPools=[pool("slop", slop="true")])
    await fleet.settled()
    assert (await fleet.owners())["node1"] == "virt-handler-slop"
    assert not await proofs(fleet) and not fleet.tower.unproven


@pytest.mark.slow
async def test_a_node_that_is_labelled_into_a_broken_pool_keeps_its_handler(fleet: Hollow) -> None:
    await fleet.install(configuration=GATES, virtHandlerPools=[pool("slop", BAD, slop="true")])
    before = dict(fleet.tower.handlers())

    await at_rest(fleet, nodes=3)
    await fleet.label("node1", slop="true")
    await fleet.condition("Degraded", reason="ImageUnproven")
    assert fleet.tower.handlers() == before
    await fleet.label("node1", slop=None)
    await fleet.settled()
    assert fleet.tower.handlers() == before
    await fleet.label("node1", slop="true")
    await fleet.condition("Degraded", reason="ImageUnproven")
    await fleet.configure(virtHandlerPools=[pool("slop", slop="true")])
    await fleet.settled()
    assert (await fleet.owners())["node1"] == "virt-handler-slop"


@pytest.mark.slow
async def test_a_pool_is_not_taken_away_before_the_primarys_images_are_proven_on_its_nodes(fleet: Hollow) -> None:
    """The primary's launcher was never on that node, and its registry is away by now."""
    await fleet.label("node1", slop="true")
    await fleet.install(configuration=GATES, virtHandlerPools=[pool("slop", slop="true")])
    await fleet.settled()
    before = dict(fleet.tower.handlers())
    fleet.refuse(lambda image: f"virt-launcher:{__version__}" in image)
    await fleet.configure(virtHandlerPools=[])
    degraded = await fleet.condition("Degraded", reason="ImageUnproven")
    assert "virt-handler does not work on node1" in degraded["message"]
    assert fleet.tower.handlers() == before
    assert await fleet.daemon_sets() == ["virt-handler", "virt-handler-slop"]
    fleet.refuse(lambda image: False)
    await fleet.settled()
    assert await fleet.daemon_sets() == ["virt-handler"]
    assert not fleet.tower.unproven
    await at_rest(fleet, nodes=3)


@pytest.mark.slow
async def test_a_killed_operator_finds_its_proofs_again(fleet: Hollow) -> None:
    await fleet.label("node1", slop="true")
    await fleet.install(configuration=GATES)
    await fleet.configure(virtHandlerPools=[pool("slop", BAD, slop="true")])
    await fleet.condition("Degraded", reason="ImageUnproven")
    [proof] = await proofs(fleet)
    await fleet.kill_operator()
    fleet.start_operator()
    await fleet.configure(productName="another")
    await fleet.condition("Degraded", reason="ImageUnproven")
    assert [p["metadata"]["uid"] for p in await proofs(fleet)] == [proof["metadata"]["uid"]]
    fleet.refuse(lambda image: False)
    await fleet.settled()


@pytest.mark.slow
async def test_there_is_one_canary_in_all_pools_together(tmp_path: Path) -> None:
    async with hollow(tmp_path, nodes=6) as fleet:
        for i in range(6):
            await fleet.label(f"node{i}", part=str(i % 3))
        pools = [pool(f"p{i}", part=str(i)) for i in (1, 2)]
        await fleet.install(configuration=GATES, virtHandlerPools=pools)
        await fleet.settled()
        before = dict(fleet.tower.handlers())
        failing = await fleet.failing_canary()
        degraded = await fleet.condition("Degraded", reason="CanaryFailed")
        assert failing in degraded["message"] and "CrashLoopBackOff" in degraded["message"]
        unavailable = await fleet.condition("Available", "False", reason="HandlersNotReady")
        assert "1 of 6 nodes have no ready handler" in unavailable["message"]
        assert sum(pod not in before.values() for pod in fleet.tower.handlers().values()) == 1
        fleet.fail(lambda pod: False)
        await fleet.configure(imageTag=None)
        await fleet.settled()
        assert (await told(fleet))["Available"] == "True"
        assert sum(pod not in before.values() for pod in fleet.tower.handlers().values()) == 1, "only it was replaced"


@pytest.mark.slow
async def test_a_node_that_is_down_is_named_and_holds_nobody_up(fleet: Hollow) -> None:
    await fleet.install()
    await fleet.settled()
    await fleet.lose_power("node1")
    degraded = await fleet.condition("Degraded")
    assert "1 of 3 nodes have no ready handler: node1 (the node itself is not Ready)" in degraded["message"]
    await fleet.configure(imageTag="v2")

    async def others() -> bool:
        assert fleet.tower.handlers().keys() >= {"node0", "node2"}
        pods = [await fleet.handler(node) for node in ("node0", "node2")]
        return {p["spec"]["containers"][0]["image"] for p in pods} == {"virtfleet/virt-handler:v2"}

    await fleet.until(others)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [23, 42])
async def test_pools_images_and_labels_change_at_random_and_no_handler_goes_before_its_successor_is_proven(
    tmp_path: Path, seed: int
) -> None:
    dice = random.Random(seed)
    async with hollow(tmp_path, nodes=5) as fleet:
        await fleet.install(configuration=GATES, virtHandlerPools=[pool("idle", nobody="x")])
        await at_rest(fleet)
        for round_number in range(8):
            fleet.refuse(lambda image: "invalid" in image)
            pools = [
                pool(name, dice.choice([BAD, "", f"registry.example.com/virt-launcher:{round_number}"]), **selector)
                for name in dice.sample(["p", "q", "r"], dice.randint(0, 3))
                for selector in [{dice.choice("xy"): dice.choice("12")}]
            ]
            await fleet.configure(virtHandlerPools=pools, imageTag=dice.choice([None, "v2", "v3"]))
            if round_number % 3 == 2:
                await fleet.kill_operator()
                fleet.start_operator()
            if dice.random() < 0.6:  # else what comes next finds nodes between two handlers
                await at_rest(fleet)
            if dice.random() < 0.5:
                fleet.refuse(lambda image: False)
            for _ in range(dice.randint(0, 3)):  # into a pool, out of one, or from one to the next
                await fleet.label(f"node{dice.randrange(5)}", **{dice.choice("xy"): dice.choice(["1", "2", None])})
        fleet.refuse(lambda image: False)
        await fleet.settled()
        assert fleet.tower.doubles == []
        assert fleet.tower.unproven == []


@pytest.mark.slow
async def test_a_node_that_leaves_its_pool_keeps_its_handler_until_the_primarys_is_proven(fleet: Hollow) -> None:
    await fleet.label("node1", slop="true")
    await fleet.install(configuration=GATES, virtHandlerPools=[pool("slop", slop="true")])
    await fleet.settled()
    await at_rest(fleet, nodes=3)
    before = dict(fleet.tower.handlers())
    fleet.refuse(lambda image: f"virt-launcher:{__version__}" in image)
    await fleet.label("node1", slop=None)
    degraded = await fleet.condition("Degraded", reason="ImageUnproven")
    assert "virt-handler does not work on node1" in degraded["message"]
    assert fleet.tower.handlers() == before
    fleet.refuse(lambda image: False)
    await fleet.settled()
    assert (await fleet.owners())["node1"] == "virt-handler"
    assert not fleet.tower.unproven


async def at_rest(fleet: Hollow, nodes: int = 5) -> None:
    """Everything is done, or stopped; every node has a handler, which keeps it."""

    async def check() -> bool:
        kubevirt = await fleet.kubevirt()
        assert kubevirt["status"]["observedGeneration"] == kubevirt["metadata"]["generation"]
        assert (await told(fleet))["Progressing"] == "False", kubevirt["status"]["conditions"]
        pods = [await fleet.handler(node) for node in fleet.tower.handlers()]
        assert len(pods) == nodes and not any("deletionTimestamp" in pod["metadata"] for pod in pods)
        ready = [c["status"] for pod in pods for c in pod["status"].get("conditions", ()) if c["type"] == "Ready"]
        assert ready == ["True"] * nodes
        return await fleet.keepers() == await fleet.owners()

    await fleet.until(check)


@pytest.mark.slow
async def test_somebody_stands_in_for_each_handler_while_it_is_replaced(tmp_path: Path) -> None:
    """At every commit each node has a handler that has come up: its own, or one that stands in."""
    async with hollow(tmp_path) as cluster:
        await cluster.install()
        await cluster.settled()
        up: dict[str, dict[str, bool]] = {f"node{i}": {} for i in range(3)}
        gaps: list[str] = []

        def see(change: Change) -> None:
            pod = orjson.loads(change.record.data)
            node, meta = pod["spec"].get("nodeName", ""), pod["metadata"]
            if meta["labels"].get("kubevirt.io") != "virt-handler" or node not in up:
                return
            conditions = (pod.get("status") or {}).get("conditions") or ()
            ready = any(c["type"] == "Ready" and c["status"] == "True" for c in conditions)
            alive = change.type != "DELETED" and "deletionTimestamp" not in meta
            up[node][meta["name"]] = ready and alive
            if len(up[node]) > 1 and not any(up[node].values()):
                gaps.append(f"{node} after {meta['name']}")

        cluster.tower.listen("/pods", see)
        await cluster.configure(imageTag="next")
        await cluster.settled()
        await cluster.until(lambda: _no_stand_ins(cluster))
        assert all(len(names) == 3 for names in up.values()), "the old one, the one that stood in, the new one"
        assert not gaps


@pytest.mark.slow
async def test_who_stands_in_stays_until_the_next_handler_has_come_however_late_that_is(tmp_path: Path) -> None:
    async with hollow(tmp_path) as cluster:
        await cluster.install(configuration=GATES)
        await cluster.settled()
        await cluster.label("node1", slop="true")
        cluster.kubelets.healthy = lambda pod: not pod.name.startswith(standin.PREFIX)
        await cluster.configure(virtHandlerPools=[pool("slop", slop="true")])
        name = await cluster.until(lambda: _standing_in(cluster))
        await cluster.cluster.stop()  # so the old handler stays, though the node is another DaemonSet's now
        cluster.kubelets.healthy = lambda pod: True
        cluster.kubelets.look_again()

        async def given() -> bool:
            return (await cluster.keepers())["node1"] == "virt-handler-slop"

        await cluster.until(given)
        await cluster.configure(workloadUpdateStrategy={"workloadUpdateMethods": []})
        await cluster.condition("Progressing")  # of that change: the operator has looked once more
        assert "deletionTimestamp" not in (await cluster.api.get(PODS, name, NAMESPACE))["metadata"]
        cluster.cluster.start()
        await cluster.settled()
        await cluster.until(lambda: _no_stand_ins(cluster))


@pytest.mark.slow
async def test_a_handler_that_does_not_come_up_costs_no_node_its_handler(tmp_path: Path) -> None:
    async with hollow(tmp_path) as cluster:
        await cluster.install()
        await cluster.settled()
        before = cluster.tower.handlers()
        cluster.kubelets.healthy = lambda pod: not pod.name.startswith(standin.PREFIX)
        await cluster.configure(imageTag="crashing")
        await cluster.crash(await cluster.until(lambda: _standing_in(cluster)))
        told = await cluster.condition("Degraded", reason="CanaryFailed")
        assert "virt-handler does not come up on" in told["message"] and "CrashLoopBackOff" in told["message"]
        assert cluster.tower.handlers() == before, "nobody was taken away"
        cluster.kubelets.healthy = lambda pod: True
        await cluster.configure(imageTag=None)
        await cluster.settled()
        await cluster.until(lambda: _no_stand_ins(cluster))
        assert cluster.tower.handlers() == before


async def _standing_in(cluster: Hollow) -> str:
    pods = await cluster.api.list(PODS, NAMESPACE)
    return next((p["metadata"]["name"] for p in pods if p["metadata"]["name"].startswith(standin.PREFIX)), "")


async def _no_stand_ins(cluster: Hollow) -> bool:
    return not await _standing_in(cluster)
