"""Installing: a KubeVirt object becomes components, and an installation at rest is not written to."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from hollow import NAMESPACE, Hollow, hollow, missing

from virtfleet.kube.api import Patch
from virtfleet.kube.resource import (
    CRDS,
    DAEMON_SETS,
    DEPLOYMENTS,
    EVENTS,
    KUBEVIRTS,
    MUTATING_WEBHOOKS,
    NODES,
    SERVICE_ACCOUNTS,
    VALIDATING_WEBHOOKS,
    VMIS,
)


@pytest.fixture
async def fleet(tmp_path: Path) -> AsyncIterator[Hollow]:
    async with hollow(tmp_path) as cluster:
        yield cluster


async def test_a_kubevirt_object_becomes_a_running_installation(fleet: Hollow) -> None:
    await fleet.install()
    kubevirt = await fleet.settled()
    status = kubevirt["status"]
    assert status["phase"] == "Deployed"
    assert status["observedKubeVirtVersion"] == status["targetKubeVirtVersion"] == "0.1.0"
    assert status["observedDeploymentID"] == status["targetDeploymentID"]
    assert {c["type"]: c["status"] for c in status["conditions"]} == {
        "Available": "True",
        "Progressing": "False",
        "Degraded": "False",
    }
    assert await fleet.owners() == dict.fromkeys(("node0", "node1", "node2"), "virt-handler")
    for name in ("virt-api", "virt-controller"):
        deployment = await fleet.deployment(name)
        assert deployment["spec"]["replicas"] == 2
        assert deployment["spec"]["template"]["spec"]["containers"][0]["image"] == f"virtfleet/{name}:0.1.0"


async def test_an_installation_at_rest_is_not_written_to(fleet: Hollow) -> None:
    pool = {
        "name": "gpu",
        "nodeSelector": {"gpu": "true"},
        "virtLauncherImage": "l:1",
        "selector": {"deviceNames": ["x.io/g"]},
    }
    await fleet.install(
        configuration={"developerConfiguration": {"featureGates": ["VirtHandlerPools"]}},
        virtHandlerPools=[pool],
        imagePullSecrets=[{"name": "regcred"}],
    )
    await fleet.label("node1", gpu="true")
    await fleet.settled()
    assert await fleet.idle_writes() == []


async def test_admission_begins_when_virt_api_is_there(fleet: Hollow) -> None:
    fleet.fail(lambda pod: pod.name.startswith("virt-api"))
    await fleet.api.create(KUBEVIRTS, {"metadata": {"name": "kubevirt", "namespace": NAMESPACE}, "spec": {}})
    waiting = await fleet.condition("Progressing")
    await fleet.until(lambda: fleet.deployment("virt-api"))
    assert not await fleet.api.list(VALIDATING_WEBHOOKS)
    fleet.fail(lambda pod: False)
    fleet.kubelets.look_again()
    await fleet.condition("Available")
    [mutating] = await fleet.api.list(MUTATING_WEBHOOKS)
    assert all(webhook["clientConfig"]["caBundle"] for webhook in mutating["webhooks"])
    assert waiting["message"]


async def test_what_somebody_changed_by_hand_is_put_right(fleet: Hollow) -> None:
    await fleet.install()
    image = [{"op": "add", "path": "/spec/template/spec/containers/0/image", "value": "evil:latest"}]
    await fleet.api.patch(DEPLOYMENTS, "virt-api", image, NAMESPACE, how=Patch.JSON)
    await fleet.api.delete(SERVICE_ACCOUNTS, "kubevirt-handler", NAMESPACE)

    async def right() -> bool:
        deployment = await fleet.deployment("virt-api")
        await fleet.api.get(SERVICE_ACCOUNTS, "kubevirt-handler", NAMESPACE)
        return deployment["spec"]["template"]["spec"]["containers"][0]["image"] == "virtfleet/virt-api:0.1.0"

    await fleet.until(right)


async def test_what_others_add_to_metadata_is_left_alone(fleet: Hollow) -> None:
    await fleet.install()
    await fleet.api.patch(DEPLOYMENTS, "virt-api", {"metadata": {"labels": {"team": "infra"}}}, NAMESPACE)
    await fleet.configure(imageTag="v2")

    async def updated() -> bool:
        deployment = await fleet.deployment("virt-api")
        assert deployment["metadata"]["labels"]["team"] == "infra"
        return deployment["spec"]["template"]["spec"]["containers"][0]["image"] == "virtfleet/virt-api:v2"

    await fleet.until(updated)


async def test_a_killed_operator_is_replaced_at_any_point(fleet: Hollow) -> None:
    await fleet.api.create(KUBEVIRTS, {"metadata": {"name": "kubevirt", "namespace": NAMESPACE}, "spec": {}})
    writes = fleet.operators_api.writes

    for _ in range(12):
        before = len(writes)

        async def wrote(before: int = before) -> bool:
            return len(writes) > before + 2 or (await fleet.kubevirt()).get("status", {}).get("phase") == "Deployed"

        await fleet.until(wrote)
        await fleet.kill_operator()
        fleet.start_operator()
    await fleet.settled()


async def test_a_second_kubevirt_object_is_told_that_there_is_one(fleet: Hollow) -> None:
    await fleet.install()
    await fleet.api.create(KUBEVIRTS, {"metadata": {"name": "second", "namespace": NAMESPACE}, "spec": {}})

    async def told() -> bool:
        second = await fleet.api.get(KUBEVIRTS, "second", NAMESPACE)
        conditions = (second.get("status") or {}).get("conditions") or ()
        return any(c["reason"] == "ExistingDeployment" and "kubevirt/kubevirt" in c["message"] for c in conditions)

    await fleet.until(told)
    await fleet.settled()


async def test_a_configuration_that_cannot_be_rendered_leaves_what_is_installed(fleet: Hollow) -> None:
    await fleet.install()
    broken = {"resourceType": "Deployment", "resourceName": "virt-api", "type": "json", "patch": '[{"op":"no"}]'}
    await fleet.configure(customizeComponents={"patches": [broken]})
    degraded = await fleet.condition("Degraded", reason="InvalidConfiguration")
    assert "patches[0]" in degraded["message"]
    assert await fleet.deployment("virt-api")
    await fleet.configure(customizeComponents=None)
    await fleet.settled()
    reasons = {event["reason"] for event in await fleet.api.list(EVENTS, NAMESPACE)}
    assert "InvalidConfiguration" in reasons


async def test_pools_that_cannot_be_told_apart_leave_what_is_installed(fleet: Hollow) -> None:
    await fleet.install(configuration={"developerConfiguration": {"featureGates": ["VirtHandlerPools"]}})
    pools = [
        {"name": f"p{i}", "virtLauncherImage": "l:1", "nodeSelector": {f"{k}{i}": "1" for k in "abc"}} for i in range(7)
    ]
    await fleet.configure(virtHandlerPools=[{**p, "selector": {"deviceNames": ["x.io/d"]}} for p in pools])
    degraded = await fleet.condition("Degraded", reason="InvalidConfiguration")
    assert "label of their own" in degraded["message"]
    assert await fleet.daemon_sets() == ["virt-handler"]


async def test_deleting_the_kubevirt_object_takes_everything_away(fleet: Hollow) -> None:
    await fleet.install()
    await fleet.api.delete(KUBEVIRTS, "kubevirt", NAMESPACE)

    async def gone() -> bool:
        return await missing(fleet.api, KUBEVIRTS, "kubevirt")

    await fleet.until(gone, 40.0)
    for resource in (DEPLOYMENTS, DAEMON_SETS, VALIDATING_WEBHOOKS):
        assert await fleet.api.list(resource) == []
    assert [crd["metadata"]["name"] for crd in await fleet.api.list(CRDS)] == ["kubevirts.kubevirt.io"]
    assert len(await fleet.api.list(NODES)) == 3


async def test_vms_block_the_uninstall_where_that_is_asked_for(fleet: Hollow) -> None:
    await fleet.install(uninstallStrategy="BlockUninstallIfWorkloadsExist")
    vmi = {"metadata": {"name": "vm", "namespace": "default"}, "spec": {"domain": {"devices": {}}}}
    await fleet.api.create(VMIS, vmi)
    await fleet.api.delete(KUBEVIRTS, "kubevirt", NAMESPACE)

    async def deleting() -> bool:
        status = (await fleet.kubevirt())["status"]
        told = {c["reason"]: c["message"] for c in status["conditions"]}
        return status["phase"] == "Deleting" and "VirtualMachineInstance default/vm" in told.get("WorkloadsExist", "")

    await fleet.until(deleting)
    assert await fleet.deployment("virt-controller")
    await fleet.api.delete(VMIS, "vm", "default")

    async def gone() -> bool:
        return await missing(fleet.api, KUBEVIRTS, "kubevirt")

    await fleet.until(gone, 40.0)
