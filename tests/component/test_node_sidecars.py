"""Init containers that go on beside the others, as real containers."""

from __future__ import annotations

import signal
from collections.abc import AsyncIterator
from typing import Any

import pytest
from node_cluster import NodeCluster, needs_root, node_cluster, state

from virtfleet.kube.resource import Obj

pytestmark = [needs_root, pytest.mark.slow]


@pytest.fixture
async def cluster() -> AsyncIterator[NodeCluster]:
    async with node_cluster() as made:
        (made.directory / "said").mkdir()
        await made.start()
        yield made


def writing(name: str, more: str = "until test -e /said/go; do sleep 0.05; done") -> str:
    """A script that writes down when it begins and when it is told to end."""
    return f"trap 'echo {name} ends >> /said/all; exit 0' TERM; echo {name} begins >> /said/all; {more}"


STAYS = "while :; do sleep 0.05; done"


def init(name: str, script: str, *, sidecar: bool = True, **more: Any) -> Obj:
    container = {"name": name, "image": "host", "command": ["sh", "-c", script], "volumeMounts": MOUNTED, **more}
    return {**container, **({"restartPolicy": "Always"} if sidecar else {})}


MOUNTED = [{"name": "said", "mountPath": "/said"}]


def shared(cluster: NodeCluster) -> dict[str, Any]:
    volume = {"name": "said", "hostPath": {"path": str(cluster.directory / "said")}}
    return {"volumes": [volume], "container": {"volumeMounts": MOUNTED}, "terminationGracePeriodSeconds": 20}


def said(cluster: NodeCluster) -> list[str]:
    path = cluster.directory / "said/all"
    return path.read_text().splitlines() if path.exists() else []


def sidecar(pod: Obj, name: str) -> Obj:
    statuses = (pod.get("status") or {}).get("initContainerStatuses") or ()
    return next((s for s in statuses if s["name"] == name), {})


async def test_sidecars_start_in_order_and_end_after_the_others_in_reverse(cluster: NodeCluster) -> None:
    probe = {"exec": {"command": ["test", "-e", "/said/started"]}, "periodSeconds": 1, "failureThreshold": 60}
    await cluster.run(
        "p",
        writing("main"),
        initContainers=[
            init("first", writing("first", STAYS), startupProbe=probe),
            init("once", "echo once begins >> /said/all", sidecar=False),
            init("second", writing("second", STAYS)),
        ],
        **shared(cluster),
    )
    waiting = await cluster.until("p", lambda p: "running" in sidecar(p, "first").get("state", {}))
    assert (sidecar(waiting, "first")["started"], state(waiting)) == (False, {"waiting": {"reason": "PodInitializing"}})

    async def begun() -> list[str]:  # it runs, and says so a moment later
        return said(cluster)

    assert await cluster.eventually(begun) == ["first begins"], "its startup probe has not passed"
    (cluster.directory / "said/started").touch()
    pod = await cluster.ready("p")
    assert [s["ready"] for s in pod["status"]["initContainerStatuses"]] == [True, True, True]
    await cluster.until("p", lambda _: {"second begins", "main begins"} <= {*said(cluster)})
    (cluster.directory / "said/go").touch()
    over = await cluster.phase("p", "Succeeded", "Failed")
    told = said(cluster)
    assert told[:2] == ["first begins", "once begins"]
    assert sorted(told[2:4]) == ["main begins", "second begins"]  # whoever of both speaks first
    assert told[4:] == ["second ends", "first ends"]
    assert over["status"]["phase"] == "Succeeded"
    assert sidecar(over, "first")["state"]["terminated"]["exitCode"] == 0


async def test_a_deleted_pod_ends_its_sidecars_last(cluster: NodeCluster) -> None:
    await cluster.run("p", writing("main"), initContainers=[init("side", writing("side", STAYS))], **shared(cluster))
    await cluster.until("p", lambda _: "main begins" in said(cluster))
    await cluster.delete("p")
    assert said(cluster) == ["side begins", "main begins", "main ends", "side ends"]


async def test_a_sidecar_that_ends_is_run_again_and_the_pod_goes_on(cluster: NodeCluster) -> None:
    await cluster.run("p", writing("main"), initContainers=[init("side", writing("side", STAYS))], **shared(cluster))
    await cluster.ready("p")
    agent = cluster.agents["n1"]
    [worker] = agent.workers.values()
    run = worker.runs.latest("side")
    assert run is not None
    agent.node.runtime.kill(run, signal.SIGKILL)
    again = await cluster.until("p", lambda p: sidecar(p, "side").get("restartCount") == 1)
    assert sidecar(again, "side")["lastState"]["terminated"]["exitCode"] == 137
    again = await cluster.ready("p")
    assert again["status"]["containerStatuses"][0]["restartCount"] == 0 and state(again).keys() == {"running"}

    async def said_again() -> bool:
        return said(cluster) == ["side begins", "main begins", "side begins"]

    await cluster.eventually(said_again)


async def test_an_agent_that_comes_back_finds_sidecars_as_they_are(cluster: NodeCluster) -> None:
    await cluster.run("p", writing("main"), initContainers=[init("side", writing("side", STAYS))], **shared(cluster))
    before = await cluster.ready("p")
    await cluster.stop()
    await cluster.start()
    (cluster.directory / "said/go").touch()
    after = await cluster.phase("p", "Succeeded", "Failed")
    assert sidecar(after, "side")["containerID"] == sidecar(before, "side")["containerID"]
    assert said(cluster) == ["side begins", "main begins", "side ends"]
