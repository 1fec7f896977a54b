"""Images as volumes where every node mounts them, and in containers where one does not."""

from __future__ import annotations

from typing import Any

from pods.machines import compute, kubevirt, machine, pod, volumes
from pods.restricted import violations
from virtfleet.installation import Installation
from virtfleet.pods.target import Move, render_target

FITS = {"kubevirt.io/schedulable": "true", "kubernetes.io/arch": "amd64"}
CAN = {**FITS, "virtfleet.io/image-volumes": "true"}
CANNOT = {**FITS, "virtfleet.io/image-volumes": "false"}


def holding(made: dict[str, Any]) -> list[dict[str, Any]]:
    return [c for c in made["spec"]["initContainers"] if c["name"].startswith("container-disk-")]


def test_images_are_volumes_where_all_nodes_mount_them_and_the_pod_goes_to_no_other() -> None:
    made = pod(nodes={"a": CAN, "b": CAN})
    assert "image" in volumes(made)["root"]
    assert made["spec"]["nodeSelector"]["virtfleet.io/image-volumes"] == "true"
    assert not holding(made)


def test_containers_hold_the_images_where_a_node_does_not_mount_them_or_was_not_tried() -> None:
    for other in (CANNOT, FITS):
        made = pod(nodes={"a": CAN, "b": other})
        assert volumes(made)["root"] == {"emptyDir": {}}
        assert "virtfleet.io/image-volumes" not in made["spec"]["nodeSelector"]
        tools, holder = holding(made)
        assert tools["image"] == compute(made)["image"]
        assert (holder["image"], holder["restartPolicy"]) == ("registry.example.com/disk:v1", "Always")
        where = "/var/run/kubevirt/image-volumes/disk_0"
        assert holder["env"] == compute(made)["env"][1:] == [{"name": "VIRTFLEET_HELD_AT", "value": where}]
        assert not violations(made)


def test_an_administrator_can_do_without_image_volumes() -> None:
    off = kubevirt(configuration={"developerConfiguration": {"disabledFeatureGates": ["ImageVolume"]}})
    assert holding(pod(where=off, nodes={"a": CAN}))
    assert not holding(pod(nodes={"a": CAN}))


def test_nodes_that_the_pod_cannot_go_to_do_not_count() -> None:
    elsewhere = {**CANNOT, "kubernetes.io/arch": "arm64"}
    assert "image" in volumes(pod(nodes={"a": CAN, "b": elsewhere}))["root"]
    assert volumes(pod(nodes={"b": elsewhere}))["root"] == {"emptyDir": {}}  # none fits: what works everywhere
    affinity = {"matchExpressions": [{"key": "zone", "operator": "In", "values": ["a"]}]}
    asked = {
        "affinity.nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [affinity]}}
    }
    assert "image" in volumes(pod(asked, nodes={"a": {**CAN, "zone": "a"}, "b": {**CANNOT, "zone": "b"}}))["root"]


def test_a_kernel_in_an_image_is_held_too_and_a_pod_without_images_holds_nothing() -> None:
    kernel = {"image": "registry.example.com/kernel:1", "kernelPath": "/vmlinuz"}
    made = pod({"domain.firmware": {"kernelBoot": {"container": kernel}}}, nodes={"b": CANNOT})
    assert [c["name"] for c in holding(made)] == [
        "container-disk-binary",
        "container-disk-kernel-boot",
        "container-disk-disk-0",
    ]
    claim = {"volumes[0]": {"name": "root", "persistentVolumeClaim": {"claimName": "c"}}}
    assert not holding(pod(claim, nodes={"b": CANNOT}))


def test_the_target_of_a_migration_takes_the_holder_from_the_image_that_the_source_runs() -> None:
    move = Move("m", "uid-of-m", "registry.example.com/virt-launcher:old", {}, {})
    made = render_target(machine(), Installation(kubevirt()), move, nodes={"b": CANNOT})
    assert made["spec"]["initContainers"][0]["image"] == compute(made)["image"] == move.image
    assert made["spec"]["initContainers"][1]["image"] == "registry.example.com/disk:v1"
