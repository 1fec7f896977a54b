"""Evictions through a real API server: virt-api marks VMIs instead, and budgets stand in for it where it is away."""

from __future__ import annotations

from typing import Any

from component.access_plane import Answer
from component.gateway.gateway_kit import NAMESPACE, NODE, Kit
from virtfleet.kube.resource import ENDPOINT_SLICES, NODES, POD_DISRUPTION_BUDGETS, PODS, VALIDATING_WEBHOOKS, VMIS, Obj

POD = "virt-launcher-vm"


async def launcher(kit: Kit, strategy: str = "LiveMigrate", *, movable: bool = True) -> Obj:
    """A VMI and its launcher's Pod, with admission as it is installed."""
    conditions = [{"type": "LiveMigratable", "status": str(movable)}]
    vmi = await kit.vmi(evictionStrategy=strategy, status={"conditions": conditions})
    reference = {"apiVersion": VMIS.api_version, "kind": VMIS.kind, "name": "vm", "controller": True}
    meta = {
        "labels": {"kubevirt.io": "virt-launcher"},
        "ownerReferences": [reference | {"uid": vmi["metadata"]["uid"]}],
    }
    pod = await kit.launcher(vmi, "127.0.0.1")
    await kit.server.api.patch(PODS, POD, {"metadata": meta}, "default")
    await kit.server.api.patch(VMIS, "vm", {"status": {"activePods": {pod["metadata"]["uid"]: NODE}}}, "default")
    for obj in kit.webhooks:
        if obj["kind"] == VALIDATING_WEBHOOKS.kind:
            await kit.make(VALIDATING_WEBHOOKS, obj)
    return vmi


async def evict(kit: Kit, name: str = POD, **fields: Any) -> Answer:
    body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name, "namespace": "default"}}
    query = "?dryRun=All" if fields.pop("dry_run", False) else ""
    return await kit.call("POST", f"/api/v1/namespaces/default/pods/{name}/eviction{query}", {**body, **fields})


async def leaving(kit: Kit) -> str:
    node: str = (await kit.get(VMIS))["status"].get("evacuationNodeName", "")
    return node


async def test_an_eviction_marks_the_vmi_and_is_refused_as_one_too_many(kit: Kit) -> None:
    await launcher(kit)
    for tried in (await evict(kit, dry_run=True), await evict(kit, deleteOptions={"dryRun": ["All"]})):
        assert (tried.status, await leaving(kit)) == (429, "")
    refused = await evict(kit)
    assert (refused.status, refused.body["reason"]) == (429, "TooManyRequests")
    assert refused.body["message"] == (
        'admission webhook "virt-launcher-eviction-interceptor.kubevirt.io" denied the request: '
        'Eviction triggered evacuation of VMI "default/vm"'
    )
    assert await leaving(kit) == NODE
    assert "Evacuation in progress" in (await evict(kit)).body["message"]
    cancelled = await kit.of_vmi("evacuate/cancel", {"evacuationNodeName": NODE})
    assert (cancelled.status, await leaving(kit)) == (200, "")


async def test_a_vm_that_may_be_shut_down_is_evicted(kit: Kit) -> None:
    await launcher(kit, "LiveMigrateIfPossible", movable=False)
    assert (await evict(kit)).status == 201
    assert (await kit.get(PODS, POD))["metadata"]["deletionTimestamp"]


async def test_a_pod_that_pretends_to_be_a_launcher_moves_nobody(kit: Kit) -> None:
    """Who may make Pods in a namespace must not be able to move its VMs, which takes another role."""
    vmi = await launcher(kit)
    real = (await kit.get(PODS, POD))["metadata"]
    await kit.launcher(vmi, "127.0.0.1", name="virt-launcher-forged")
    meta = {"labels": real["labels"], "ownerReferences": real["ownerReferences"]}
    await kit.server.api.patch(PODS, "virt-launcher-forged", {"metadata": meta}, "default")
    assert (await evict(kit, "virt-launcher-forged")).status == 201
    assert await leaving(kit) == ""


async def test_without_virt_api_the_budget_refuses_and_other_pods_are_evicted(kit: Kit) -> None:
    vmi = await launcher(kit)
    for each in await kit.server.api.list(ENDPOINT_SLICES, NAMESPACE):
        await kit.server.api.delete(ENDPOINT_SLICES, each["metadata"]["name"], NAMESPACE)
    budget = {
        "metadata": {"name": "b"},
        "spec": {"minAvailable": 1, "selector": {"matchLabels": {"kubevirt.io/created-by": vmi["metadata"]["uid"]}}},
    }
    await kit.make(POD_DISRUPTION_BUDGETS, budget, "default")
    spec = {"containers": [{"name": "c", "image": "i"}]}
    await kit.make(PODS, {"metadata": {"name": "other"}, "spec": spec}, "default")
    assert (await evict(kit, "other")).status == 201
    refused = await evict(kit)
    assert (refused.status, await leaving(kit)) == (429, "")
    assert "disruption budget" in refused.body["message"]


async def test_what_a_taint_asks_for_is_not_taken_back_for_one_vm(kit: Kit) -> None:
    await kit.started()
    taint = {"key": "kubevirt.io/drain", "effect": "NoSchedule"}
    await kit.make(NODES, {"metadata": {"name": NODE}, "spec": {"taints": [taint]}})
    answer = await kit.of_vm("evacuate/cancel", {"evacuationNodeName": NODE})
    assert answer.status == 400
    assert f"kubectl taint node {NODE} kubevirt.io/drain-" in answer.body["message"]
