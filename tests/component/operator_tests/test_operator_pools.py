"""Pools that come, change and go: nodes change hands, never with two handlers, and VMs are not touched."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from hollow import NAMESPACE, Hollow, hollow

from virtfleet import __version__
from virtfleet.kube.resource import DAEMON_SETS, NODES, VMIS, Obj

GATES = {"developerConfiguration": {"featureGates": ["VirtHandlerPools", "AdditionalVirtHandlers"]}}


def pool(name: str, *, image: str = "", handler: str = "", **node_selector: str) -> dict[str, Any]:
    return {
        "name": name,
        "nodeSelector": node_selector,
        "virtLauncherImage": image or f"registry.example.com/virt-launcher:{name}",
        **({"virtHandlerImage": handler} if handler else {}),
        "selector": {"deviceNames": [f"superduper.io/{name}"]},
    }


@pytest.fixture
async def fleet(tmp_path: Path) -> AsyncIterator[Hollow]:
    async with hollow(tmp_path) as cluster:
        yield cluster


def status_of(kubevirt: Obj, name: str) -> Obj:
    return next(p for p in kubevirt["status"]["virtHandlerPools"] if p["name"] == name)


@pytest.mark.slow
async def test_a_pool_gets_its_nodes_with_its_images(fleet: Hollow) -> None:
    await fleet.install(configuration=GATES)
    await fleet.label("node2", megaslop="true")
    before = {node: fleet.tower.handlers()[node] for node in ("node0", "node1")}
    handler = "registry.example.com/virt-handler:megaslop"
    await fleet.configure(virtHandlerPools=[pool("megaslop", handler=handler, megaslop="true")])
    await fleet.settled()
    pod = await fleet.handler("node2")
    assert pod["metadata"]["labels"]["kubevirt.io/handler-pool"] == "megaslop"
    assert pod["spec"]["containers"][0]["image"] == handler
    assert pod["spec"]["initContainers"][0]["image"] == "registry.example.com/virt-launcher:megaslop"
    # Handlers of nodes that stay with the primary are not even restarted.
    assert {node: fleet.tower.handlers()[node] for node in before} == before


async def test_the_status_counts_nodes_handlers_and_vms_of_a_pool(fleet: Hollow) -> None:
    await fleet.label("node1", gpu="true")
    await fleet.label("node2", gpu="true")
    await fleet.install(configuration=GATES, virtHandlerPools=[pool("gpu", gpu="true"), pool("none", absent="x")])
    for name, image in (("new", "registry.example.com/virt-launcher:gpu"), ("old", "registry.example.com/older")):
        devices = {"gpus": [{"name": "g", "deviceName": "superduper.io/gpu"}]}
        status = {"phase": "Running", "launcherContainerImageVersion": image}
        vmi = {"metadata": {"name": name, "namespace": "default"}, "spec": {"domain": {"devices": devices}}}
        await fleet.api.create(VMIS, {**vmi, "status": status})

    async def counted() -> bool:
        told = status_of(await fleet.kubevirt(), "gpu")
        counts = {key: told.get(key) for key in ("nodes", "desiredHandlers", "readyHandlers", "updatedHandlers")}
        return set(counts.values()) == {2} and (told.get("matchedVMIs"), told.get("outdatedVMIs")) == (2, 1)

    await fleet.until(counted)
    kubevirt = await fleet.kubevirt()
    assert status_of(kubevirt, "gpu")["conditions"][0]["status"] == "True"
    assert status_of(kubevirt, "none")["conditions"][0]["reason"] == "NoNodes"


@pytest.mark.slow
async def test_switching_the_gate_off_takes_pools_away_and_says_so(fleet: Hollow) -> None:
    await fleet.label("node0", gpu="true")
    await fleet.install(configuration=GATES, virtHandlerPools=[pool("gpu", gpu="true")])
    await fleet.settled()
    assert await fleet.daemon_sets() == ["virt-handler", "virt-handler-gpu"]
    await fleet.configure(configuration={"developerConfiguration": {"featureGates": []}})
    resting = await fleet.condition("PoolsResting")
    assert "VirtHandlerPools" in resting["message"]
    await fleet.settled()
    assert await fleet.daemon_sets() == ["virt-handler"]


async def test_both_kinds_of_pools_share_the_nodes(fleet: Hollow) -> None:
    await fleet.label("node0", a="1", b="1")
    await fleet.label("node1", b="1")
    await fleet.install(
        configuration=GATES,
        virtHandlerPools=[pool("first", a="1")],
        additionalVirtHandlers=[{"name": "second", "nodeSelector": {"b": "1"}}],
    )
    await fleet.settled()
    assert await fleet.owners() == {
        "node0": "virt-handler-first",
        "node1": "virt-handler-second",
        "node2": "virt-handler",
    }


@pytest.mark.slow
async def test_pools_and_labels_change_at_random_and_no_node_ever_has_two_handlers(tmp_path: Path) -> None:
    dice = random.Random(7)
    async with hollow(tmp_path, nodes=5) as fleet:
        await fleet.install(configuration=GATES)
        for round_number in range(12):
            names = dice.sample(["p", "q", "r"], dice.randint(0, 3))
            pools = [
                pool(name, **{key: dice.choice("12") for key in dice.sample(["x", "y", "z"], dice.randint(1, 2))})
                for name in names
            ]
            await fleet.configure(virtHandlerPools=pools)
            for _ in range(4):
                key, value = dice.choice("xyz"), dice.choice(["1", "2", None])
                await fleet.label(f"node{dice.randrange(5)}", **{key: value})
            if round_number % 4 == 3:
                await fleet.kill_operator()
                fleet.start_operator()
            if round_number % 3 == 2:
                await fleet.settled()
        await fleet.settled()
        assert fleet.tower.doubles == []


@pytest.mark.slow
async def test_a_new_image_rolls_out_by_canary_and_stops_when_the_canary_fails(tmp_path: Path) -> None:
    async with hollow(tmp_path, nodes=5) as fleet:
        await fleet.install()
        before = dict(fleet.tower.handlers())
        failing = await fleet.failing_canary()
        degraded = await fleet.condition("Degraded", reason="CanaryFailed")
        assert failing in degraded["message"] and "CrashLoopBackOff" in degraded["message"]
        assert sum(pod not in before.values() for pod in fleet.tower.handlers().values()) == 1
        await fleet.event("CanaryFailed")
        fleet.fail(lambda pod: False)
        await fleet.configure(imageTag="mended")
        await fleet.settled()

        async def rolled() -> bool:
            pods = [await fleet.handler(node) for node in fleet.tower.handlers()]
            return {p["spec"]["containers"][0]["image"] for p in pods} == {"virtfleet/virt-handler:mended"}

        await fleet.until(rolled)


@pytest.mark.slow
async def test_a_restart_by_kubectl_replaces_every_handler(fleet: Hollow) -> None:
    await fleet.install()
    before = set(fleet.tower.handlers().values())
    restart = {"metadata": {"annotations": {"kubectl.kubernetes.io/restartedAt": "2026-01-01T00:00:00Z"}}}
    await fleet.api.patch(DAEMON_SETS, "virt-handler", {"spec": {"template": restart}}, NAMESPACE)

    async def replaced() -> bool:
        return len(fleet.tower.handlers()) == 3 and before.isdisjoint(fleet.tower.handlers().values())

    await fleet.until(replaced)
    await fleet.settled()


@pytest.mark.slow
async def test_handlers_of_different_versions_make_the_installation_degraded(fleet: Hollow) -> None:
    await fleet.label("node0", gpu="true")
    await fleet.install(configuration=GATES, virtHandlerPools=[pool("gpu", gpu="true")])
    for node, version in (("node0", "0.0.9"), ("node1", __version__), ("node2", __version__)):
        await fleet.api.patch(NODES, node, {"metadata": {"annotations": {"virtfleet.io/handler-version": version}}})
    degraded = await fleet.condition("Degraded", reason="HandlerVersionsDiffer")
    assert "0.0.9: virt-handler-gpu" in degraded["message"]

    async def told() -> bool:
        return status_of(await fleet.kubevirt(), "gpu")["versions"] == ["0.0.9"]

    await fleet.until(told)


@pytest.mark.slow
async def test_the_primary_is_narrowed_before_a_pool_takes_its_nodes(fleet: Hollow) -> None:
    """Seen from the DaemonSets themselves, in the order of their commits."""
    await fleet.label("node0", gpu="true")
    await fleet.install(configuration=GATES)
    seen: list[str] = []

    def look(change: Any) -> None:
        seen.append(f"{change.type} {change.record.name}")

    fleet.api._operations.store.listen("apps/daemonsets", look)
    await fleet.configure(virtHandlerPools=[pool("gpu", gpu="true")])
    await fleet.settled()
    assert seen.index("MODIFIED virt-handler") < seen.index("ADDED virt-handler-gpu")
    [primary] = [ds for ds in await fleet.api.list(DAEMON_SETS) if ds["metadata"]["name"] == "virt-handler"]
    assert "gpu" in str(primary["spec"]["template"]["spec"]["affinity"]["nodeAffinity"])
