"""Nodes whose handler is silent take no more VMs, and VMs lost there are said to be lost."""

from __future__ import annotations

import time
from collections.abc import Iterable
from itertools import count

from virt_plane import Plane, a_vm, a_vmi

from bench.simulator import NAMESPACE
from virtfleet.api import names
from virtfleet.api.times import timestamp
from virtfleet.kube.resource import EVENTS, NODES, PODS, VMIS, VMS, Obj


async def beat(virt: Plane, node: str, time_there: float) -> None:
    """A sign of life of a handler; what time it is on its node is nobody's business."""
    note = {"annotations": {names.HANDLER_HEARTBEAT: timestamp(time_there)}}
    await virt.api.patch(NODES, node, {"metadata": note})


async def start_impatient(virt: Plane) -> None:
    await virt.stop()
    virt.silence = 2.0
    virt.start()


async def schedulable(virt: Plane, node: str) -> str:
    label: str = (await virt.api.get(NODES, node))["metadata"]["labels"][names.SCHEDULABLE]
    return label


async def marked(virt: Plane, node: str, others: Iterable[str] = ()) -> None:
    """Wait until the node is marked, while the others give signs of life."""
    ticks = count()

    async def false() -> bool:
        for other in others:
            await beat(virt, other, next(ticks))
        return await schedulable(virt, node) == "false"

    await virt.until(false)


async def test_a_node_is_marked_when_its_handler_falls_silent(virt: Plane) -> None:
    await start_impatient(virt)
    await beat(virt, "node0", time.time() + 3600.0)
    await marked(virt, "node0", others=["node1"])
    assert await schedulable(virt, "node1") == "true"
    assert await schedulable(virt, "node2") == "true"  # no handler ever wrote there

    async def told() -> bool:
        events = [e for e in await virt.api.list(EVENTS) if e["reason"] == "NodeUnresponsive"]
        return [e["involvedObject"]["name"] for e in events] == ["node0"]

    await virt.until(told)


async def test_only_vmis_without_a_living_pod_are_lost_with_their_node(virt: Plane) -> None:
    virt.kubelets.place = lambda pod: "node0"
    for name in ("alive", "dead"):
        await virt.create(VMIS, a_vmi(name))
    await virt.phase("Running", "alive")
    dead = await virt.phase("Running", "dead")
    over = {"phase": "Failed", "reason": "NodeLost"}
    await virt.api.patch(PODS, _pod_of(dead), {"status": over}, NAMESPACE, subresource="status")
    await start_impatient(virt)
    await beat(virt, "node0", time.time())
    lost = await virt.phase("Failed", "dead")
    assert lost["status"]["reason"] == "NodeUnresponsive"
    assert lost["status"]["phaseTransitionTimestamps"][-1]["phase"] == "Failed"
    await marked(virt, "node0")
    assert (await virt.vmi("alive"))["status"]["phase"] == "Running"

    async def told() -> bool:
        events = [e for e in await virt.api.list(EVENTS, NAMESPACE) if e["reason"] == "NodeUnresponsive"]
        said = [e["message"] for e in events if e["involvedObject"]["name"] == "alive"]
        return len(said) == 1 and "the VM stays there until the node is fenced" in said[0]

    await virt.until(told)


def _pod_of(vmi: Obj) -> str:
    meta = vmi["metadata"]
    return f"virt-launcher-{meta['name']}-{meta['uid'].partition('-')[0]}"


async def test_vmis_of_a_node_that_is_gone_are_lost_too(virt: Plane) -> None:
    virt.kubelets.place = lambda pod: "node0"
    await virt.create(VMIS, a_vmi())
    vmi = await virt.phase("Running")
    await virt.stop()
    await virt.api.patch(PODS, _pod_of(vmi), {"status": {"phase": "Failed"}}, NAMESPACE, subresource="status")
    await virt.api.delete(NODES, "node0")
    virt.start()
    assert (await virt.phase("Failed"))["status"]["reason"] == "NodeUnresponsive"


async def test_a_vm_of_a_dead_node_starts_elsewhere_when_its_pod_is_given_up_and_not_before(virt: Plane) -> None:
    """Kubernetes asks the Pods of a dead node to end after five minutes, and gives them up when the node is fenced."""
    virt.kubelets.place = lambda pod: "node0"
    await virt.create(VMS, a_vm())
    vmi = await virt.phase("Running")
    virt.kubelets.lets_go = lambda pod: pod.node != "node0"
    virt.kubelets.place = lambda pod: "node1"
    await virt.api.delete(PODS, _pod_of(vmi), NAMESPACE)
    await start_impatient(virt)
    await beat(virt, "node0", time.time())
    await marked(virt, "node0", others=["node1", "node2"])
    now = await virt.vmi()
    assert (now["metadata"]["uid"], now["status"]["phase"]) == (vmi["metadata"]["uid"], "Running")
    await virt.api.delete(PODS, _pod_of(vmi), NAMESPACE, grace=0)

    async def elsewhere() -> bool:
        found = await virt.vmi()
        return bool(found["metadata"]["uid"] != vmi["metadata"]["uid"] and found["status"].get("nodeName") == "node1")

    await virt.until(elsewhere)
