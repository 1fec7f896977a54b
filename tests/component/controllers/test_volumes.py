"""Claims get volumes: made on demand below a directory, or taken from those that are there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from local_cluster import LOCAL_CLASS, Cluster

from virtfleet.kube.resource import (
    PERSISTENT_VOLUME_CLAIMS,
    PERSISTENT_VOLUMES,
    PODS,
    STORAGE_CLASSES,
    Obj,
)


@pytest.fixture(autouse=True)
async def storage_class(cluster: Cluster) -> None:
    await cluster.api.create(STORAGE_CLASSES, LOCAL_CLASS)


async def create_claim(cluster: Cluster, name: str, mode: str = "ReadWriteOnce", **spec: Any) -> None:
    spec = {"accessModes": [mode], "resources": {"requests": {"storage": "1Gi"}}, "storageClassName": "local", **spec}
    await cluster.api.create(PERSISTENT_VOLUME_CLAIMS, {"metadata": {"name": name}, "spec": spec}, "default")


async def create_pod(cluster: Cluster, name: str, claim: str, **spec: Any) -> None:
    volume = {"name": "data", "persistentVolumeClaim": {"claimName": claim}}
    spec = {"containers": [{"name": "c", "image": "x"}], "volumes": [volume], **spec}
    await cluster.api.create(PODS, {"metadata": {"name": name}, "spec": spec}, "default")


async def bound(cluster: Cluster, name: str) -> tuple[Obj, Obj]:
    async def check() -> tuple[Obj, Obj] | None:
        claim = await cluster.api.get(PERSISTENT_VOLUME_CLAIMS, name, "default")
        if claim["status"].get("phase") != "Bound":
            return None
        volume = await cluster.api.get(PERSISTENT_VOLUMES, claim["spec"]["volumeName"])
        return (claim, volume) if volume["status"].get("phase") == "Bound" else None

    found: tuple[Obj, Obj] = await cluster.until(check)
    return found


async def running(cluster: Cluster, name: str) -> Obj:
    async def check() -> Obj | None:
        pod = await cluster.api.get(PODS, name, "default")
        return pod if pod["status"].get("phase") == "Running" else None

    found: Obj = await cluster.until(check)
    return found


def path_of(volume: Obj) -> Path:
    return Path(volume["spec"]["hostPath"]["path"])


def size_on_disk(volume: Obj) -> int | None:
    """Of a raw file; 0 for a directory, None where there is nothing."""
    path = path_of(volume)
    if not path.exists():
        return None
    return path.stat().st_size if path.is_file() else 0


async def test_a_claim_waits_for_its_first_pod_and_gets_a_volume_where_the_pod_goes(cluster: Cluster) -> None:
    await create_claim(cluster, "data")
    await create_pod(cluster, "user", "data", nodeSelector={"kubernetes.io/hostname": "node2"})
    claim, volume = await bound(cluster, "data")
    assert claim["status"]["capacity"] == {"storage": "1Gi"}
    assert size_on_disk(volume) == 0
    assert (await running(cluster, "user"))["spec"]["nodeName"] == "node2"
    (term,) = volume["spec"]["nodeAffinity"]["required"]["nodeSelectorTerms"]
    assert term["matchExpressions"] == [{"key": "kubernetes.io/hostname", "operator": "In", "values": ["node2"]}]
    # whoever comes later has to go there too
    await create_pod(cluster, "later", "data")
    assert (await running(cluster, "later"))["spec"]["nodeName"] == "node2"


async def test_a_shared_volume_is_tied_to_no_node(cluster: Cluster) -> None:
    await create_claim(cluster, "shared", "ReadWriteMany")
    await create_pod(cluster, "user", "shared")
    _, volume = await bound(cluster, "shared")
    assert "nodeAffinity" not in volume["spec"]


async def test_a_block_volume_is_a_raw_file_of_the_size_asked_for(cluster: Cluster) -> None:
    await create_claim(cluster, "disk", volumeMode="Block")
    await create_pod(cluster, "user", "disk")
    _, volume = await bound(cluster, "disk")
    assert volume["spec"]["volumeMode"] == "Block"
    assert size_on_disk(volume) == 2**30


async def test_a_claim_in_use_is_kept_and_then_volume_and_data_go(cluster: Cluster) -> None:
    await create_claim(cluster, "data")
    await create_pod(cluster, "user", "data")
    _, volume = await bound(cluster, "data")
    data = path_of(volume) / "file"
    data.write_text("x")
    await running(cluster, "user")
    await cluster.api.delete(PERSISTENT_VOLUME_CLAIMS, "data", "default")
    await create_pod(cluster, "late", "data")

    async def refused() -> bool:
        late = await cluster.api.get(PODS, "late", "default")
        return "is being deleted" in str(late["status"].get("conditions"))

    await cluster.until(refused)
    assert data.read_text() == "x"
    await cluster.api.delete(PODS, "late", "default")
    await cluster.api.delete(PODS, "user", "default")
    await cluster.gone(PERSISTENT_VOLUME_CLAIMS, "data")
    await cluster.gone(PERSISTENT_VOLUMES, volume["metadata"]["name"], None)
    assert size_on_disk(volume) is None


async def test_retained_data_outlives_its_claim(cluster: Cluster) -> None:
    await cluster.api.create(STORAGE_CLASSES, {**LOCAL_CLASS, "metadata": {"name": "keep"}, "reclaimPolicy": "Retain"})
    await create_claim(cluster, "data", storageClassName="keep")
    await create_pod(cluster, "user", "data")
    _, volume = await bound(cluster, "data")
    await cluster.api.delete(PODS, "user", "default")
    await cluster.gone(PODS, "user")
    await cluster.api.delete(PERSISTENT_VOLUME_CLAIMS, "data", "default")

    async def released() -> bool:
        live = await cluster.api.get(PERSISTENT_VOLUMES, volume["metadata"]["name"])
        return bool(live["status"]["phase"] == "Released")

    await cluster.until(released)
    assert size_on_disk(volume) == 0


async def test_an_immediate_claim_needs_no_pod(cluster: Cluster) -> None:
    await cluster.api.create(
        STORAGE_CLASSES, {**LOCAL_CLASS, "metadata": {"name": "now"}, "volumeBindingMode": "Immediate"}
    )
    await create_claim(cluster, "data", storageClassName="now")
    await bound(cluster, "data")


async def test_a_claim_takes_the_smallest_volume_that_fits(cluster: Cluster) -> None:
    for name, size, mode in (
        ("big", "9Gi", "ReadWriteOnce"),
        ("fits", "2Gi", "ReadWriteOnce"),
        ("x", "1Gi", "ReadOnlyMany"),
    ):
        spec = {
            "capacity": {"storage": size},
            "accessModes": [mode],
            "storageClassName": "manual",
            "hostPath": {"path": "/mnt"},
        }
        await cluster.api.create(PERSISTENT_VOLUMES, {"metadata": {"name": name}, "spec": spec})
    await create_claim(cluster, "data", storageClassName="manual")
    claim, _ = await bound(cluster, "data")
    assert claim["spec"]["volumeName"] == "fits"
    assert claim["status"]["capacity"] == {"storage": "2Gi"}


async def test_a_pod_whose_claim_is_missing_says_so(cluster: Cluster) -> None:
    await create_pod(cluster, "user", "nothing")

    async def told() -> bool:
        pod = await cluster.api.get(PODS, "user", "default")
        return 'persistentvolumeclaim "nothing" not found' in str(pod["status"].get("conditions"))

    await cluster.until(told)
