"""EndpointSlices follow services and pods."""

from __future__ import annotations

from typing import Any

from local_cluster import Cluster, Kubelets

from virtfleet.kube.resource import ENDPOINT_SLICES, PODS, SERVICES, Obj


async def create_pod(cluster: Cluster, name: str, port: int = 8080, **labels: str) -> None:
    container = {"name": "c", "image": "x", "ports": [{"name": "http", "containerPort": port}]}
    pod = {"metadata": {"name": name, "labels": labels or {"app": "web"}}, "spec": {"containers": [container]}}
    await cluster.api.create(PODS, pod, "default")


async def create_service(cluster: Cluster, **spec: Any) -> None:
    spec = {"selector": {"app": "web"}, "ports": [{"name": "web", "port": 80, "targetPort": "http"}], **spec}
    await cluster.api.create(SERVICES, {"metadata": {"name": "web"}, "spec": spec}, "default")


async def slices(cluster: Cluster) -> list[Obj]:
    return await cluster.api.list(ENDPOINT_SLICES, "default", labels="kubernetes.io/service-name=web")


async def endpoints_are(cluster: Cluster, **ready: bool) -> None:
    """Wait until the slices have exactly these pods, ready or not."""

    async def check() -> bool:
        found = {
            e["targetRef"]["name"]: e["conditions"]["ready"]
            for s in await slices(cluster)
            for e in s.get("endpoints") or ()
        }
        return found == ready

    await cluster.until(check)


async def test_a_service_has_the_addresses_of_its_pods_with_named_ports_looked_up(cluster: Cluster) -> None:
    await create_service(cluster)
    await create_pod(cluster, "a")
    await create_pod(cluster, "b")
    await create_pod(cluster, "other", app="db")
    await endpoints_are(cluster, a=True, b=True)
    (piece,) = await slices(cluster)
    assert piece["ports"] == [{"name": "web", "protocol": "TCP", "port": 8080}]
    assert piece["addressType"] == "IPv4"
    assert piece["metadata"]["labels"]["endpointslice.kubernetes.io/managed-by"] == "endpointslice-controller.k8s.io"
    pod = await cluster.api.get(PODS, "a", "default")
    endpoint = next(e for e in piece["endpoints"] if e["targetRef"]["name"] == "a")
    assert endpoint["addresses"] == [pod["status"]["podIP"]]
    assert endpoint["nodeName"] == pod["spec"]["nodeName"]


async def test_pods_that_are_not_ready_are_kept_apart_unless_the_service_publishes_them(
    cluster: Cluster, kubelets: Kubelets
) -> None:
    kubelets.healthy = lambda pod: pod.name != "sick"
    await create_service(cluster)
    await create_pod(cluster, "fine")
    await create_pod(cluster, "sick")
    await endpoints_are(cluster, fine=True, sick=False)
    await cluster.api.patch(SERVICES, "web", {"spec": {"publishNotReadyAddresses": True}}, "default")
    await endpoints_are(cluster, fine=True, sick=True)


async def test_pods_with_other_numbers_for_the_same_port_name_are_in_other_slices(cluster: Cluster) -> None:
    await create_service(cluster)
    await create_pod(cluster, "a", 8080)
    await create_pod(cluster, "b", 9090)
    await endpoints_are(cluster, a=True, b=True)
    assert sorted(p["port"] for s in await slices(cluster) for p in s["ports"]) == [8080, 9090]


async def test_a_headless_service_without_ports_has_endpoints_too(cluster: Cluster) -> None:
    await create_service(cluster, clusterIP="None", ports=[])
    await create_pod(cluster, "a")
    await endpoints_are(cluster, a=True)


async def test_what_is_no_longer_selected_disappears_and_a_deleted_slice_comes_back(cluster: Cluster) -> None:
    await create_service(cluster)
    await create_pod(cluster, "a")
    await create_pod(cluster, "b")
    await endpoints_are(cluster, a=True, b=True)
    await cluster.api.patch(PODS, "a", {"metadata": {"labels": {"app": "debug"}}}, "default")
    await endpoints_are(cluster, b=True)
    await cluster.api.delete(PODS, "b", "default")
    await endpoints_are(cluster)
    for piece in await slices(cluster):
        await cluster.api.delete(ENDPOINT_SLICES, piece["metadata"]["name"], "default")
    await cluster.until(lambda: slices(cluster))


async def test_slices_go_with_the_service_and_other_peoples_stay(cluster: Cluster) -> None:
    labels = {"kubernetes.io/service-name": "web"}
    theirs = {"metadata": {"name": "theirs", "labels": labels}, "addressType": "IPv4", "endpoints": []}
    await cluster.api.create(ENDPOINT_SLICES, theirs, "default")
    await create_service(cluster)
    await create_pod(cluster, "a")
    await endpoints_are(cluster, a=True)
    await cluster.api.delete(SERVICES, "web", "default")

    async def only_theirs() -> bool:
        return [piece["metadata"]["name"] for piece in await slices(cluster)] == ["theirs"]

    await cluster.until(only_theirs)
