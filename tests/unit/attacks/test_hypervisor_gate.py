"""A VM user asks for hypervisors whose launchers have power on the node, and forges what VirtFleet tells itself."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.admission.machines import cluster, edited, verdict, vmi
from virtfleet.admission.review import Requester, complete, review, review_update
from virtfleet.api import names
from virtfleet.hypervisors import registry
from virtfleet.installation import Installation
from virtfleet.pods.launcher import Unrenderable, render

POWERFUL = [name for name in registry.names() if registry.get(name).descriptor.by_leave]
HARMLESS = [name for name in registry.names() if name not in POWERFUL]
HOW = "spec.configuration.hypervisors of the KubeVirt object, or gives a pool this hypervisor"
POOL = {
    "name": "boxes",
    "hypervisor": "lxc",
    "virtHandlerImage": "h:1",
    "nodeSelector": {"boxes": "true"},
    "selector": {"vmLabels": {"matchLabels": {"kind": "box"}}},
}
TENANT = Requester("tenant")


def box(**metadata: Any) -> dict[str, Any]:
    """A VMI on LXC."""
    spec = {
        "hypervisor": "lxc",
        "domain.devices.disks": [],
        "domain.devices.filesystems": [{"name": "rootfs", "virtiofs": {}}],
        "volumes": [{"name": "rootfs", "containerDisk": {"image": "box"}}],
    }
    return edited(vmi(spec), {f"metadata.{key}": value for key, value in metadata.items()})


def with_pool() -> Installation:
    gates = {"developerConfiguration": {"featureGates": ["VirtHandlerPools"]}}
    return Installation({"spec": {"configuration": gates, "virtHandlerPools": [POOL]}})


def messages(obj: dict[str, Any], where: Installation, field: str = "spec.hypervisor") -> list[str]:
    return [cause.message for cause in verdict(obj, where).causes if cause.field == field]


def test_lxc_and_xen_are_among_the_powerful_and_qemu_is_not() -> None:
    assert {"lxc", "xen", "bhyve", "openvz", "virtuozzo"} <= set(POWERFUL)
    assert {"qemu-kvm", "mshv", "cloud-hypervisor"} <= set(HARMLESS)


@pytest.mark.parametrize("name", POWERFUL)
def test_a_powerful_hypervisor_needs_leave_and_the_refusal_says_whose(name: str) -> None:
    refused = messages(vmi({"hypervisor": name}), cluster())
    assert any(name in message and HOW in message for message in refused)
    listed = cluster(hypervisors=[{"name": "qemu-kvm"}, {"name": name}])
    assert not any(HOW in message for message in messages(vmi({"hypervisor": name}), listed))


@pytest.mark.parametrize("name", [*HARMLESS, "kvm"])
def test_the_others_need_none(name: str) -> None:
    assert not any(HOW in message for message in messages(vmi({"hypervisor": name}), cluster()))


@pytest.mark.parametrize("kind", ["VirtualMachine", "VirtualMachineInstanceReplicaSet"])
def test_templates_are_no_way_around_it(kind: str) -> None:
    template = {"metadata": {"labels": {"app": "a"}}, "spec": box()["spec"]}
    spec: dict[str, Any] = {"template": template, "selector": {"matchLabels": {"app": "a"}}}
    if kind == "VirtualMachine":
        spec = {"template": template, "runStrategy": "Always"}
    asked = {"apiVersion": "kubevirt.io/v1", "kind": kind, "metadata": {"name": "a", "namespace": "b"}, "spec": spec}
    assert any(HOW in c.message for c in review(asked, cluster(), TENANT).causes)
    assert any(HOW in c.message for c in review_update(asked, asked, cluster(), TENANT).causes)


def test_a_pool_gives_leave_to_its_own_vmis_only() -> None:
    assert messages(box(labels={"kind": "box"}), with_pool()) == []
    assert any(HOW in message for message in messages(box(), with_pool()))


def test_the_clusters_default_is_listed_by_being_it() -> None:
    plain = edited(box(), {"spec.hypervisor": ""})
    assert messages(plain, cluster(hypervisors=[{"name": "lxc"}])) == []


def test_no_pod_is_rendered_for_one_that_is_not_listed_any_more() -> None:
    listed = cluster(hypervisors=[{"name": "qemu-kvm"}, {"name": "lxc"}])
    admitted, _ = complete(edited(box(), {"metadata.uid": "00000000-0000-4000-8000-000000000000"}), listed)
    assert render(admitted, Installation(listed.kubevirt))["spec"]["securityContext"]["runAsUser"] == 0
    with pytest.raises(Unrenderable, match=r"spec\.configuration\.hypervisors"):
        render(admitted, Installation(cluster().kubevirt))


# --- what the launcher was made to run on


FORGED = {names.LAUNCHER_HYPERVISOR: "bogus"}
CONTROLLER = Requester("system:serviceaccount:kubevirt:kubevirt-controller")


def test_nobody_but_virtfleet_says_what_a_launcher_runs_on() -> None:
    forged, _ = complete(vmi({"metadata.annotations": FORGED}), cluster())
    assert "metadata.annotations" in [c.field for c in review(forged, cluster(), TENANT).causes]
    assert review(forged, cluster(), CONTROLLER).causes == []


def test_nor_changes_it_later() -> None:
    made, _ = complete(vmi({"metadata.annotations": {names.LAUNCHER_HYPERVISOR: "qemu-kvm"}}), cluster())
    for wanted in (FORGED, {}):
        changed = edited(made, {"metadata.annotations": wanted})
        assert [c.field for c in review_update(changed, made, cluster(), TENANT).causes] == ["metadata.annotations"]
        assert review_update(changed, made, cluster(), CONTROLLER).causes == []
    noted = edited(made, {"metadata.annotations": {**made["metadata"]["annotations"], "mine": "yes"}})
    assert review_update(noted, made, cluster(), TENANT).causes == []


@pytest.mark.parametrize("kind", ["VirtualMachine", "VirtualMachineInstanceReplicaSet"])
def test_templates_do_not_say_it_either(kind: str) -> None:
    template = {"metadata": {"labels": {"app": "a"}, "annotations": FORGED}, "spec": vmi({})["spec"]}
    spec: dict[str, Any] = {"template": template, "selector": {"matchLabels": {"app": "a"}}}
    if kind == "VirtualMachine":
        spec = {"template": template, "runStrategy": "Halted"}
    asked = {"apiVersion": "kubevirt.io/v1", "kind": kind, "metadata": {"name": "a", "namespace": "b"}, "spec": spec}
    fields = [c.field for c in review(asked, cluster(), TENANT).causes]
    assert fields == ["spec.template.metadata.annotations"]
