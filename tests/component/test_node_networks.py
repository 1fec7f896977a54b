"""Pods on networks beside the cluster's, with real network namespaces: attached, detached, left by killed agents."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from node_cluster import NodeCluster, needs_root, node_cluster

from virtfleet.api import names
from virtfleet.kube.resource import EVENTS, NETWORK_ATTACHMENTS, PODS, VMIS, Obj
from virtfleet.local.apiserver.bootstrap import default_objects
from virtfleet.local.apiserver.kinds.crds import CustomKinds
from virtfleet.local.node import secondary
from virtfleet.pods.networks import NETWORK_STATUS, NETWORKS
from virtfleet.work.commands import run

pytestmark = [needs_root, pytest.mark.slow]

BLUE = {"cniVersion": "0.3.1", "type": "bridge", "ipam": {"type": "host-local", "subnet": "10.77.0.0/24"}}


@pytest.fixture
async def cluster() -> AsyncIterator[NodeCluster]:
    async with node_cluster() as made:
        CustomKinds(made.kinds, made.operations).load()
        [[kind, definition]] = [each for each in default_objects() if each[0].kind == "CustomResourceDefinition"]
        await made.api.create(kind, definition)
        await made.start("n1", 1)
        await made.start("n2", 2)
        yield made


async def define(cluster: NodeCluster, name: str, config: Any, namespace: str = "default") -> None:
    spec = {"config": config if isinstance(config, str) else json.dumps(config)}
    await cluster.api.create(NETWORK_ATTACHMENTS, {"metadata": {"name": name, "namespace": namespace}, "spec": spec})


async def attached(cluster: NodeCluster, name: str, networks: str, node: str = "n1") -> Obj:
    await cluster.run(name, "sleep 1000", node, metadata={"annotations": {NETWORKS: networks}})
    return await cluster.ready(name)


def said(pod: Obj) -> dict[str, Obj]:
    """What is said of a Pod's networks, by interface."""
    text = pod["metadata"].get("annotations", {}).get(NETWORK_STATUS, "[]")
    return {each["interface"]: each for each in json.loads(text)}


async def inside(cluster: NodeCluster, pod: Obj, *command: str) -> str:
    namespace = cluster.layout(pod["spec"]["nodeName"]).sandboxes / pod["metadata"]["uid"] / "ns" / "net"
    return await run("nsenter", f"--net={namespace}", *command)


async def reaches(cluster: NodeCluster, pod: Obj, address: str) -> bool:
    namespace = cluster.layout(pod["spec"]["nodeName"]).sandboxes / pod["metadata"]["uid"] / "ns" / "net"
    ping = ("busybox", "ping", "-c1", "-W2", address)
    return "1 packets received" in await run("nsenter", f"--net={namespace}", *ping, accept=(0, 1))


async def has_links(cluster: NodeCluster, pod: Obj, wanted: set[str]) -> bool:
    shown = json.loads(await inside(cluster, pod, "ip", "-json", "link"))
    return {link["ifname"] for link in shown} - {"lo"} == wanted


async def ask_for(cluster: NodeCluster, name: str, networks: str) -> None:
    await cluster.api.patch(PODS, name, {"metadata": {"annotations": {NETWORKS: networks}}}, "default")


async def test_pods_of_two_nodes_reach_each_other_and_nobody_on_another_network(cluster: NodeCluster) -> None:
    await define(cluster, "blue", BLUE)
    await define(cluster, "red", BLUE)
    one = await attached(cluster, "one", "blue@net1", "n1")
    two = await attached(cluster, "two", "blue@net1", "n2")
    other = await attached(cluster, "other", "red@net1", "n2")
    assert (said(one)["net1"]["ips"], said(two)["net1"]["ips"]) == (["10.77.0.2"], ["10.77.0.3"])
    assert said(other)["net1"]["ips"] == ["10.77.0.2"], "each network gives out its own addresses"
    assert said(one)["eth0"]["default"] and said(one)["net1"]["name"] == "default/blue"
    await cluster.eventually(lambda: reaches(cluster, one, "10.77.0.3"))
    assert not await reaches(cluster, other, "10.77.0.3")
    machine = str(cluster.network.gateway)
    assert await reaches(cluster, one, machine), "by the cluster's network"
    await inside(cluster, one, "ip", "route", "replace", machine, "dev", "net1")
    assert not await reaches(cluster, one, machine), "the machine answers nobody there"


async def test_a_running_pod_is_attached_and_detached(cluster: NodeCluster) -> None:
    await define(cluster, "blue", BLUE)
    pod = await attached(cluster, "one", "")
    await ask_for(cluster, "one", json.dumps([{"name": "blue", "interface": "podx", "mac": "02:00:00:00:00:07"}]))
    pod = await cluster.until("one", lambda pod: "podx" in said(pod))
    assert said(pod)["podx"]["mac"] == "02:00:00:00:00:07"
    assert "02:00:00:00:00:07" in await inside(cluster, pod, "ip", "link", "show", "podx")
    await ask_for(cluster, "one", "blue@podx,blue@pody")
    pod = await cluster.until("one", lambda pod: "pody" in said(pod))
    assert said(pod)["podx"]["mac"] == "02:00:00:00:00:07", "what was there stays"
    await ask_for(cluster, "one", "[]")
    pod = await cluster.until("one", lambda pod: said(pod).keys() == {"eth0"})
    assert "pod" not in await inside(cluster, pod, "ip", "-br", "link")
    assert pod["status"]["containerStatuses"][0]["restartCount"] == 0


async def test_a_vm_that_moves_has_the_same_address_there(cluster: NodeCluster) -> None:
    await define(cluster, "blue", BLUE)

    async def launcher(name: str, node: str, vmi: str) -> list[str]:
        owner = {"apiVersion": VMIS.api_version, "kind": VMIS.kind, "name": "vm", "uid": vmi, "controller": True}
        metadata = {"labels": {names.CREATED_BY: vmi}, "ownerReferences": [owner], "annotations": {NETWORKS: "blue@a"}}
        await cluster.run(name, "sleep 1000", node, metadata=metadata)
        found: list[str] = said(await cluster.ready(name))["a"]["ips"]
        return found

    here = await launcher("source", "n1", "u")
    assert await launcher("target", "n2", "u") == here
    assert await launcher("other", "n2", "v") != here


async def test_what_cannot_be_attached_is_told_and_comes_when_it_can(cluster: NodeCluster) -> None:
    async def told(words: str) -> bool:
        return any(words in event["message"] for event in await cluster.api.list(EVENTS, "default"))

    await cluster.run("new", "sleep 1000", metadata={"annotations": {NETWORKS: "blue"}})
    await cluster.eventually(lambda: told("there is no such NetworkAttachmentDefinition; create it"))
    running = await attached(cluster, "old", "")
    await define(cluster, "odd", {"type": "macvlan", "master": "eth0"})
    await ask_for(cluster, "old", "odd,theirs/blue")
    await cluster.eventually(lambda: told("definitions of namespace theirs are not for Pods of default"))
    await ask_for(cluster, "old", "odd")
    await cluster.eventually(lambda: told("network default/odd: spec.config has type macvlan"))
    assert (await cluster.pod("old"))["status"]["phase"] == "Running"
    await define(cluster, "blue", BLUE)
    assert "net1" in said(await cluster.ready("new"))
    assert running["metadata"]["uid"] == (await cluster.pod("old"))["metadata"]["uid"]


async def test_a_killed_agent_leaves_nothing_and_forgets_nothing(cluster: NodeCluster) -> None:
    """One is killed at random instants while Pods are attached, and what is left is as if it had not been."""
    await define(cluster, "blue", BLUE)
    await attached(cluster, "one", "blue@a")
    await attached(cluster, "beside", "blue@a", "n2")
    await cluster.stop("n1")
    await cluster.serve()
    for round_ in range(6):
        agent = cluster.spawn("n1")
        await ask_for(cluster, "one", "blue@a,blue@b,blue@c" if round_ % 2 else "blue@a")
        wanted = {"eth0", "a", "b", "c"} if round_ % 2 else {"eth0", "a"}
        if round_ < 4:
            await asyncio.sleep(0.4 + 0.3 * round_)  # the instant of the kill, and nothing that is waited for
            agent.kill()
            agent.wait()
        else:
            pod = await cluster.until("one", lambda pod, wanted=wanted: said(pod).keys() == wanted)
            # What it says may still be what the agent before the last one had made.
            await cluster.eventually(lambda pod=pod, wanted=wanted: has_links(cluster, pod, wanted))
            if round_ == 4:
                agent.kill()
                agent.wait()
    addresses = [each["ips"][0] for name, each in said(pod).items() if name != "eth0"]
    other = said(await cluster.pod("beside"))["a"]["ips"][0]
    assert len({*addresses, other}) == len(addresses) + 1
    outer = [secondary.outside(cluster.network, pod["metadata"]["uid"], name) for name in "abc"]
    await cluster.api.delete(PODS, "one", "default")
    await cluster.gone("one")
    links = await run("ip", "-br", "link")
    assert not any(name in links for name in outer)
