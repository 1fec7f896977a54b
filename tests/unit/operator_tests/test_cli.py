"""The commands that explain pools without a cluster, on the seeds' own story."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result

from virtfleet import __version__
from virtfleet.cli.look.fleetview import FleetView
from virtfleet.cli.look.poolreport import report
from virtfleet.cli.main import main
from virtfleet.reasons.fitting import obstacles

from .fleets import kubevirt, pool

KUBEVIRT = kubevirt(
    virtHandlerPools=[
        {
            "name": "megaslop",
            "virtHandlerImage": "registry.example.com/virt-handler:v1.9.0-megaslop",
            "virtLauncherImage": "registry.example.com/virt-launcher:v1.9.0-megaslop",
            "nodeSelector": {"superduper.io/megaslop": "true"},
            "selector": {"deviceNames": ["superduper.io/MegaSlop_9000"]},
        }
    ]
)
NODES = """
nodes:
- name: node-a
- name: node-b
  taints: [{key: dedicated, value: gpu, effect: NoSchedule}]
- name: node-c
  labels: {superduper.io/megaslop: "true"}
  devices: {superduper.io/MegaSlop_9000: 2}
"""


def vmi(*devices: str, **spec: Any) -> dict[str, Any]:
    domain = {
        "memory": {"guest": "128Mi"},
        "devices": {
            "disks": [{"name": "root", "disk": {"bus": "virtio"}}],
            "hostDevices": [{"name": f"d{i}", "deviceName": name} for i, name in enumerate(devices)],
        },
    }
    volumes = [{"name": "root", "containerDisk": {"image": "registry.example.com/disk:1"}}]
    return {
        "apiVersion": "kubevirt.io/v1",
        "kind": "VirtualMachineInstance",
        "metadata": {"name": "vm", "namespace": "default"},
        "spec": {"domain": domain, "volumes": volumes, **spec},
    }


@pytest.fixture
def files(tmp_path: Path) -> Path:
    (tmp_path / "kv.yaml").write_text(yaml.safe_dump(KUBEVIRT))
    (tmp_path / "nodes.yaml").write_text(NODES)
    (tmp_path / "slop.yaml").write_text(yaml.safe_dump(vmi("superduper.io/MegaSlop_9000")))
    (tmp_path / "plain.yaml").write_text(yaml.safe_dump(vmi()))
    return tmp_path


def run(*arguments: object, code: int = 0) -> Result:
    result = CliRunner().invoke(main, [str(a) for a in arguments])
    assert result.exit_code == code, result.output
    return result


def explained(files: Path, machine: str) -> dict[str, Any]:
    kv, nodes = files / "kv.yaml", files / "nodes.yaml"
    text = run("explain", "-f", files / machine, "--kubevirt", kv, "--nodes", nodes, "-o", "json").stdout
    found: dict[str, Any] = json.loads(text)
    return found


def test_a_vm_with_the_device_is_explained_to_node_c(files: Path) -> None:
    found = explained(files, "slop.yaml")
    assert (found["pool"], found["image"]) == ("megaslop", "registry.example.com/virt-launcher:v1.9.0-megaslop")
    assert {n["name"]: (n["handler"], n["fits"]) for n in found["nodes"]} == {
        "node-a": ("virt-handler", False),
        "node-b": ("virt-handler", False),
        "node-c": ("virt-handler-megaslop", True),
    }
    assert any("superduper.io/megaslop In [true]" in why for why in found["nodes"][0]["why"])
    assert "taint dedicated:NoSchedule is not tolerated" in found["nodes"][1]["why"]


def test_an_ordinary_vm_is_explained_to_the_default_image_and_why_no_pool_matched(files: Path) -> None:
    found = explained(files, "plain.yaml")
    assert (found["pool"], found["image"]) == (None, f"virtfleet/virt-launcher:{__version__}")
    assert "the VMI asks for no device" in found["pools"][0]["reason"]
    assert [n["name"] for n in found["nodes"] if n["fits"]] == ["node-a", "node-c"]
    text = run("explain", "-f", files / "plain.yaml", "--kubevirt", files / "kv.yaml").stdout
    assert "none: no pool matches" in text and "NODE" not in text


def test_a_vm_that_cannot_start_is_explained_too(files: Path) -> None:
    (files / "kv.yaml").write_text(yaml.safe_dump(kubevirt(virtHandlerPools=[pool("gpu", hypervisor="mshv")])))
    (files / "vm.yaml").write_text(yaml.safe_dump(vmi("superduper.io/gpu", hypervisor="qemu-kvm")))
    text = run("explain", "-f", files / "vm.yaml", "--kubevirt", files / "kv.yaml").stdout
    assert "It cannot start" in text and "mshv" in text


def test_render_pod_prints_the_launcher_pod_with_the_pools_image(files: Path) -> None:
    pod = yaml.safe_load(run("render", "pod", "-f", files / "slop.yaml", "--kubevirt", files / "kv.yaml").stdout)
    assert pod["kind"] == "Pod"
    assert pod["spec"]["containers"][0]["image"].endswith("megaslop")
    assert pod["metadata"]["annotations"]["kubevirt.io/handler-pool"] == "megaslop"


@pytest.mark.slow
def test_render_operator_prints_every_object(files: Path) -> None:
    text = run("render", "operator", "--kubevirt", files / "kv.yaml").stdout
    found = [(obj["kind"], obj["metadata"]["name"]) for obj in yaml.safe_load_all(text)]
    assert ("DaemonSet", "virt-handler-megaslop") in found
    assert ("Deployment", "virt-api") in found
    assert "&id" not in text


def test_pools_are_listed_with_their_nodes_and_problems(files: Path) -> None:
    twice = kubevirt(virtHandlerPools=[pool("a"), {**pool("b"), "nodeSelector": {"zone": "x"}}])
    (files / "kv.yaml").write_text(yaml.safe_dump(twice))
    text = run("pools", "--kubevirt", files / "kv.yaml", "--nodes", files / "nodes.yaml").stdout
    assert [line.split()[0] for line in text.splitlines()[:4]] == ["POOL", "a", "b", "(primary)"]
    overlap = "pools a and b overlap: a node with pool=a, zone=x belongs to a"
    assert "!" not in text, "no node is in both"
    options = ("--kubevirt", files / "kv.yaml", "--nodes", files / "nodes.yaml")
    assert f"  {overlap}\n" in run("pools", *options, "-o", "wide").stdout
    assert f"! {overlap}" in run("pools", "--kubevirt", files / "kv.yaml").stdout
    (files / "nodes.yaml").write_text("nodes: [{name: n, labels: {pool: a, zone: x}}]")
    assert f"! {overlap}, as n does" in run("pools", *options).stdout


def handler(name: str, node: str, pool_name: str = "", failing: str = "") -> dict[str, Any]:
    labels = {"kubevirt.io": "virt-handler", **({"kubevirt.io/handler-pool": pool_name} if pool_name else {})}
    state = {"waiting": {"reason": failing, "message": "not found"}} if failing else {"running": {}}
    return {
        "metadata": {"name": name, "labels": labels},
        "spec": {"nodeName": node},
        "status": {
            "conditions": [{"type": "Ready", "status": str(not failing)}],
            "containerStatuses": [{"name": "virt-handler", "state": state}],
        },
    }


def test_the_report_of_a_live_fleet_finds_nodes_without_and_with_two_handlers_and_failing_pulls() -> None:
    nodes = [
        {"metadata": {"name": "a", "annotations": {"virtfleet.io/handler-version": __version__}}},
        {"metadata": {"name": "b"}},
        {"metadata": {"name": "c", "labels": {"superduper.io/megaslop": "true"}}},
    ]
    pods = [handler("h1", "a"), handler("h2", "a"), handler("h3", "c", "megaslop", "ImagePullBackOff")]
    running = {
        **vmi("superduper.io/MegaSlop_9000"),
        "status": {"phase": "Running", "launcherContainerImageVersion": "x"},
    }
    found = report(FleetView(KUBEVIRT, nodes, pods, [running], live=True))
    megaslop, primary = found["pools"]
    assert (megaslop["nodes"], megaslop["readyHandlers"], megaslop["vmis"], megaslop["outdatedVMIs"]) == (
        ["c"],
        0,
        1,
        1,
    )
    assert (primary["nodes"], primary["versions"]) == (["a", "b"], [__version__])
    assert found["problems"] == [
        "node a has 2 handlers: h1, h2",
        "node b has no handler: VMs cannot run there",
        "container virt-handler of h3 on c: ImagePullBackOff: not found",
    ]


def test_pools_and_nodes_that_can_run_nothing_are_marked_and_outdated_vms_are_named() -> None:
    dead = {"metadata": {"name": "a"}, "status": {"conditions": [{"type": "Ready", "status": "Unknown"}]}}
    found = report(FleetView(KUBEVIRT, [dead], [handler("h", "a")], live=True))
    assert found["problems"] == ["pool megaslop has no node: its VMs cannot start", "node a is not ready"]


def test_a_node_is_ruled_out_by_its_cordon_and_by_where_a_volume_is() -> None:
    requirement = {"key": "kubernetes.io/hostname", "operator": "In", "values": ["b"]}
    bound = {"spec": {"nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [requirement]}]}}}}
    claim = {"name": "d", "persistentVolumeClaim": {"claimName": "disk"}}
    pod = {
        "metadata": {"namespace": "n"},
        "spec": {"nodeSelector": {}, "volumes": [claim], "containers": [{"resources": {}}]},
    }
    taint = {"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}
    nodes = {name: {"metadata": {"name": name, "labels": {"kubernetes.io/hostname": name}}} for name in "ab"}
    nodes["b"]["spec"] = {"unschedulable": True, "taints": [taint]}
    why = {name: obstacles(pod, node, {("n", "disk"): bound}, live=True) for name, node in nodes.items()}
    assert why == {
        "a": ["the volume of claim disk is elsewhere: kubernetes.io/hostname In [b]"],
        "b": ["the node is cordoned (kubectl uncordon b)"],
    }
    assert obstacles(pod, nodes["a"], {("other", "disk"): bound}, live=True) == []


AIE = """
rules:
- name: GPU Nodes
  image: registry.example.com/virt-launcher:gpu
  selector: {deviceNames: [nvidia.com/A100]}
  nodeSelector: {matchLabels: {gpu: "true"}}
- name: secure
  image: registry.example.com/virt-launcher:secure
  selector: {vmLabels: {matchLabels: {tier: secure}}}
"""


def config_map(config: str) -> str:
    meta = {"name": "kubevirt-aie-launcher-config"}
    return str(
        yaml.safe_dump({"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta, "data": {"config.yaml": config}})
    )


def test_rules_of_the_aie_webhook_become_pools_once_their_nodes_are_known(tmp_path: Path) -> None:
    file = tmp_path / "cm.yaml"
    file.write_text(
        yaml.safe_dump(
            {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c"}, "data": {"config.yaml": AIE}}
        )
    )
    refused = run("pools", "import-aie", file, code=1)
    assert "rule 'secure' names no nodes" in refused.output
    assert "--node-selector 'secure:KEY=VALUE'" in refused.output
    text = run("pools", "import-aie", file, "--node-selector", "secure:enclave=true").stdout
    assert yaml.safe_load(text)["spec"]["virtHandlerPools"] == [
        {
            "name": "gpu-nodes",
            "virtLauncherImage": "registry.example.com/virt-launcher:gpu",
            "nodeSelector": {"gpu": "true"},
            "selector": {"deviceNames": ["nvidia.com/A100"]},
        },
        {
            "name": "secure",
            "virtLauncherImage": "registry.example.com/virt-launcher:secure",
            "nodeSelector": {"enclave": "true"},
            "selector": {"vmLabels": {"matchLabels": {"tier": "secure"}}},
        },
    ]


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ("rules: [", "cannot be read"),
        ("rules: {}", "no list of rules"),
        ("rules:\n- {name: x, image: i, nodeSelector: {matchLabels: {a: b}}}", "selector"),
    ],
)
def test_rules_that_cannot_become_pools_are_refused_with_a_reason(tmp_path: Path, config: str, message: str) -> None:
    file = tmp_path / "cm.yaml"
    file.write_text(config_map(config))
    assert message in run("pools", "import-aie", file, code=1).output


def test_explain_wants_exactly_one_way_to_find_the_vmi() -> None:
    assert "say which VMI" in run("explain", code=1).output
