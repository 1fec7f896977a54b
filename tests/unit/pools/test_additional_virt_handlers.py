"""The guide to additional virt-handlers, example by example: its YAML as written, its tables as cases."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from virtfleet.installation import Installation
from virtfleet.pools.launcher import Fleet
from virtfleet.pools.matching import match
from virtfleet.pools.model import Pool, pools_of
from virtfleet.pools.placement import handler_placement

from .nodes import pod_admits

DEFAULT = "registry.example.com/kubevirt/virt-launcher:v1.0.0"

BASIC = """
apiVersion: kubevirt.io/v1
kind: KubeVirt
metadata:
  name: kubevirt
  namespace: kubevirt
spec:
  configuration:
    developerConfiguration:
      featureGates:
        - AdditionalVirtHandlers
  additionalVirtHandlers:
    - name: gpu-pool
      virtHandlerImage: registry.example.com/kubevirt/virt-handler:v1.0.0-gpu
      virtLauncherImage: registry.example.com/kubevirt/virt-launcher:v1.0.0-gpu
      nodeSelector:
        node.kubernetes.io/gpu: "true"
"""

TWO_POOLS = """
apiVersion: kubevirt.io/v1
kind: KubeVirt
metadata:
  name: kubevirt
  namespace: kubevirt
spec:
  configuration:
    developerConfiguration:
      featureGates:
        - AdditionalVirtHandlers
  additionalVirtHandlers:
    - name: gpu-pool
      virtLauncherImage: registry.example.com/kubevirt/virt-launcher:v1.0.0-gpu
      nodeSelector:
        accelerator: nvidia-gpu
    - name: fpga-pool
      virtLauncherImage: registry.example.com/kubevirt/virt-launcher:v1.0.0-fpga
      nodeSelector:
        accelerator: intel-fpga
"""

GPU_VM = """
apiVersion: kubevirt.io/v1
kind: VirtualMachineInstance
metadata:
  name: gpu-vm
spec:
  nodeSelector:
    accelerator: nvidia-gpu
  domain:
    resources:
      requests:
        memory: 4Gi
    devices:
      gpus:
        - name: gpu1
          deviceName: nvidia.com/GPU
      disks:
        - name: containerdisk
          disk:
            bus: virtio
  volumes:
    - name: containerdisk
      containerDisk:
        image: registry.example.com/my-gpu-vm:latest
"""

STANDARD_VM = """
apiVersion: kubevirt.io/v1
kind: VirtualMachineInstance
metadata:
  name: standard-vm
spec:
  domain:
    resources:
      requests:
        memory: 1Gi
    devices:
      disks:
        - name: containerdisk
          disk:
            bus: virtio
  volumes:
    - name: containerdisk
      containerDisk:
        image: registry.example.com/my-vm:latest
"""


def fleet_of(kubevirt: dict[str, Any]) -> Fleet:
    kubevirt["spec"] |= {"imageRegistry": "registry.example.com/kubevirt", "imageTag": "v1.0.0"}
    return Installation(kubevirt).fleet


def test_the_basic_example_is_one_pool_with_both_images() -> None:
    (pool,) = pools_of(yaml.safe_load(BASIC))
    assert pool == Pool(
        name="gpu-pool",
        field="additionalVirtHandlers",
        index=0,
        node_selector={"node.kubernetes.io/gpu": "true"},
        handler_image="registry.example.com/kubevirt/virt-handler:v1.0.0-gpu",
        launcher_image="registry.example.com/kubevirt/virt-launcher:v1.0.0-gpu",
    )
    assert pool.daemon_set == "virt-handler-gpu-pool"


def test_without_the_gate_there_are_no_pools() -> None:
    kubevirt = yaml.safe_load(BASIC)
    kubevirt["spec"]["configuration"]["developerConfiguration"]["featureGates"] = []
    assert pools_of(kubevirt) == ()


@pytest.mark.parametrize(
    ("vmi", "image"),
    [
        (GPU_VM, "registry.example.com/kubevirt/virt-launcher:v1.0.0-gpu"),
        (STANDARD_VM, DEFAULT),
        (
            STANDARD_VM.replace("spec:\n", "spec:\n  nodeSelector: {accelerator: intel-fpga}\n", 1),
            "registry.example.com/kubevirt/virt-launcher:v1.0.0-fpga",
        ),
    ],
)
def test_the_vmis_node_selector_decides_its_launcher_image(vmi: str, image: str) -> None:
    assert fleet_of(yaml.safe_load(TWO_POOLS)).launcher(yaml.safe_load(vmi)).image == image


@pytest.mark.parametrize(
    ("vmi", "handler", "matches"),
    [
        ({"gpu": "true"}, {"gpu": "true"}, True),
        ({"gpu": "true", "zone": "us-west"}, {"gpu": "true"}, True),
        ({"gpu": "true"}, {"gpu": "true", "zone": "us-west"}, False),
        ({"cpu": "intel"}, {"gpu": "true"}, False),
        ({}, {"gpu": "true"}, False),
    ],
)
def test_a_vmi_matches_when_its_node_selector_is_a_superset(
    vmi: dict[str, str], handler: dict[str, str], matches: bool
) -> None:
    pools = (Pool("p", "additionalVirtHandlers", 0, handler),)
    assert (match(pools, {"spec": {"nodeSelector": vmi}}) is not None) == matches


def kept_by(daemon_set: str) -> dict[str, Any]:
    return {"key": "virtfleet.io/served-by", "operator": "In", "values": [daemon_set]}


def test_the_primary_handler_keeps_off_the_nodes_of_both_pools() -> None:
    pools = pools_of(yaml.safe_load(TWO_POOLS))
    primary = handler_placement(pools, None)
    assert primary == {
        "nodeSelector": {"kubernetes.io/os": "linux"},
        "affinity": {
            "nodeAffinity": {
                "requiredDuringSchedulingIgnoredDuringExecution": {
                    "nodeSelectorTerms": [
                        {"matchExpressions": [kept_by("primary")]},
                        {
                            "matchExpressions": [
                                {"key": "accelerator", "operator": "NotIn", "values": ["intel-fpga", "nvidia-gpu"]},
                                {"key": "virtfleet.io/served-by", "operator": "DoesNotExist"},
                            ]
                        },
                    ]
                }
            }
        },
    }
    assert pod_admits(primary, {"kubernetes.io/os": "linux"})
    # One key with two values: no node can have both, so the pools need no affinity against each other.
    second = handler_placement(pools, pools[1])["affinity"]["nodeAffinity"]
    assert second["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"] == [
        {"matchExpressions": [kept_by("virt-handler-fpga-pool")]},
        {
            "matchExpressions": [
                {"key": "accelerator", "operator": "In", "values": ["intel-fpga"]},
                {"key": "virtfleet.io/served-by", "operator": "DoesNotExist"},
            ]
        },
    ]


def test_a_vmi_is_outdated_when_its_pool_expects_another_image() -> None:
    fleet = fleet_of(yaml.safe_load(TWO_POOLS))
    vmi: dict[str, Any] = yaml.safe_load(GPU_VM)
    assert not fleet.outdated(vmi), "nothing is known of what it runs on yet"
    vmi["status"] = {"launcherContainerImageVersion": "registry.example.com/kubevirt/virt-launcher:v1.0.0-gpu"}
    assert not fleet.outdated(vmi)
    vmi["status"] = {"launcherContainerImageVersion": DEFAULT}
    assert fleet.outdated(vmi), "the default image is wrong for a VMI of a pool"


def test_pools_by_architecture() -> None:
    kubevirt = yaml.safe_load(TWO_POOLS)
    kubevirt["spec"]["additionalVirtHandlers"] = [
        {"name": arch, "virtLauncherImage": f"launcher:{arch}", "nodeSelector": {"kubernetes.io/arch": arch}}
        for arch in ("amd64", "arm64", "s390x")
    ]
    fleet = fleet_of(kubevirt)
    for arch in ("amd64", "arm64", "s390x"):
        vmi = {"spec": {"nodeSelector": {"kubernetes.io/arch": arch}}}
        assert fleet.launcher(vmi).image == f"launcher:{arch}"
