"""Pods that have the address of another one, as those do that VMs move into: which of the two is reached, and when."""

from __future__ import annotations

import socket
import sys
from collections.abc import AsyncIterator

import pytest
from node_cluster import NodeCluster, needs_root, node_cluster

from virtfleet.api import names
from virtfleet.kube.resource import PODS, VMIS, Obj
from virtfleet.work.commands import run

pytestmark = [needs_root, pytest.mark.slow]

NAMER = (
    "import socket; s = socket.create_server(('', 7000))\nwhile True:\n  c, _ = s.accept(); c.sendall(b'%s'); c.close()"
)


@pytest.fixture
async def cluster() -> AsyncIterator[NodeCluster]:
    async with node_cluster() as made:
        await made.start("n1", 1)
        await made.start("n2", 2)
        yield made


async def namer(cluster: NodeCluster, name: str, node: str, *, vmi: str = "", target: bool = False) -> Obj:
    """A pod that says its name to whoever connects."""
    owner = {"apiVersion": VMIS.api_version, "kind": VMIS.kind, "name": "vm", "uid": vmi, "controller": True}
    labels = {names.CREATED_BY: vmi} | ({names.MIGRATION_UID: "m"} if target else {})
    metadata = {"labels": labels, "ownerReferences": [owner]} if vmi else {}
    container = {"name": "c", "image": "host", "command": ["/usr/bin/python3", "-c", NAMER % name]}
    spec = {"restartPolicy": "Never", "terminationGracePeriodSeconds": 0, "containers": [container]}
    await cluster.create(name, node, metadata=metadata, **spec)
    return await cluster.ready(name)


def address(pod: Obj) -> str:
    return str(pod["status"]["podIP"])


async def announce(namespace: str) -> None:
    """Whoever has that network namespace says a word to its routers."""
    script = "from virtfleet.launcher.guestnet.network import announce; announce()"
    await run("nsenter", f"--net={namespace}", sys.executable, "-c", script)


async def reached(cluster: NodeCluster, at: str, name: str, speaking: str = "") -> None:
    """Whoever speaks in that network namespace meanwhile does so again and again, as guests do."""

    async def answers() -> bool:
        if speaking:
            await announce(speaking)
        try:
            with socket.create_connection((at, 7000), timeout=5) as connection:
                return connection.recv(100).decode() == name
        except OSError:
            return False

    await cluster.eventually(answers)


async def mark(cluster: NodeCluster, name: str) -> None:
    patch = {"metadata": {"annotations": {names.MIGRATION_TARGET_READY: "2026-01-01 00:00:00 +0000 UTC"}}}
    await cluster.api.patch(PODS, name, patch, "default")


async def test_the_new_pod_is_reached_under_the_old_address_from_the_moment_that_the_guest_is_there(
    cluster: NodeCluster,
) -> None:
    here = address(await namer(cluster, "one", "n1", vmi="u"))
    assert address(await namer(cluster, "two", "n2", vmi="u", target=True)) == here
    await reached(cluster, here, "one")
    await cluster.stop("n2")
    await mark(cluster, "two")
    await cluster.start("n2", 2)  # an agent that was not there when it was told
    await reached(cluster, here, "two")
    await cluster.delete("one")
    others = {address(await namer(cluster, f"other{n}", "n1")) for n in range(3)}
    assert here not in others
    await reached(cluster, here, "two")
    assert address(await namer(cluster, "three", "n1", vmi="u", target=True)) == here
    await reached(cluster, here, "two")
    await mark(cluster, "three")
    await reached(cluster, here, "three")


async def test_the_new_pod_is_reached_as_soon_as_something_is_heard_of_it(cluster: NodeCluster) -> None:
    here = address(await namer(cluster, "one", "n1", vmi="u"))
    two = await namer(cluster, "two", "n2", vmi="u", target=True)
    await reached(cluster, here, "one")
    namespace = cluster.layout("n2").sandboxes / two["metadata"]["uid"] / "ns" / "net"
    # The kernel of the first one may still have a word to say, until that one is off the bridge.
    await reached(cluster, here, "two", speaking=str(namespace))
    await cluster.delete("two")  # the migration has failed after all
    await reached(cluster, here, "one")


async def test_an_address_is_given_again_only_when_nobody_has_it(cluster: NodeCluster) -> None:
    here = address(await namer(cluster, "one", "n1", vmi="u"))
    await namer(cluster, "two", "n2", vmi="u", target=True)
    await mark(cluster, "two")
    await reached(cluster, here, "two")
    await cluster.delete("one")
    boxes, uid = cluster.agents["n1"].node.sandboxes, "probe"
    free = {str(boxes._choose(f"{uid}{n}")) for n in range(240)}
    assert here not in free
    for n in range(240):
        boxes._taken.pop(f"{uid}{n}")
    await cluster.delete("two")
    assert here in {str(boxes._choose(f"{uid}{n}")) for n in range(253)}


async def test_nobody_gets_the_address_of_a_pod_that_is_not_of_the_same_vm(cluster: NodeCluster) -> None:
    here = address(await namer(cluster, "one", "n1", vmi="u"))
    await mark(cluster, "one")
    owner = {"apiVersion": VMIS.api_version, "kind": VMIS.kind, "name": "x", "uid": "v", "controller": True}
    forged = {"labels": {names.CREATED_BY: "u", names.MIGRATION_UID: "m"}, "ownerReferences": [owner]}
    container = {"name": "c", "image": "host", "command": ["/usr/bin/python3", "-c", NAMER % "thief"]}
    await cluster.create("thief", "n2", metadata=forged, restartPolicy="Never", containers=[container])
    thief = await cluster.ready("thief")
    assert address(thief) != here
    await reached(cluster, address(thief), "thief")
    await reached(cluster, here, "one")
