"""Launcher Pods on a cluster: accepted by the API server, placed by the scheduler, and there once."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import orjson
import pytest
from hollow import Hollow, hollow

from virtfleet import __version__
from virtfleet.admission.review import complete
from virtfleet.installation import Installation
from virtfleet.kube.errors import ApiError, is_already_exists
from virtfleet.kube.resource import NODES, PODS, Obj
from virtfleet.pods.launcher import render

LAUNCHER = "registry.example.com/virt-launcher:v1.9.0-megaslop"
POOL = {
    "name": "megaslop",
    "virtLauncherImage": LAUNCHER,
    "nodeSelector": {"superduper.io/megaslop": "true"},
    "exclusive": True,
    "selector": {"deviceNames": ["superduper.io/MegaSlop_9000"]},
}
KUBEVIRT = {
    "metadata": {"name": "kubevirt", "namespace": "kubevirt"},
    "spec": {
        "configuration": {"developerConfiguration": {"useEmulation": True, "featureGates": ["VirtHandlerPools"]}},
        "virtHandlerPools": [POOL],
    },
}


def vmi(name: str, *devices: str, **spec: Any) -> Obj:
    domain = {
        "memory": {"guest": "128Mi"},
        "devices": {
            "disks": [{"name": "root", "disk": {"bus": "virtio"}}],
            "hostDevices": [{"name": f"d{i}", "deviceName": d} for i, d in enumerate(devices)],
        },
    }
    volumes = [{"name": "root", "containerDisk": {"image": "registry.example.com/disk:1"}}]
    made = {
        "apiVersion": "kubevirt.io/v1",
        "kind": "VirtualMachineInstance",
        "metadata": {"name": name, "namespace": "default", "uid": str(uuid.uuid5(uuid.NAMESPACE_DNS, name))},
        "spec": {"domain": domain, "volumes": volumes, **spec},
    }
    completed, found = complete(made, Installation(KUBEVIRT))
    assert found.allowed, found.causes
    return completed


@pytest.fixture
async def fleet(tmp_path: Path) -> AsyncIterator[Hollow]:
    async with hollow(tmp_path, nodes=3) as cluster:
        for number in range(3):
            can = ("kubevirt.io/schedulable", "virtfleet.io/image-volumes")
            labels = {"kubernetes.io/arch": "amd64", **dict.fromkeys(can, "true")}
            allocatable = {"devices.kubevirt.io/tun": "110"}
            if number == 2:
                labels["superduper.io/megaslop"] = "true"
                allocatable["superduper.io/MegaSlop_9000"] = "2"
            await cluster.api.patch(NODES, f"node{number}", {"metadata": {"labels": labels}})
            status = {"status": {"allocatable": allocatable}}
            await cluster.api.patch(NODES, f"node{number}", status, subresource="status")
        yield cluster


async def placed(fleet: Hollow, pod: Obj) -> str:
    await fleet.api.create(PODS, pod)

    async def node() -> str:
        stored = await fleet.api.get(PODS, pod["metadata"]["name"], "default")
        return str(stored["spec"].get("nodeName", ""))

    where: str = await fleet.until(node)
    return where


async def test_the_story_of_nodes_a_b_and_c(fleet: Hollow) -> None:
    settings = Installation(KUBEVIRT)
    slop = render(vmi("slop", "superduper.io/MegaSlop_9000"), settings)
    assert slop["spec"]["containers"][0]["image"] == LAUNCHER
    assert await placed(fleet, slop) == "node2"
    ordinary = render(vmi("ordinary"), settings)
    assert ordinary["spec"]["containers"][0]["image"] == f"virtfleet/virt-launcher:{__version__}"
    assert await placed(fleet, ordinary) in ("node0", "node1")


async def test_a_second_pod_for_a_vmi_is_refused_whoever_asks(fleet: Hollow) -> None:
    settings = Installation(KUBEVIRT)
    await fleet.api.create(PODS, render(vmi("vm"), settings))
    with pytest.raises(ApiError) as refused:
        await fleet.api.create(PODS, render(vmi("vm"), Installation({})))
    assert is_already_exists(refused.value)


def missing(rendered: Any, kept: Any, path: str) -> list[str]:
    """What of the rendered value was not kept."""
    if isinstance(rendered, dict):
        kept = kept or {}
        return [m for key, value in rendered.items() for m in missing(value, kept.get(key), f"{path}.{key}")]
    if isinstance(rendered, list):
        kept = [*(kept or ()), *[None] * len(rendered)]
        return [m for i, value in enumerate(rendered) for m in missing(value, kept[i], f"{path}[{i}]")]
    return [] if rendered == kept else [f"{path}: {rendered!r} became {kept!r}"]


async def test_the_api_server_stores_every_field_that_is_rendered(fleet: Hollow) -> None:
    """Nothing is pruned, so nothing is misspelt."""
    volumes = [
        {"name": "root", "containerDisk": {"image": "registry.example.com/disk:1", "imagePullSecret": "s"}},
        {"name": "claim", "persistentVolumeClaim": {"claimName": "c"}},
        {"name": "block", "persistentVolumeClaim": {"claimName": "b"}},
        {"name": "cm", "configMap": {"name": "cm", "optional": True}},
        {"name": "ci", "cloudInitNoCloud": {"secretRef": {"name": "ud"}}},
    ]
    disks = [{"name": volume["name"], "disk": {"bus": "virtio"}} for volume in volumes]
    machine = vmi("vm", volumes=volumes)
    machine["spec"]["domain"]["devices"]["disks"] = disks
    machine["spec"] |= {
        "readinessProbe": {"guestAgentPing": {}},
        "tolerations": [{"key": "k", "operator": "Exists"}],
        "hostname": "box",
        "subdomain": "fleet",
    }
    pod = render(machine, Installation(KUBEVIRT), block_volumes={"block"})
    stored = await fleet.api.create(PODS, orjson.loads(orjson.dumps(pod)))

    assert missing(pod["spec"], stored["spec"], "spec") == []
