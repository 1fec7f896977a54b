"""kubectl debug: containers that are added to a pod that runs."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
from node_cluster import NodeCluster, needs_root, node_cluster, state

from virtfleet.kube.api import Patch
from virtfleet.kube.errors import ApiError
from virtfleet.kube.resource import PODS, Obj

pytestmark = [needs_root, pytest.mark.slow]


@pytest.fixture
async def cluster() -> AsyncIterator[NodeCluster]:
    async with node_cluster() as made:
        await made.serve()
        await made.start()
        await made.run("p", "exec sleep 1234", restartPolicy="Always")
        await made.ready("p")
        yield made


async def debug(cluster: NodeCluster, *words: str, feed: bytes | None = None) -> tuple[int, str, str]:
    return await cluster.says("debug", "p", "--image=host", "--profile=general", *words, feed=feed)


def added(pod: Obj, name: str) -> Obj:
    statuses = (pod.get("status") or {}).get("ephemeralContainerStatuses") or ()
    return next((s for s in statuses if s["name"] == name), {"state": {}})


async def add(cluster: NodeCluster, *containers: dict[str, Any]) -> Obj:
    patch = {"spec": {"ephemeralContainers": list(containers)}}
    return await cluster.api.patch(PODS, "p", patch, "default", how=Patch.MERGE, subresource="ephemeralcontainers")


async def test_a_container_is_added_and_sees_the_processes_of_its_target(cluster: NodeCluster) -> None:
    script = "tr '\\0' ' ' < /proc/1/cmdline; echo; hostname; exit 4"
    code, _, err = await debug(cluster, "-c", "d", "--target=c", "--", "sh", "-c", script)
    assert code == 0, err
    pod = await cluster.until("p", lambda p: "terminated" in added(p, "d")["state"])
    assert cluster.log("p", "d") == "sleep 1234 \np"
    assert added(pod, "d")["state"]["terminated"]["exitCode"] == 4
    assert (pod["status"]["phase"], state(pod).keys()) == ("Running", {"running"}), "how it ends is nobody's business"
    assert cluster.log("p", "d", attempt=1) == "", "it is not run again"


async def test_a_container_without_a_target_sees_its_own_processes_only(cluster: NodeCluster) -> None:
    await debug(cluster, "-c", "d", "--", "sh", "-c", "tr '\\0' ' ' < /proc/1/cmdline")
    await cluster.until("p", lambda p: "terminated" in added(p, "d")["state"])
    assert cluster.log("p", "d").startswith("sh -c tr")


async def test_what_is_typed_reaches_the_container_that_was_added(cluster: NodeCluster) -> None:
    code, out, err = await debug(cluster, "-c", "d", "-i", "--", "sh", feed=b"echo $((6*7)); exit\n")
    assert (code, "42\n" in out + cluster.log("p", "d") + "\n") == (0, True), err


async def test_what_was_added_is_ended_with_its_pod(cluster: NodeCluster) -> None:
    await debug(cluster, "-c", "d", "--", "sleep", "4321")
    await cluster.until("p", lambda p: "running" in added(p, "d")["state"])
    await cluster.delete("p")


async def test_containers_are_added_only_in_their_way_and_stay_as_they_are(cluster: NodeCluster) -> None:
    there = {"name": "d", "image": "host", "command": ["sleep", "4321"]}
    await add(cluster, there)
    for containers, why in (
        ([{**there, "command": ["true"]}], 'existing ephemeral containers "d" may not be changed'),
        ([], 'existing ephemeral containers "d" may not be removed'),
        ([there, {**there, "name": "c"}], "Duplicate value"),
        ([there, {**there, "name": "e", "targetContainerName": "x"}], "targetContainerName: Not found"),
        ([there, {**there, "name": "e", "resources": {"limits": {"cpu": "1"}}}], "cannot be set for an Ephemeral"),
        ([there, {**there, "name": "e", "restartPolicy": "Always"}], "cannot be set for an Ephemeral Container"),
    ):
        with pytest.raises(ApiError, match=why):
            await add(cluster, *containers)
    with pytest.raises(ApiError, match="cannot be set on create"):
        await cluster.run("q", "true", ephemeralContainers=[there])
    with pytest.raises(ApiError, match="pod updates may not"):
        await cluster.api.patch(PODS, "p", {"spec": {"ephemeralContainers": [{**there, "name": "e"}]}}, "default")
