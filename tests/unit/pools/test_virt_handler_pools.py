"""The story of the MegaSlop nodes, and what else pools matched by device and label promise."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from virtfleet.installation import Installation
from virtfleet.pools.launcher import Fleet
from virtfleet.pools.matching import explain, match
from virtfleet.pools.model import Pool, owner, pools_of
from virtfleet.pools.overlap import shared_devices
from virtfleet.pools.placement import handler_placement

from .nodes import pod_admits

DEFAULT = "registry.example.com/virt-launcher:v1.9.0"
MEGASLOP = yaml.safe_load("""
apiVersion: kubevirt.io/v1
kind: KubeVirt
metadata: {name: kubevirt, namespace: kubevirt}
spec:
  configuration:
    developerConfiguration:
      featureGates: [VirtHandlerPools]
  virtHandlerPools:
    - name: megaslop
      virtHandlerImage: registry.example.com/virt-handler:v1.9.0-megaslop
      virtLauncherImage: registry.example.com/virt-launcher:v1.9.0-megaslop
      nodeSelector: {superduper.io/model: MegaSlop-9000}
      selector:
        deviceNames: [superduper.io/MegaSlop_9000]
    - name: mshv
      virtLauncherImage: registry.example.com/virt-launcher:v1.9.0-mshv
      nodeSelector: {hypervisor.node.kubevirt.io/mshv: "true"}
      hypervisor: mshv
      selector:
        vmLabels:
          matchLabels: {kubevirt.io/hypervisor: mshv}
""")
NODES = {
    "a": {"kubernetes.io/os": "linux"},
    "b": {"kubernetes.io/os": "linux", "hypervisor.node.kubevirt.io/mshv": "true"},
    "c": {"kubernetes.io/os": "linux", "superduper.io/model": "MegaSlop-9000"},
}


def vmi(*devices: str, field: str = "hostDevices", labels: dict[str, str] | None = None, **spec: Any) -> dict[str, Any]:
    named = [{"name": f"d{i}", "deviceName": name} for i, name in enumerate(devices)]
    return {"metadata": {"labels": labels or {}}, "spec": {"domain": {"devices": {field: named}}, **spec}}


def fleet_of(kubevirt: dict[str, Any]) -> Fleet:
    images = {"imageRegistry": "registry.example.com", "imageTag": "v1.9.0"}
    return Installation({**kubevirt, "spec": {**images, **kubevirt["spec"]}}).fleet


def nodes_for(fleet: Fleet, machine: dict[str, Any]) -> list[str]:
    pod = {"affinity": fleet.affinity(machine, fleet.launcher(machine).pool)}
    return [name for name, labels in NODES.items() if pod_admits(pod, labels)]


@pytest.mark.parametrize("field", ["gpus", "hostDevices"])
def test_a_vmi_with_the_device_lands_on_node_c_with_the_pools_image(field: str) -> None:
    fleet = fleet_of(MEGASLOP)
    machine = vmi("superduper.io/MegaSlop_9000", field=field)
    assert fleet.launcher(machine).image == "registry.example.com/virt-launcher:v1.9.0-megaslop"
    assert nodes_for(fleet, machine) == ["c"]


def test_an_ordinary_vmi_uses_the_default_image_and_shares_all_nodes() -> None:
    fleet = fleet_of(MEGASLOP)
    machine = vmi()
    launcher = fleet.launcher(machine)
    assert (launcher.pool, launcher.image, launcher.hypervisor) == (None, DEFAULT, "qemu-kvm")
    assert nodes_for(fleet, machine) == ["a", "b", "c"]


def test_an_exclusive_pool_keeps_an_ordinary_vmi_off_its_nodes() -> None:
    kubevirt = {**MEGASLOP, "spec": {**MEGASLOP["spec"]}}
    kubevirt["spec"]["virtHandlerPools"] = [{**p, "exclusive": True} for p in MEGASLOP["spec"]["virtHandlerPools"]]
    fleet = fleet_of(kubevirt)
    assert nodes_for(fleet, vmi()) == ["a"]
    assert nodes_for(fleet, vmi("superduper.io/MegaSlop_9000")) == ["c"]


def test_the_mshv_story_by_label() -> None:
    fleet = fleet_of(MEGASLOP)
    machine = vmi(labels={"kubevirt.io/hypervisor": "mshv"})
    launcher = fleet.launcher(machine)
    assert (launcher.hypervisor, launcher.image) == ("mshv", "registry.example.com/virt-launcher:v1.9.0-mshv")
    assert nodes_for(fleet, machine) == ["b"]


def test_each_node_of_the_story_has_its_handler() -> None:
    pools = pools_of(MEGASLOP)
    handlers = {p.daemon_set if p else "virt-handler": handler_placement(pools, p) for p in (None, *pools)}
    served_by = {
        node: [name for name, placement in handlers.items() if pod_admits(placement, labels)]
        for node, labels in NODES.items()
    }
    assert served_by == {"a": ["virt-handler"], "b": ["virt-handler-mshv"], "c": ["virt-handler-megaslop"]}


def test_naming_another_hypervisor_than_the_pools_is_a_conflict_that_names_both() -> None:
    launcher = fleet_of(MEGASLOP).launcher(vmi(labels={"kubevirt.io/hypervisor": "mshv"}, hypervisor="xen"))
    assert "xen" in launcher.conflict and "mshv" in launcher.conflict
    same = fleet_of(MEGASLOP).launcher(vmi(labels={"kubevirt.io/hypervisor": "mshv"}, hypervisor="mshv"))
    assert same.conflict == ""


def test_the_launcher_image_is_the_pools_else_the_hypervisors_else_the_default() -> None:
    kubevirt = yaml.safe_load("""
    spec:
      configuration:
        developerConfiguration: {featureGates: [VirtHandlerPools]}
        hypervisors:
          - {name: kvm}
          - {name: xen, virtLauncherImage: "launcher:xen"}
      virtHandlerPools:
        - name: handler-only
          virtHandlerImage: handler:special
          nodeSelector: {special: "true"}
          selector: {deviceNames: [x.io/special]}
    """)
    fleet = fleet_of(kubevirt)
    assert fleet.launcher(vmi()).image == DEFAULT
    assert fleet.launcher(vmi(hypervisor="xen")).image == "launcher:xen"
    special = fleet.launcher(vmi("x.io/special"))
    assert special.pool is not None and special.image == DEFAULT, "a pool may change the handler alone"
    assert fleet.launcher(vmi("x.io/special", hypervisor="xen")).image == "launcher:xen"


@pytest.mark.parametrize(
    ("default", "hypervisor", "image"),
    [
        ("registry.example.com/virt-launcher:v1", "lxc", "registry.example.com/virt-launcher-lxc:v1"),
        ("registry.example.com/virt-launcher:v1", "mshv", "registry.example.com/virt-launcher:v1"),
        ("registry.example.com:5000/virt-launcher:v1", "lxc", "registry.example.com:5000/virt-launcher-lxc:v1"),
        ("virt-launcher", "lxc", "virt-launcher-lxc"),
        ("registry.example.com/virt-launcher@sha256:12", "qemu-kvm", "registry.example.com/virt-launcher@sha256:12"),
        ("registry.example.com/virt-launcher@sha256:12", "lxc", "registry.example.com/virt-launcher-lxc"),
    ],
)
def test_a_hypervisor_brings_its_own_image_from_the_same_place(default: str, hypervisor: str, image: str) -> None:
    assert Fleet((), default).launcher(vmi(hypervisor=hypervisor)).image == image


def pool(name: str, selector: dict[str, Any]) -> dict[str, Any]:
    return {"name": name, "virtLauncherImage": f"launcher:{name}", "nodeSelector": {"pool": name}, "selector": selector}


def pools(*entries: dict[str, Any], **more: Any) -> tuple[Pool, ...]:
    gates = ["VirtHandlerPools", "AdditionalVirtHandlers"]
    configuration = {"developerConfiguration": {"featureGates": gates}}
    return pools_of({"spec": {"configuration": configuration, "virtHandlerPools": list(entries), **more}})


@pytest.mark.parametrize(
    ("machine", "by"),
    [
        (vmi("x.io/a"), "device"),
        (vmi(labels={"team": "ai"}), "labels"),
        (vmi("x.io/other"), ""),
        (vmi(), ""),
        (vmi("x.io/a", labels={"team": "web"}), "device"),
        (vmi("x.io/other", "x.io/a"), "device"),
    ],
)
def test_device_or_label_is_enough(machine: dict[str, Any], by: str) -> None:
    asked = pools(pool("p", {"deviceNames": ["x.io/a"], "vmLabels": {"matchLabels": {"team": "ai"}}}))
    (verdict,) = explain(asked, machine)
    assert verdict.by == by
    assert (match(asked, machine) is not None) == bool(by)


def test_match_expressions_select_too() -> None:
    asked = pools(
        pool("p", {"vmLabels": {"matchExpressions": [{"key": "team", "operator": "In", "values": ["ai", "ml"]}]}})
    )
    assert match(asked, vmi(labels={"team": "ml"}))
    assert not match(asked, vmi(labels={"team": "web"}))


@pytest.mark.parametrize("selector", [{}, {"deviceNames": []}, {"deviceNames": [""]}, {"vmLabels": {}}])
def test_an_empty_selector_matches_nothing(selector: dict[str, Any]) -> None:
    assert match(pools(pool("p", selector)), vmi("", labels={"a": "b"})) is None


def test_the_first_match_wins_and_pools_by_device_are_asked_before_pools_by_node_selector() -> None:
    asked = pools(
        pool("first", {"deviceNames": ["x.io/a"]}),
        pool("second", {"deviceNames": ["x.io/a", "x.io/b"]}),
        additionalVirtHandlers=[{"name": "third", "nodeSelector": {"gpu": "true"}}],
    )
    assert [p.name for p in asked] == ["first", "second", "third"]
    machine = vmi("x.io/b", nodeSelector={"gpu": "true"})
    assert match(asked, machine) is asked[1]
    assert [v.matched for v in explain(asked, machine)] == [False, True, True]
    assert [(a.name, b.name, d) for a, b, d in shared_devices(asked)] == [("first", "second", "x.io/a")]


def test_explanations_say_what_is_missing() -> None:
    asked = pools(
        pool("p", {"deviceNames": ["x.io/a"], "vmLabels": {"matchLabels": {"team": "ai"}}}),
        additionalVirtHandlers=[{"name": "q", "nodeSelector": {"gpu": "true"}}],
    )
    first, second = explain(asked, vmi("x.io/b", nodeSelector={"gpu": "false"}))
    assert "x.io/a" in first.reason and "x.io/b" in first.reason and "team" in first.reason
    assert "gpu=true" in second.reason and "gpu=false" in second.reason


def test_a_node_belongs_to_the_first_pool_that_selects_it() -> None:
    asked = pools(
        {**pool("narrow", {"deviceNames": ["a"]}), "nodeSelector": {"gpu": "a100", "zone": "w"}},
        {**pool("wide", {"deviceNames": ["b"]}), "nodeSelector": {"gpu": "a100"}},
    )
    for labels, name in [({"gpu": "a100", "zone": "w"}, "narrow"), ({"gpu": "a100"}, "wide"), ({"zone": "w"}, None)]:
        found = owner(asked, labels)
        assert (found.name if found else None) == name
