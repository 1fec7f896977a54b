"""The seeds' own examples, rendered: which DaemonSets an installation has, and which image a VM's Pod gets."""

from __future__ import annotations

from typing import Any

import pytest
import yaml
from pools.nodes import pod_admits

from tests.reference import beside
from virtfleet import __version__
from virtfleet.admission.review import complete
from virtfleet.installation import Installation
from virtfleet.operator.render import render
from virtfleet.pods.launcher import render as render_pod


def examples(kind: str) -> list[dict[str, Any]]:
    text = beside("seeds/additional-virt-handlers.md").read_text()
    blocks = [block.partition("```")[0] for block in text.split("```yaml\n")[1:]]
    return [doc for block in blocks if (doc := yaml.safe_load(block)).get("kind") == kind]


def kubevirt_with(*pools: str) -> dict[str, Any]:
    [found] = [
        kv
        for kv in examples("KubeVirt")
        if [p["name"] for p in kv["spec"].get("additionalVirtHandlers", ())] == list(pools)
    ]
    return found


def machine(name: str) -> dict[str, Any]:
    [found] = [vmi for vmi in examples("VirtualMachineInstance") if vmi["metadata"]["name"] == name]
    found["metadata"] |= {"namespace": "default", "uid": "11111111-2222"}
    return found


def handlers(kubevirt: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {o["metadata"]["name"]: o for o in render(Installation(kubevirt)) if o["kind"] == "DaemonSet"}


def image_of(vmi: dict[str, Any], kubevirt: dict[str, Any]) -> str:
    completed, found = complete(vmi, Installation(kubevirt))
    assert found.allowed, found.causes
    pod = render_pod(completed, Installation(kubevirt))
    # The seed's troubleshooting command: {.spec.containers[?(@.name=="compute")].image}
    [image] = [c["image"] for c in pod["spec"]["containers"] if c["name"] == "compute"]
    assert pod["metadata"]["labels"]["kubevirt.io/domain"] == vmi["metadata"]["name"]
    return str(image)


def test_without_pools_there_is_the_primary_handler_alone() -> None:
    assert list(handlers(kubevirt_with())) == ["virt-handler"]


def test_the_basic_example_has_a_daemon_set_with_both_images() -> None:
    made = handlers(kubevirt_with("gpu-pool"))
    assert list(made) == ["virt-handler", "virt-handler-gpu-pool"]
    spec = made["virt-handler-gpu-pool"]["spec"]["template"]["spec"]
    assert spec["containers"][0]["image"] == "registry.example.com/kubevirt/virt-handler:v1.0.0-gpu"
    assert spec["initContainers"][0]["image"] == "registry.example.com/kubevirt/virt-launcher:v1.0.0-gpu"
    for labels, admitted in (({"node.kubernetes.io/gpu": "true"}, True), ({}, False)):
        assert pod_admits(spec, {"kubernetes.io/os": "linux", **labels}) is admitted


def test_the_example_of_several_pools_has_one_daemon_set_each_and_the_default_handler() -> None:
    made = handlers(kubevirt_with("gpu-pool", "fpga-pool"))
    assert list(made) == ["virt-handler", "virt-handler-gpu-pool", "virt-handler-fpga-pool"]
    images = {ds["spec"]["template"]["spec"]["containers"][0]["image"] for ds in made.values()}
    assert images == {f"virtfleet/virt-handler:{__version__}"}


@pytest.mark.parametrize(
    ("name", "image"),
    [
        ("gpu-vm", "registry.example.com/kubevirt/virt-launcher:v1.0.0-gpu"),
        ("standard-vm", f"virtfleet/virt-launcher:{__version__}"),
    ],
)
def test_the_examples_vms_get_the_images_that_the_seed_says(name: str, image: str) -> None:
    assert image_of(machine(name), kubevirt_with("gpu-pool", "fpga-pool")) == image


def test_the_story_of_mshv_by_label() -> None:
    """The user labels a VMI with kubevirt.io/hypervisor: mshv; the rest follows from the pool."""
    pool = {
        "name": "mshv",
        "virtLauncherImage": "registry.example.com/virt-launcher:mshv",
        "nodeSelector": {"hypervisor.node.kubevirt.io/mshv": "true"},
        "hypervisor": "mshv",
        "selector": {"vmLabels": {"matchLabels": {"kubevirt.io/hypervisor": "mshv"}}},
    }
    gates = {"developerConfiguration": {"featureGates": ["VirtHandlerPools"]}}
    kubevirt = {
        "metadata": {"name": "kubevirt", "namespace": "kubevirt"},
        "spec": {"configuration": gates, "virtHandlerPools": [pool]},
    }
    vmi = machine("standard-vm")
    vmi["metadata"]["labels"] = {"kubevirt.io/hypervisor": "mshv"}
    completed, _ = complete(vmi, Installation(kubevirt))
    pod = render_pod(completed, Installation(kubevirt))
    [compute] = pod["spec"]["containers"]
    assert compute["image"] == "registry.example.com/virt-launcher:mshv"
    assert compute["resources"]["limits"]["devices.kubevirt.io/mshv"] == "1"
    assert "--hypervisor=mshv" in compute["args"]
    [term] = pod["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"][
        "nodeSelectorTerms"
    ]
    assert term["matchExpressions"][0]["key"] == "hypervisor.node.kubevirt.io/mshv"
