"""Whatever of a node is killed, at whatever moment: its state converges and nothing is left behind.

The fixture counts mounts, namespaces, control groups, processes, interfaces and nft tables before and after.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
from collections.abc import AsyncIterator

import pytest
from node_cluster import NodeCluster, needs_root, node_cluster, restarts, state

from virtfleet.kube.resource import PODS, Obj
from virtfleet.local.node.containers import Container, records
from virtfleet.local.node.runtime import start_time
from virtfleet.local.node.teardown import power_off, tear_down

pytestmark = [needs_root, pytest.mark.slow]

COUNTING = "trap 'exit 0' TERM; i=0; while :; do echo $((i = i + 1)); sleep 0.05; done"


@pytest.fixture
async def cluster() -> AsyncIterator[NodeCluster]:
    async with node_cluster() as made:
        await made.serve()
        yield made


def container(cluster: NodeCluster, pod: Obj) -> Container:
    """The node's record of the pod's present container."""
    wanted = pod["status"]["containerStatuses"][0]["containerID"].rpartition("/")[2]
    known = [record for _, record in records(cluster.layout().containers)]
    return next(record for record in known if record and record.id == wanted)


async def test_a_killed_agent_started_again_adopts_its_containers_with_logs_and_exit_codes(
    cluster: NodeCluster,
) -> None:
    cluster.spawn()
    await cluster.run("running", COUNTING, restartPolicy="Always")
    await cluster.run("ending", "while ! test -e /d/go; do sleep 0.05; done; exit 7", **_shared(cluster))
    before = await cluster.ready("running")
    await cluster.ready("ending")
    cluster.kill_agents()

    (cluster.directory / "shared" / "go").touch()
    lines = len(cluster.log("running").split())
    record = container(cluster, await cluster.pod("ending"))
    await cluster.eventually(lambda: _true((cluster.layout().exits / record.id).exists()))

    cluster.spawn()
    ended = await cluster.phase("ending", "Failed", "Succeeded")
    assert state(ended)["terminated"]["exitCode"] == 7
    after = await cluster.ready("running")
    assert after["status"]["containerStatuses"] == before["status"]["containerStatuses"], "the same run, not a new one"
    await cluster.eventually(lambda: _true(len(cluster.log("running").split()) > lines))
    numbers = [int(n) for n in cluster.log("running").split()]
    assert numbers == list(range(1, len(numbers) + 1)), "no line of the log is missing"
    await _delete_all(cluster)


async def test_pods_that_were_deleted_meanwhile_are_ended_by_the_next_agent(cluster: NodeCluster) -> None:
    cluster.spawn()
    await cluster.run("forced", COUNTING, restartPolicy="Always")
    await cluster.run("asked", COUNTING, restartPolicy="Always")
    forced = container(cluster, await cluster.ready("forced"))
    asked = container(cluster, await cluster.ready("asked"))
    cluster.kill_agents()
    await cluster.api.delete(PODS, "forced", "default", grace=0)
    await cluster.api.delete(PODS, "asked", "default")
    cluster.spawn()
    await cluster.gone("asked")
    for record in (forced, asked):
        await cluster.eventually(lambda r=record: _true(start_time(r.pid) != r.pid_start))
        await cluster.eventually(lambda r=record: _true(not (cluster.layout().containers / r.id).exists()))


async def test_a_container_without_its_monitor_is_run_again(cluster: NodeCluster) -> None:
    cluster.spawn()
    await cluster.run("p", COUNTING, restartPolicy="Always")
    record = container(cluster, await cluster.ready("p"))
    os.kill(record.monitor, signal.SIGKILL)
    pod = await cluster.until("p", lambda p: restarts(p) == 1 and state(p).get("running"))
    assert pod["status"]["containerStatuses"][0]["lastState"]["terminated"]["reason"] == "ContainerStatusUnknown"
    assert start_time(record.pid) != record.pid_start, "the one that nobody watched is gone"
    await _delete_all(cluster)


async def test_a_killed_container_is_run_again(cluster: NodeCluster) -> None:
    cluster.spawn()
    await cluster.run("p", COUNTING, restartPolicy="Always")
    record = container(cluster, await cluster.ready("p"))
    os.kill(record.pid, signal.SIGKILL)
    pod = await cluster.until("p", lambda p: restarts(p) == 1 and state(p).get("running"))
    assert pod["status"]["containerStatuses"][0]["lastState"]["terminated"]["exitCode"] == 137
    await _delete_all(cluster)


async def test_a_node_that_lost_its_power_runs_its_pods_again(cluster: NodeCluster) -> None:
    cluster.spawn()
    await cluster.run("always", COUNTING, restartPolicy="Always")
    await cluster.run("never", COUNTING, restartPolicy="Never")
    await cluster.ready("always")
    await cluster.ready("never")
    cluster.kill_agents()
    await power_off(cluster.layout(), cluster.network)
    cluster.spawn()
    await cluster.until("always", lambda p: restarts(p) == 1 and state(p).get("running"))
    await cluster.phase("never", "Failed")
    await _delete_all(cluster)


async def test_pods_of_a_cluster_that_is_torn_down_end_in_grace_and_the_next_agent_knows_how(
    cluster: NodeCluster,
) -> None:
    cluster.spawn()
    await cluster.run(
        "willing",
        "trap 'echo bye > /d/said; exit 3' TERM; touch /d/listening; while :; do sleep 0.05; done",
        **_shared(cluster),
    )
    await cluster.run("stubborn", "trap '' TERM; while :; do sleep 0.05; done", terminationGracePeriodSeconds=1)
    await cluster.until("willing", lambda _: (cluster.directory / "shared" / "listening").exists())
    await cluster.ready("stubborn")
    cluster.kill_agents()
    await tear_down(cluster.directory, cluster.network)
    assert (cluster.directory / "shared" / "said").read_text() == "bye\n"
    cluster.spawn()
    assert state(await cluster.phase("willing", "Failed"))["terminated"]["exitCode"] == 3
    assert state(await cluster.phase("stubborn", "Failed"))["terminated"]["reason"] == "ContainerStatusUnknown"
    await _delete_all(cluster)


async def test_an_agent_killed_again_and_again_at_any_moment_converges(cluster: NodeCluster) -> None:
    chance = random.Random(7)
    for number in range(6):
        cluster.spawn()
        await cluster.run(f"p{number}", COUNTING, restartPolicy="Always", **_shared(cluster))
        if number >= 2:
            await cluster.api.delete(PODS, f"p{number - 2}", "default")
        # Not to wait for anything, but to die at another point of the work each time.
        await asyncio.sleep(chance.uniform(0.3, 1.5))
        cluster.kill_agents()
    cluster.spawn()
    for number in (4, 5):
        await cluster.ready(f"p{number}")
    for number in range(4):
        await cluster.gone(f"p{number}")
    await _delete_all(cluster)
    left = [cluster.layout().containers, cluster.layout().sandboxes, cluster.layout().kubelet / "pods"]
    await cluster.eventually(lambda: _true(not any(any(path.iterdir()) for path in left)))


def _shared(cluster: NodeCluster) -> Obj:
    """A directory of the machine at /d."""
    path = cluster.directory / "shared"
    path.mkdir(exist_ok=True)
    return {
        "volumes": [{"name": "d", "hostPath": {"path": str(path)}}],
        "container": {"volumeMounts": [{"name": "d", "mountPath": "/d"}]},
    }


async def _true(value: bool) -> bool:
    return value


async def _delete_all(cluster: NodeCluster) -> None:
    for pod in await cluster.api.list(PODS, "default"):
        await cluster.api.delete(PODS, pod["metadata"]["name"], "default")
    for pod in await cluster.api.list(PODS, "default"):
        await cluster.gone(pod["metadata"]["name"])
