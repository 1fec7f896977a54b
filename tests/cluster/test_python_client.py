"""The official Python client lists, watches and patches."""

from __future__ import annotations

import threading
from typing import Any

import kubernetes
import pytest
from clusters import Cluster, Kubectl


@pytest.fixture
def core(cluster: Cluster) -> Any:
    return kubernetes.client.CoreV1Api(kubernetes.config.new_client_from_config(str(cluster.kubeconfig)))


def test_objects_are_created_listed_patched_and_deleted(core: Any, kubectl: Kubectl) -> None:
    body = {"metadata": {"name": "a", "labels": {"x": "y"}}, "data": {"k": "v"}}
    made = core.create_namespaced_config_map(kubectl.namespace, body)
    assert made.metadata.uid
    assert [
        i.metadata.name for i in core.list_namespaced_config_map(kubectl.namespace, label_selector="x=y").items
    ] == ["a"]
    core.patch_namespaced_config_map("a", kubectl.namespace, {"data": {"k": "w"}})
    assert core.read_namespaced_config_map("a", kubectl.namespace).data == {"k": "w"}
    core.delete_namespaced_config_map("a", kubectl.namespace)
    with pytest.raises(kubernetes.client.ApiException) as missing:
        core.read_namespaced_config_map("a", kubectl.namespace)
    assert missing.value.status == 404


def test_a_watch_delivers_every_change_in_order(core: Any, kubectl: Kubectl) -> None:
    start = core.list_namespaced_config_map(kubectl.namespace).metadata.resource_version

    def change() -> None:
        core.create_namespaced_config_map(kubectl.namespace, {"metadata": {"name": "w"}, "data": {"n": "0"}})
        for n in range(1, 20):
            core.patch_namespaced_config_map("w", kubectl.namespace, {"data": {"n": str(n)}})
        core.delete_namespaced_config_map("w", kubectl.namespace)

    writer = threading.Thread(target=change)
    writer.start()
    seen = []
    watch = kubernetes.watch.Watch()
    stream = watch.stream(
        core.list_namespaced_config_map,
        kubectl.namespace,
        field_selector="metadata.name=w",
        resource_version=start,
        timeout_seconds=60,
    )
    for event in stream:
        seen.append((event["type"], event["object"].data["n"]))
        if event["type"] == "DELETED":
            watch.stop()
    writer.join()
    assert seen == [("ADDED", "0"), *[("MODIFIED", str(n)) for n in range(1, 20)], ("DELETED", "19")]


def test_custom_objects(cluster: Cluster, kubectl: Kubectl) -> None:
    api = kubernetes.client.CustomObjectsApi(kubernetes.config.new_client_from_config(str(cluster.kubeconfig)))
    leases = ("coordination.k8s.io", "v1", kubectl.namespace, "leases")
    body = {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {"name": "l"},
        "spec": {"holderIdentity": "me"},
    }
    api.create_namespaced_custom_object(*leases, body)
    assert api.list_namespaced_custom_object(*leases)["items"][0]["spec"]["holderIdentity"] == "me"
