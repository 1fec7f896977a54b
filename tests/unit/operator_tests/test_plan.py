"""`virtfleet pools --plan` says what a change of the KubeVirt object moves, restarts, stops or leaves."""

from __future__ import annotations

from typing import Any

import pytest
from click.testing import CliRunner

from virtfleet import __version__
from virtfleet.cli.look import pools as command
from virtfleet.cli.look.fleetview import FleetView
from virtfleet.cli.look.plan import plan
from virtfleet.cli.look.poolreport import report
from virtfleet.cli.main import main

from .fleets import kubevirt, pool

OLD = f"virtfleet/virt-launcher:{__version__}"
NODES = [
    {"metadata": {"name": "a", "labels": {"kubernetes.io/os": "linux"}}},
    {"metadata": {"name": "b", "labels": {"kubernetes.io/os": "linux", "pool": "gold"}}},
]


def vmi(name: str, *, movable: bool = True, owner: str = "VirtualMachine", **labels: str) -> dict[str, Any]:
    condition = {"type": "LiveMigratable", "status": str(movable), "message": "a disk is local"}
    owners = [{"kind": owner, "name": name, "controller": True}] if owner else []
    return {
        "metadata": {"name": name, "namespace": "default", "labels": labels, "ownerReferences": owners},
        "spec": {"domain": {}},
        "status": {
            "phase": "Running",
            "nodeName": "a",
            "launcherContainerImageVersion": OLD,
            "conditions": [condition],
        },
    }


def vm(name: str, strategy: str = "Always") -> dict[str, Any]:
    return {"metadata": {"name": name, "namespace": "default"}, "spec": {"runStrategy": strategy}}


def planned(wanted: dict[str, Any], *vmis: dict[str, Any], now: dict[str, Any] | None = None) -> dict[str, Any]:
    machines = [*(vm(each["metadata"]["name"]) for each in vmis), vm("manual", "Manual")]
    return plan(FleetView(now or kubevirt(), NODES, instances=[*vmis], live=True), wanted, machines)


def does(found: dict[str, Any]) -> dict[str, str]:
    return {each["name"]: each["does"] for each in found["vms"]}


def test_a_new_tag_replaces_handlers_and_moves_no_vm_without_a_strategy() -> None:
    """upstream-defects: a preview says what an upgrade would move or restart (#11679, harvester#9656)."""
    found = planned(kubevirt(imageTag="new"), vmi("one"), vmi("two"))
    assert does(found) == {"one": "stays", "two": "stays"}
    assert [each["node"] for each in found["handlers"]] == ["a", "b"]
    assert planned(kubevirt(), vmi("one")) == {
        "refused": [],
        "handlers": [],
        "vms": [],
        "counts": {"up to date": 1},
    }


def test_every_vm_is_told_what_it_does_and_why() -> None:
    methods = {"workloadUpdateStrategy": {"workloadUpdateMethods": ["LiveMigrate", "Evict"]}}
    found = planned(
        kubevirt(imageTag="new", **methods),
        vmi("manual", movable=False),
        vmi("rooted", movable=False),
        vmi("lonely", movable=False, owner=""),
        vmi("replica", movable=False, owner="VirtualMachineInstanceReplicaSet"),
        vmi("mobile"),
    )
    assert does(found) == {
        "mobile": "moves",
        "replica": "restarts",
        "rooted": "restarts",
        "lonely": "stops",
        "manual": "stops",
    }
    assert found["vms"][0]["name"] == "mobile"
    told = {each["name"]: each["why"] for each in found["vms"]}
    assert "belongs to no VM" in told["lonely"]
    assert "a disk is local" in told["rooted"]
    assert found["counts"] == {"moves": 1, "restarts": 2, "stops": 2, "up to date": 0}


def test_a_pools_change_touches_its_vms_and_its_nodes_alone() -> None:
    gold = pool("gold", selector={"vmLabels": {"matchLabels": {"ring": "gold"}}})
    own = {"workloadUpdateStrategy": {"workloadUpdateMethods": ["LiveMigrate"]}}
    found = planned(kubevirt(virtHandlerPools=[{**gold, **own}]), vmi("plain"), vmi("golden", ring="gold"))
    assert does(found) == {"golden": "moves"}
    assert found["vms"][0]["pool"] == "gold"
    assert found["handlers"] == [{"node": "b", "from": "virt-handler", "to": "virt-handler-gold"}]


def test_what_would_be_refused_is_said_to_be() -> None:
    gold = pool("gold", selector={"vmLabels": {"matchLabels": {"ring": "gold"}}})
    now = kubevirt(virtHandlerPools=[gold])
    [why] = planned(kubevirt(), vmi("golden", ring="gold"), now=now)["refused"]
    assert "cannot remove pool gold: 1 VMIs belong to it (default/golden)" in why


def test_the_command_prints_the_plan_and_fails_where_it_would_be_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    view = FleetView(kubevirt(), NODES, instances=[vmi("one")], live=True)
    monkeypatch.setattr(command, "look", lambda **_: view)
    monkeypatch.setattr("virtfleet.cli.reach.with_cluster", lambda *_: [vm("one")])
    file = tmp_path / "kv.yaml"
    file.write_text("kind: KubeVirt\napiVersion: kubevirt.io/v1\nmetadata: {name: kubevirt}\nspec: {imageTag: new}\n")
    result = CliRunner().invoke(main, ["pools", "--plan", "-f", str(file)])
    assert result.exit_code == 0, result.output
    assert "node a gets a new handler (virt-handler -> virt-handler)" in result.output
    assert "default/one" in result.output and "VMs: 1 stays, 0 up to date" in result.output
    file.write_text("kind: KubeVirt\napiVersion: kubevirt.io/v1\nspec: {infra: {replicas: 0}}\n")
    result = CliRunner().invoke(main, ["pools", "--plan", "-f", str(file), "-o", "json"])
    assert (result.exit_code, "can't be 0" in result.output) == (1, True)
    assert "--plan and -f go together" in CliRunner().invoke(main, ["pools", "--plan"]).output


def test_the_names_of_outdated_vms_are_in_the_report_of_their_pool() -> None:
    [primary] = report(FleetView(kubevirt(imageTag="new"), NODES, instances=[vmi("one")], live=True))["pools"]
    assert (primary["outdatedVMIs"], primary["outdated"]) == (1, ["default/one"])
