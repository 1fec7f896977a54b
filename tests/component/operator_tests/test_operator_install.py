"""Installing: a KubeVirt object becomes components, and an installation at rest is not written to."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from hollow import NAMESPACE, Hollow, hollow, missing

from virtfleet import __version__
from virtfleet.api import names
from virtfleet.installation import Installation
from virtfleet.kube.api import Patch
from virtfleet.kube.errors import ApiError
from virtfleet.kube.resource import (
    CLUSTER_INSTANCETYPES,
    CLUSTER_PREFERENCES,
    CRDS,
    DAEMON_SETS,
    DEPLOYMENTS,
    KUBEVIRTS,
    MUTATING_WEBHOOKS,
    NODES,
    PODS,
    SERVICE_ACCOUNTS,
    VALIDATING_WEBHOOKS,
    VMIS,
)
from virtfleet.operator import commontypes

_COMMON = commontypes.render(Installation({"metadata": {"namespace": NAMESPACE}}))
TYPES = [obj for obj in _COMMON if obj["kind"] == CLUSTER_INSTANCETYPES.kind]
PREFERENCES = [obj for obj in _COMMON if obj["kind"] == CLUSTER_PREFERENCES.kind]


@pytest.fixture
async def fleet(tmp_path: Path) -> AsyncIterator[Hollow]:
    async with hollow(tmp_path) as cluster:
        yield cluster


@pytest.mark.slow
async def test_nodes_are_tried_for_images_as_volumes_and_say_so(fleet: Hollow) -> None:
    fleet.kubelets.without_image_volumes = {"node1"}
    await fleet.install()

    async def labels() -> dict[str, str]:
        nodes = {n["metadata"]["name"]: n["metadata"]["labels"] for n in await fleet.api.list(NODES)}
        return {name: of.get("virtfleet.io/image-volumes", "") for name, of in nodes.items()}

    async def all_tried() -> bool:
        pods = await fleet.api.list(PODS, NAMESPACE, labels="kubevirt.io=virt-image-volume-probe")
        return not pods and all((await labels()).values())

    await fleet.until(all_tried)
    assert await labels() == {"node0": "true", "node1": "false", "node2": "true"}


async def test_a_kubevirt_object_becomes_a_running_installation(fleet: Hollow) -> None:
    await fleet.install()
    kubevirt = await fleet.settled()
    status = kubevirt["status"]
    assert status["phase"] == "Deployed"
    assert status["observedKubeVirtVersion"] == status["targetKubeVirtVersion"] == __version__
    assert status["observedDeploymentID"] == status["targetDeploymentID"]
    assert status["health"] == "Healthy"
    assert {c["type"]: c["status"] for c in status["conditions"]} == {
        "Created": "True",
        "Available": "True",
        "Progressing": "False",
        "Degraded": "False",
    }
    assert await fleet.owners() == dict.fromkeys(("node0", "node1", "node2"), "virt-handler")
    for name in ("virt-api", "virt-controller"):
        deployment = await fleet.deployment(name)
        assert deployment["spec"]["replicas"] == 2
        assert deployment["spec"]["template"]["spec"]["containers"][0]["image"] == f"virtfleet/{name}:{__version__}"


@pytest.mark.slow
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


@pytest.mark.slow
async def test_what_somebody_changed_by_hand_is_put_right(fleet: Hollow) -> None:
    await fleet.install()
    image = [{"op": "add", "path": "/spec/template/spec/containers/0/image", "value": "evil:latest"}]
    await fleet.api.patch(DEPLOYMENTS, "virt-api", image, NAMESPACE, how=Patch.JSON)
    await fleet.api.delete(SERVICE_ACCOUNTS, "kubevirt-handler", NAMESPACE)

    async def right() -> bool:
        deployment = await fleet.deployment("virt-api")
        await fleet.api.get(SERVICE_ACCOUNTS, "kubevirt-handler", NAMESPACE)
        return deployment["spec"]["template"]["spec"]["containers"][0]["image"] == f"virtfleet/virt-api:{__version__}"

    await fleet.until(right)

    async def told() -> bool:
        generations = (await fleet.kubevirt())["status"]["generations"]
        [told] = [each for each in generations if (each["resource"], each["name"]) == ("deployments", "virt-api")]
        return bool(told["lastGeneration"] == (await fleet.deployment("virt-api"))["metadata"]["generation"] > 2)

    await fleet.until(told)


@pytest.mark.slow
async def test_what_others_add_to_metadata_is_left_alone(fleet: Hollow) -> None:
    await fleet.install()
    await fleet.api.patch(DEPLOYMENTS, "virt-api", {"metadata": {"labels": {"team": "infra"}}}, NAMESPACE)
    await fleet.configure(imageTag="v2")

    async def updated() -> bool:
        deployment = await fleet.deployment("virt-api")
        assert deployment["metadata"]["labels"]["team"] == "infra"
        return deployment["spec"]["template"]["spec"]["containers"][0]["image"] == "virtfleet/virt-api:v2"

    await fleet.until(updated)


@pytest.mark.slow
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


@pytest.mark.slow
async def test_a_second_kubevirt_object_is_told_that_there_is_one(fleet: Hollow) -> None:
    await fleet.install()
    await fleet.api.create(KUBEVIRTS, {"metadata": {"name": "second", "namespace": NAMESPACE}, "spec": {}})

    async def told() -> bool:
        second = await fleet.api.get(KUBEVIRTS, "second", NAMESPACE)
        conditions = (second.get("status") or {}).get("conditions") or ()
        return any(c["reason"] == "ExistingDeployment" and "kubevirt/kubevirt" in c["message"] for c in conditions)

    await fleet.until(told)
    await fleet.settled()


@pytest.mark.slow
async def test_a_configuration_that_cannot_be_rendered_leaves_what_is_installed(fleet: Hollow) -> None:
    await fleet.install()
    broken = {"resourceType": "Deployment", "resourceName": "virt-api", "type": "json", "patch": '[{"op":"no"}]'}
    await fleet.configure(customizeComponents={"patches": [broken]})
    degraded = await fleet.condition("Degraded", reason="InvalidConfiguration")
    assert "patches[0]" in degraded["message"]
    assert await fleet.deployment("virt-api")
    await fleet.configure(customizeComponents=None)
    await fleet.settled()
    await fleet.event("InvalidConfiguration")


async def test_pools_that_cannot_be_told_apart_leave_what_is_installed(fleet: Hollow) -> None:
    await fleet.install(configuration={"developerConfiguration": {"featureGates": ["VirtHandlerPools"]}})
    pools = [
        {"name": f"p{i}", "virtLauncherImage": "l:1", "nodeSelector": {f"{k}{i}": "1" for k in "abc"}} for i in range(7)
    ]
    await fleet.configure(virtHandlerPools=[{**p, "selector": {"deviceNames": ["x.io/d"]}} for p in pools])
    degraded = await fleet.condition("Degraded", reason="InvalidConfiguration")
    assert "label of their own" in degraded["message"]
    assert await fleet.daemon_sets() == ["virt-handler"]


@pytest.mark.slow
@pytest.mark.parametrize("operator", ["the same", "another"])
async def test_deleting_the_kubevirt_object_takes_everything_away(fleet: Hollow, operator: str) -> None:
    """Also by an operator that has never seen the object as it was before."""
    await fleet.install()
    if operator == "another":
        await fleet.kill_operator()
    await fleet.api.delete(KUBEVIRTS, "kubevirt", NAMESPACE)
    if operator == "another":
        fleet.start_operator()

    async def gone() -> bool:
        return await missing(fleet.api, KUBEVIRTS, "kubevirt")

    await fleet.until(gone, 40.0)
    for resource in (DEPLOYMENTS, DAEMON_SETS, VALIDATING_WEBHOOKS):
        assert await fleet.api.list(resource) == []
    assert [crd["metadata"]["name"] for crd in await fleet.api.list(CRDS)] == ["kubevirts.kubevirt.io"]
    assert len(await fleet.api.list(NODES)) == 3


@pytest.mark.slow
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


@pytest.mark.slow
async def test_a_finalizer_that_goes_while_the_operator_lets_go_is_not_put_back(
    fleet: Hollow, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The operator reads the object, somebody takes a finalizer away, the operator writes its own, older list."""
    await fleet.install()
    theirs = ["example.com/first", "example.com/second"]
    there = (await fleet.kubevirt())["metadata"]["finalizers"]
    await fleet.api.patch(KUBEVIRTS, "kubevirt", {"metadata": {"finalizers": [*there, *theirs]}}, NAMESPACE)
    patch, answers = fleet.operators_api.patch, []

    async def late(res: Any, name: str, change: Any, namespace: str | None = None, **more: Any) -> Any:
        if "finalizers" not in (change.get("metadata") or {} if isinstance(change, dict) else ()):
            return await patch(res, name, change, namespace, **more)
        if not answers:
            left = [f for f in (await fleet.kubevirt())["metadata"]["finalizers"] if f != theirs[0]]
            await fleet.api.patch(KUBEVIRTS, name, {"metadata": {"finalizers": left}}, namespace)
        try:
            stored = await patch(res, name, change, namespace, **more)
        except ApiError as error:
            answers.append(error.code)
            raise
        answers.append(200)
        return stored

    monkeypatch.setattr(fleet.operators_api, "patch", late)
    await fleet.api.delete(KUBEVIRTS, "kubevirt", NAMESPACE)

    async def let_go() -> bool:
        return (await fleet.kubevirt())["metadata"]["finalizers"] == theirs[1:]

    await fleet.until(let_go, 40.0)

    async def answered() -> bool:
        return answers == [409, 200]

    await fleet.until(answered)


@pytest.mark.slow
async def test_nodes_keep_nothing_of_an_installation_that_is_gone(fleet: Hollow) -> None:
    await fleet.install()
    ours = {
        "kubevirt.io/schedulable": "true",
        "cpumanager": "false",
        "cpu-model.node.kubevirt.io/Nehalem": "true",
        "hypervisor.node.kubevirt.io/lxc": "true",
        "kubevirt.io/realtime": "true",
        "virtfleet.io/served-by": "primary",
    }
    notes = {"kubevirt.io/heartbeat": "2026-01-01T00:00:00Z", "virtfleet.io/handler-version": __version__}
    before = (await fleet.api.get(NODES, "node1"))["metadata"]
    for kind, key in (
        ("labels", names.SERVED_BY),
        ("labels", names.IMAGE_VOLUMES),
        ("annotations", names.IMAGE_VOLUMES_OF),
    ):
        (before.get(kind) or {}).pop(key, None)  # the operator may have written it by now
    theirs = {"labels": {**ours, "example.com/rack": "7"}, "annotations": {**notes, "example.com/note": "x"}}
    await fleet.api.patch(NODES, "node1", {"metadata": theirs})
    await fleet.api.delete(KUBEVIRTS, "kubevirt", NAMESPACE)

    async def gone() -> bool:
        return await missing(fleet.api, KUBEVIRTS, "kubevirt")

    await fleet.until(gone, 40.0)
    after = (await fleet.api.get(NODES, "node1"))["metadata"]
    assert after["labels"] == {**before["labels"], "example.com/rack": "7"}
    assert after["annotations"] == {**(before.get("annotations") or {}), "example.com/note": "x"}


@pytest.mark.slow
async def test_the_default_architecture_is_found_once_and_the_administrators_word_counts(
    fleet: Hollow, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def becomes(architecture: str) -> None:
        async def told() -> bool:
            status = (await fleet.kubevirt())["status"]
            assert status["observedGeneration"] == (await fleet.kubevirt())["metadata"]["generation"]
            return bool(status["defaultArchitecture"] == architecture)

        await fleet.until(told)

    monkeypatch.setattr("platform.machine", lambda: "aarch64")
    await fleet.install()
    await becomes("arm64")
    # Leadership moves to a machine of another kind.
    await fleet.kill_operator()
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    fleet.start_operator()
    await fleet.configure(productName="another")
    await becomes("arm64")
    await fleet.configure(configuration={"architectureConfiguration": {"defaultArchitecture": "s390x"}})
    await becomes("s390x")


@pytest.mark.slow
async def test_an_operator_that_cannot_read_what_is_stored_touches_nothing(fleet: Hollow) -> None:
    await fleet.install()
    await fleet.settled()
    name = "virtualmachines.kubevirt.io"
    served = (await fleet.api.get(CRDS, name))["spec"]["versions"]
    newer = [{**version, "storage": False} for version in served]
    newer.append({**served[0], "name": "v9", "served": True, "storage": True})
    await fleet.kill_operator()
    await fleet.api.patch(CRDS, name, {"spec": {"versions": newer}})
    await fleet.until(lambda: _stored_in(fleet, name, "v9"))
    fleet.operators_api.writes.clear()
    fleet.start_operator()
    await fleet.configure(imageTag="v2")
    told = await fleet.condition("Degraded", reason="CannotUndo")
    assert f"{name} (v9)" in told["message"] and "nothing was changed" in told["message"]
    kinds = {(verb, kind) for verb, kind, _ in fleet.operators_api.writes} - {("patch", "kubevirts.kubevirt.io")}
    assert kinds <= {("create", "events"), ("patch", "events")}, kinds


async def _stored_in(fleet: Hollow, name: str, version: str) -> bool:
    definition = await fleet.api.get(CRDS, name)
    return version in (definition["status"].get("storedVersions") or ())


@pytest.mark.slow
async def test_the_common_instance_types_come_and_go_as_the_kubevirt_object_says(fleet: Hollow) -> None:
    """Somebody's own stay, what was there under a name of ours becomes ours, and changes are taken back."""
    await fleet.install(configuration={"commonInstancetypesDeployment": {"enabled": False}})
    spec = {"cpu": {"guest": 3}, "memory": {"guest": "1Gi"}}
    for name in ("mine", "u1.small"):
        await fleet.api.create(CLUSTER_INSTANCETYPES, {"metadata": {"name": name}, "spec": spec})

    async def ours() -> tuple[int, int]:
        managed = "app.kubernetes.io/managed-by=virt-operator"
        types = await fleet.api.list(CLUSTER_INSTANCETYPES, labels=managed)
        return len(types), len(await fleet.api.list(CLUSTER_PREFERENCES, labels=managed))

    async def complete() -> bool:
        small = await fleet.api.get(CLUSTER_INSTANCETYPES, "u1.small")
        return await ours() == (len(TYPES), len(PREFERENCES)) and small["spec"]["cpu"] == {"guest": 1}

    async def gone() -> bool:
        return await ours() == (0, 0)

    assert await ours() == (0, 0)
    await fleet.configure(configuration={"commonInstancetypesDeployment": None})  # as in KubeVirt, they are the default
    await fleet.until(complete)
    await fleet.api.patch(CLUSTER_INSTANCETYPES, "u1.small", {"spec": {"cpu": {"guest": 9}}})
    await fleet.api.delete(CLUSTER_PREFERENCES, "fedora")
    await fleet.until(complete)
    await fleet.settled()
    assert await fleet.idle_writes() == []
    fleet.start_operator()
    await fleet.configure(configuration={"commonInstancetypesDeployment": {"enabled": False}})
    await fleet.until(gone)
    assert (await fleet.api.get(CLUSTER_INSTANCETYPES, "mine"))["spec"] == spec
