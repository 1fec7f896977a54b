"""`virtfleet install` and `uninstall`: into a cluster whose nodes pretend, with the operator at work."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from hollow import NAMESPACE, Hollow, hollow, missing

from virtfleet import __version__
from virtfleet.cli import installing
from virtfleet.cli.output import CommandError, Progress
from virtfleet.kube.resource import CRDS, DEPLOYMENTS, KUBEVIRTS, NAMESPACES, VMS

LIMIT = 60.0


@pytest.fixture
async def fleet(tmp_path: Path) -> AsyncIterator[Hollow]:
    async with hollow(tmp_path) as cluster:
        yield cluster


async def install(fleet: Hollow, kubevirt: dict[str, Any] | None = None, **spec: str) -> dict[str, Any]:
    progress = Progress()
    await installing.install(fleet.api, kubevirt, progress, spec, installing.DEFAULT)
    await installing.wait(fleet.api, installing.why_not_ready, progress, LIMIT)
    return await fleet.kubevirt()


async def make_vm(fleet: Hollow) -> None:
    template = {"spec": {"domain": {"devices": {}}}}
    vm = {"metadata": {"name": "db", "namespace": "default"}, "spec": {"runStrategy": "Halted", "template": template}}
    await fleet.api.create(VMS, vm)


@pytest.mark.slow
async def test_it_waits_in_words_until_vms_can_be_made(fleet: Hollow, capsys: pytest.CaptureFixture[str]) -> None:
    kubevirt = await install(fleet, imageRegistry="r.example/v")
    assert kubevirt["status"]["phase"] == "Deployed" and kubevirt["spec"] == {"imageRegistry": "r.example/v"}
    for name in ("virt-operator", "virt-api"):
        deployment = await fleet.deployment(name)
        assert deployment["spec"]["template"]["spec"]["containers"][0]["image"] == f"r.example/v/{name}:{__version__}"
    said = capsys.readouterr().err
    assert "virt-operator starts" in said and len(said.splitlines()) < 30


@pytest.mark.slow
async def test_repeating_it_writes_nothing_and_keeps_what_the_administrator_set(fleet: Hollow) -> None:
    await install(fleet, imageRegistry="r.example/v")
    await fleet.configure(infra={"replicas": 1})
    before = await install(fleet)
    operator = await fleet.deployment("virt-operator")
    after = await install(fleet)
    assert before["metadata"]["generation"] == after["metadata"]["generation"]
    assert after["spec"] == {"imageRegistry": "r.example/v", "infra": {"replicas": 1}}
    again = await fleet.deployment("virt-operator")
    assert again["metadata"]["generation"] == operator["metadata"]["generation"]
    assert (await install(fleet, imageRegistry="other.example"))["spec"]["imageRegistry"] == "other.example"


@pytest.mark.slow
async def test_images_that_cannot_be_pulled_are_named_with_the_next_step(fleet: Hollow) -> None:
    fleet.refuse(lambda image: "virt-operator" in image)
    await installing.install(fleet.api, None, Progress(), {}, installing.DEFAULT)
    with pytest.raises(CommandError, match="virt-operator starts: 0 of 2") as late:
        await installing.wait(fleet.api, installing.why_not_ready, Progress(), 3.0)
    assert "failed to pull image" in late.value.message and "kubectl -n kubevirt get pods" in late.value.message


async def test_an_operator_of_somebody_else_is_left_alone(fleet: Hollow) -> None:
    await installing.install(fleet.api, None, Progress(), {}, installing.DEFAULT)
    foreign = {"metadata": {"labels": {"app.kubernetes.io/part-of": None}}}
    await fleet.api.patch(DEPLOYMENTS, "virt-operator", foreign, NAMESPACE)
    with pytest.raises(CommandError, match="not VirtFleet's"):
        await installing.install(fleet.api, None, Progress(), {}, installing.DEFAULT)


@pytest.mark.slow
async def test_vms_keep_it_from_being_uninstalled(fleet: Hollow) -> None:
    await install(fleet)
    await make_vm(fleet)
    with pytest.raises(CommandError, match="VirtualMachine default/db") as refused:
        await installing.uninstall(fleet.api, Progress(), force=False)
    assert "--force" in refused.value.message
    assert not (await fleet.kubevirt())["metadata"].get("deletionTimestamp")
    await fleet.configure(uninstallStrategy="RemoveWorkloads")
    assert await installing.uninstall(fleet.api, Progress(), force=False)


@pytest.mark.slow
@pytest.mark.parametrize("strategy", [None, "BlockUninstallIfWorkloadsExist"])
async def test_by_force_vms_go_first_and_then_everything(fleet: Hollow, strategy: str | None) -> None:
    await install(fleet)
    await fleet.configure(uninstallStrategy=strategy)
    await make_vm(fleet)
    assert await installing.uninstall(fleet.api, Progress(), force=True)
    await installing.wait(fleet.api, installing.why_still_there, Progress(), LIMIT)
    await fleet.kill_operator()
    removed = [name async for name in installing.remove_manifest(fleet.api)]
    assert "Deployment virt-operator" in removed and removed[-1] == f"Namespace {NAMESPACE}"
    assert await missing(fleet.api, CRDS, str(KUBEVIRTS))
    await installing.wait(fleet.api, installing.why_manifest_is_there, Progress(), LIMIT)
    assert await missing(fleet.api, NAMESPACES, NAMESPACE)
    assert not await installing.uninstall(fleet.api, Progress(), force=False), "it is gone already"


@pytest.mark.slow
async def test_without_an_operator_nobody_waits_for_one(fleet: Hollow) -> None:
    await install(fleet)
    await fleet.api.delete(DEPLOYMENTS, "virt-operator", NAMESPACE)
    await fleet.kill_operator()
    await installing.uninstall(fleet.api, Progress(), force=False)
    with pytest.raises(CommandError, match="virtfleet install"):
        async with asyncio.timeout(LIMIT):
            await installing.wait(fleet.api, installing.why_still_there, Progress(), LIMIT)
