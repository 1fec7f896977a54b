"""Interfaces of running VMs as the controller sees them: what Pods are asked for, and what takes a migration."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from virt_plane import Plane, a_vm, plane

from bench.simulator import NAMESPACE
from virtfleet.controller import connecting
from virtfleet.kube.resource import CRDS, NETWORK_ATTACHMENTS, VMI_MIGRATIONS, VMIS, VMS, Obj
from virtfleet.local.apiserver.bootstrap import default_objects
from virtfleet.pods.networks import NETWORKS, pod_interface

PLAIN = {"networks": [{"name": "default", "pod": {}}], "interfaces": [{"name": "default", "masquerade": {}}]}


@pytest.fixture
async def virt(tmp_path: Path) -> AsyncIterator[Plane]:
    async with plane(tmp_path) as made:
        yield made


def template(**interface: Any) -> Obj:
    """Networks and interfaces of a template with one more."""
    more = [{"name": "more", "bridge": {}, **interface}]
    networks = [*PLAIN["networks"], {"name": "more", "multus": {"networkName": "blue"}}]
    return {"networks": networks, "domain": {"devices": {"interfaces": [*PLAIN["interfaces"], *more]}}}


async def edit(virt: Plane, **interface: Any) -> None:
    await virt.api.patch(VMS, "vm", {"spec": {"template": {"spec": template(**interface)}}}, NAMESPACE)


async def says(virt: Plane, *interfaces: Obj) -> None:
    """What the handler writes."""
    await virt.api.patch(VMIS, "vm", {"status": {"interfaces": list(interfaces)}}, NAMESPACE)


async def asked(virt: Plane) -> list[str]:
    [pod] = await virt.pods()
    return [each["interface"] for each in json.loads(pod["metadata"]["annotations"].get(NETWORKS, "[]"))]


async def running(virt: Plane, **spec: Any) -> None:
    vm = a_vm()
    vm["spec"]["template"]["spec"] |= {"networks": PLAIN["networks"], **spec}
    vm["spec"]["template"]["spec"]["domain"]["devices"]["interfaces"] = PLAIN["interfaces"]
    await virt.create(VMS, vm)
    await virt.phase("Running")


async def define(virt: Plane) -> None:
    [crd] = [obj for kind, obj in default_objects() if kind is CRDS]
    await virt.api.create(CRDS, crd)
    await virt.create(NETWORK_ATTACHMENTS, {"metadata": {"name": "blue"}, "spec": {"config": '{"type": "bridge"}'}})


async def test_an_interface_comes_and_goes_by_the_template(virt: Plane) -> None:
    await define(virt)
    await running(virt)
    await edit(virt)
    link = pod_interface("more")
    await virt.until(lambda: _is(asked(virt), [link]))
    await says(virt, {"name": "more", "infoSource": "domain, multus-status"})

    async def settled() -> bool:
        conditions = (await virt.vmi())["status"]["conditions"]
        return not any(c["type"] == "MigrationRequired" for c in conditions)

    await virt.until(settled)
    vm = await virt.vm()
    assert not any(c["type"] == "RestartRequired" for c in vm["status"]["conditions"])
    await edit(virt, state="absent")

    async def going() -> bool:
        return (await virt.vmi())["spec"]["domain"]["devices"]["interfaces"][-1].get("state") == "absent"

    await virt.until(going)
    assert await asked(virt) == [link], "the guest has it still"
    await says(virt)
    await virt.until(lambda: _is(asked(virt), []))

    async def gone() -> bool:
        return "more" not in json.dumps([(await virt.vm())["spec"], (await virt.vmi())["spec"]])

    await virt.until(gone)


async def test_where_nobody_attaches_it_comes_with_one_migration(virt: Plane, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connecting, "PATIENCE", 0.5)
    await define(virt)
    await running(virt)
    status = {"conditions": [{"type": "LiveMigratable", "status": "True"}]}
    await virt.api.patch(VMIS, "vm", {"status": status}, NAMESPACE)
    await edit(virt)
    said = await virt.condition("MigrationRequired")
    assert said["reason"] == "AutoMigrationDueToLiveUpdate" and "not given interface more" in said["message"]
    [migration] = await virt.until(lambda: virt.api.list(VMI_MIGRATIONS, NAMESPACE))
    assert migration["spec"]["vmiName"] == "vm"
    await virt.stop()
    virt.start()
    await edit(virt, state="down")
    await virt.condition("MigrationRequired")
    assert len(await virt.api.list(VMI_MIGRATIONS, NAMESPACE)) == 1


async def test_a_cluster_without_such_networks_says_what_to_do(virt: Plane) -> None:
    vm = a_vm()
    spec = vm["spec"]["template"]["spec"]
    spec["networks"], spec["domain"]["devices"]["interfaces"] = template()["networks"], []
    spec["domain"] = {**spec["domain"], **template()["domain"]}
    await virt.create(VMS, vm)
    said = await virt.condition("Synchronized", "False")
    assert "install Multus, or remove the network from the VM" in said["message"]
    assert not await virt.pods()


async def _is(found: Any, wanted: list[str]) -> bool:
    return bool(await found == wanted)
