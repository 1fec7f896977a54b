"""A new launcher image for VMs that run: the guest moves into it where that is asked for, and else nothing moves."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from cluster.clusters import VIRTFLEET, Cluster, Kubectl
from docblocks import run, shown
from vm.accessed import Used
from vm.guests import PATIENCE
from vm.reader import environment
from waiting import eventually

NAMESPACE = "updating"
NEW = "virtfleet/virt-launcher:canary"
SLOW = 2 * PATIENCE  # all handlers are replaced, one after the other
OUTDATED = "kubevirt.io/outdatedLauncherImage"

pytestmark = [pytest.mark.timeout(600), pytest.mark.local_home("a second image of every component is at hand there")]


@pytest.fixture(scope="module")
def web(fleet: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Used]:
    with Used(fleet, NAMESPACE, tmp_path_factory.mktemp("home")) as used:
        yield used


@pytest.fixture
def admin(fleet: Cluster) -> Iterator[Kubectl]:
    """The KubeVirt object's keeper; the object is afterwards as it was."""
    kubectl = Kubectl(fleet, "kubevirt")
    before = kubectl.json("get", "kubevirt", "kubevirt")["spec"]
    yield kubectl
    patch = [{"op": "replace", "path": "/spec", "value": before}]
    kubectl("patch", "kubevirt", "kubevirt", "--type=json", "-p", json.dumps(patch))
    eventually(lambda: settled(kubectl), SLOW)


def settled(admin: Kubectl) -> bool:
    found = admin.json("get", "kubevirt", "kubevirt")
    status, told = found["status"], {c["type"]: c["status"] for c in found["status"]["conditions"]}
    seen = status["observedGeneration"] == found["metadata"]["generation"]
    return bool(
        seen
        and status["observedDeploymentConfig"] == status["targetDeploymentConfig"]
        and told["Progressing"] == "False"
    )


def patched(admin: Kubectl, **spec: Any) -> None:
    admin("patch", "kubevirt", "kubevirt", "--type=merge", "-p", json.dumps({"spec": spec}))


def image(web: Used) -> str:
    vmi = web.vmi()
    assert vmi
    return str(vmi["status"]["launcherContainerImageVersion"])


def node(web: Used) -> str:
    vmi = web.vmi()
    assert vmi
    return str(vmi["status"]["nodeName"])


def test_a_running_guest_moves_into_the_new_launcher_image_when_asked_to(
    web: Used, admin: Kubectl, tmp_path: Path
) -> None:
    boot, old = web.boot_id(), image(web)
    hypervisors = [{"name": "qemu-kvm", "virtLauncherImage": NEW}, {"name": "lxc"}]
    updates = {"workloadUpdateMethods": ["LiveMigrate"]}

    # Beforehand: what would happen, with a strategy and without one.
    wanted = admin.json("get", "kubevirt", "kubevirt")
    wanted["spec"]["configuration"]["hypervisors"] = hypervisors
    file = tmp_path / "kubevirt.yaml"
    file.write_text(yaml.safe_dump(wanted))
    plan = json.loads(web.does(VIRTFLEET, "pools", "--plan", "-f", str(file), "-o", "json"))
    assert {(vm["name"], vm["does"]) for vm in plan["vms"] if vm["namespace"] == NAMESPACE} == {("web", "stays")}
    wanted["spec"]["workloadUpdateStrategy"] = updates
    file.write_text(yaml.safe_dump(wanted))
    reader = environment(web.kubectl.cluster, tmp_path, NAMESPACE)
    names = {"default/": f"{NAMESPACE}/", "virtfleet/virt-launcher:0.3.0": NEW, "node-b": node(web)}
    run(shown(__file__, "virtfleet pools --plan"), tmp_path, reader, names)
    plan = json.loads(web.does(VIRTFLEET, "pools", "--plan", "-f", str(file), "-o", "json"))
    [told] = [vm for vm in plan["vms"] if vm["namespace"] == NAMESPACE]
    assert (told["does"], told["image"], told["newImage"]) == ("moves", old, NEW)

    # Without a strategy: the VM is known to be outdated, and stays.
    patched(admin, configuration={"hypervisors": hypervisors})
    eventually(lambda: OUTDATED in (web.vmi() or {})["metadata"]["labels"], SLOW)
    eventually(lambda: settled(admin), SLOW)
    run(shown(__file__, "kubectl get kubevirt"), tmp_path, reader, names)
    assert not web.kubectl.json("get", "vmim")["items"]
    # A user's migration keeps the image that the VM runs on.
    here, there = node(web), next(name for name in web.kubectl.cluster.nodes if name != node(web))
    names = {"default": NAMESPACE, "node-a": here, "node-b": there}
    run(shown(__file__, "virtfleet migrate"), tmp_path, reader, names)
    assert (image(web), web.boot_id()) == (old, boot)

    # With one, it moves, once.
    patched(admin, workloadUpdateStrategy=updates)
    eventually(lambda: image(web) == NEW, SLOW)
    eventually(lambda: OUTDATED not in (web.vmi() or {})["metadata"]["labels"], PATIENCE)
    assert web.boot_id() == boot, "the guest never stopped"
    made = [
        m for m in web.kubectl.json("get", "vmim")["items"] if m["metadata"]["name"].startswith("kubevirt-workload")
    ]
    assert len(made) == 1
    pods = web.kubectl.json("get", "pods", "-l", "kubevirt.io=virt-launcher")["items"]
    compute = [c for pod in pods for c in pod["spec"]["containers"] if c["name"] == "compute"]
    assert NEW in {c["image"] for c in compute}
