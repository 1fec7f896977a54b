"""How the state of an installation is told."""

from __future__ import annotations

import json
from typing import Any

import pytest

from virtfleet.installation import Installation
from virtfleet.kube.resource import Obj
from virtfleet.operator.conditions import Findings, status
from virtfleet.operator.handlerpods import decode_pod
from virtfleet.operator.rollout import Plan, Rollout
from virtfleet.operator.world import NodeView
from virtfleet.pods.networks import NETWORK_STATUS

from .fleets import kubevirt, pool

NOW, BEFORE = "2026-01-02T00:00:00Z", "2026-01-01T00:00:00Z"


def deployment(available: int = 2, updated: int = 2) -> Obj:
    counts = {"availableReplicas": available, "updatedReplicas": updated, "observedGeneration": 1}
    return {"metadata": {"generation": 1}, "spec": {"replicas": 2}, "status": counts}


def handlers(ready: int = 3, desired: int = 3) -> Obj:
    counts = {"numberReady": ready, "desiredNumberScheduled": desired, "observedGeneration": 1}
    return {"metadata": {"generation": 1}, "spec": {}, "status": counts}


def look(**more: Any) -> Findings:
    seen: dict[str, Any] = {
        "deployments": {"virt-api": deployment(), "virt-controller": deployment()},
        "daemon_sets": {"virt-handler": handlers()},
        "admission": True,
        "handed_over": True,
    }
    return Findings(**{**seen, **more})


def told(found: Findings, old: Obj | None = None, **spec: Any) -> tuple[Obj, dict[str, tuple[str, str]]]:
    installation = Installation({**kubevirt(**spec), **({"status": old} if old else {})})
    new = status(installation, found, NOW)
    return new, {c["type"]: (c["status"], c["reason"]) for c in new["conditions"]}


DEPLOYED = {"phase": "Deployed"}


def test_an_installation_is_deployed_once_everything_is_there() -> None:
    new, conditions = told(look())
    assert new["phase"] == "Deployed"
    assert new["observedDeploymentID"] == new["targetDeploymentID"]
    assert conditions == {
        "Available": ("True", "AllComponentsReady"),
        "Progressing": ("False", "UpToDate"),
        "Degraded": ("False", "Healthy"),
    }


def test_a_first_installation_is_not_available_before_every_handler_is() -> None:
    new, conditions = told(look(daemon_sets={"virt-handler": handlers(ready=2)}))
    assert new["phase"] == "Deploying"
    assert conditions["Available"][0] == "False"
    assert conditions["Progressing"][0] == "True"
    assert "observedKubeVirtVersion" not in new


def test_a_node_that_loses_its_handler_later_is_named_and_the_installation_is_neither_available_nor_healthy() -> None:
    nodes = [NodeView(name, {}, "") for name in "abc"]
    missing = look(
        daemon_sets={"virt-handler": handlers(ready=2)}, nodes=nodes, unserved={"b": "container x: ErrImagePull"}
    )
    new, conditions = told(missing, DEPLOYED)
    assert conditions["Available"] == ("False", "HandlersNotReady")
    assert conditions["Degraded"] == ("True", "HandlersNotReady")
    assert new["health"] == "Degraded" and new["phase"] == "Deployed"
    for condition in new["conditions"]:
        if condition["type"] in ("Available", "Degraded"):
            assert condition["message"] == "1 of 3 nodes have no ready handler: b (container x: ErrImagePull)"


def test_many_nodes_without_a_handler_are_counted_and_some_are_named() -> None:
    nodes = [NodeView(f"n{i}", {}, "") for i in range(40)]
    new, _ = told(look(nodes=nodes, unserved={f"n{i}": "gone" for i in range(30)}), DEPLOYED)
    [available] = [c for c in new["conditions"] if c["type"] == "Available"]
    assert available["message"].startswith("30 of 40 nodes") and available["message"].endswith("and 25 more")


def test_a_handler_that_is_being_replaced_is_progress_and_vms_are_served() -> None:
    rolling = Plan({"virt-handler": Rollout(1, 1, starting=1)})
    new, conditions = told(look(daemon_sets={"virt-handler": handlers(ready=2)}, plan=rolling), DEPLOYED)
    assert conditions["Available"] == ("True", "VMsAreServed")
    assert (conditions["Progressing"][0], conditions["Degraded"][0]) == ("True", "False")
    assert new["health"] == "Updating"


def test_a_rollout_that_is_stopped_is_not_said_to_go_on_or_to_be_done() -> None:
    stopped = Plan({"virt-handler": Rollout(1, 2)}, failure=("CanaryFailed", "it is stopped"))
    new, conditions = told(look(plan=stopped, handed_over=False), DEPLOYED)
    assert conditions["Degraded"] == ("True", "CanaryFailed")
    assert conditions["Progressing"] == ("False", "Stopped")
    assert conditions["Available"][0] == "True", "the old handlers serve"
    assert new["health"] == "Degraded" and "observedDeploymentID" not in new


def test_a_control_plane_that_does_not_come_up_is_told_with_its_pods_reason() -> None:
    updating = {"virt-api": deployment(available=2, updated=1), "virt-controller": deployment()}
    new, conditions = told(look(deployments=updating, held=True, trouble="virt-api-1: ErrImagePull"), DEPLOYED)
    assert conditions["Degraded"] == ("True", "ControlPlaneFailed")
    assert conditions["Available"][0] == "True" and conditions["Progressing"] == ("False", "Stopped")
    [degraded] = [c for c in new["conditions"] if c["type"] == "Degraded"]
    assert "no handler is touched: virt-api-1: ErrImagePull" in degraded["message"]


def test_handlers_wait_for_the_control_plane_and_nodes_for_their_pool() -> None:
    for found in (look(held=True), look(moving=2)):
        _, conditions = told(found, DEPLOYED)
        assert (conditions["Progressing"][0], conditions["Degraded"][0]) == ("True", "False")


def test_that_all_was_created_is_told_once_and_for_all() -> None:
    assert "Created" not in told(look())[1]
    new, conditions = told(look(created=True))
    assert conditions["Created"] == ("True", "AllResourcesCreated")
    assert told(look(error=("Refused", "no")), new)[1]["Created"][0] == "True"


def test_health_is_one_word() -> None:
    down = {"virt-api": deployment(available=0), "virt-controller": deployment()}
    assert told(look())[0]["health"] == "Healthy"
    assert told(look(daemon_sets={"virt-handler": handlers(ready=2)}))[0]["health"] == "Installing"
    assert told(look(deployments=down), DEPLOYED)[0]["health"] == "Unavailable"


def test_without_a_control_plane_it_is_not_available() -> None:
    down = {"virt-api": deployment(available=0), "virt-controller": deployment()}
    _, conditions = told(look(deployments=down), DEPLOYED)
    assert conditions["Available"][0] == "False"


def test_a_change_under_way_is_progress_and_no_degradation() -> None:
    updating = {"virt-api": deployment(available=1, updated=1), "virt-controller": deployment()}
    new, conditions = told(look(deployments=updating, handed_over=False), DEPLOYED)
    assert conditions["Progressing"][0] == "True"
    assert conditions["Degraded"][0] == "False"
    assert "observedDeploymentID" not in new


def test_an_error_is_told_and_nothing_is_said_to_go_on() -> None:
    _, conditions = told(look(error=("Refused", "no"), handed_over=False), DEPLOYED)
    assert conditions["Degraded"] == ("True", "Refused")
    assert conditions["Progressing"][0] == "False"


def test_a_condition_keeps_the_time_of_its_last_change() -> None:
    old = {
        **DEPLOYED,
        "conditions": [
            {"type": "Available", "status": "True", "lastTransitionTime": BEFORE},
            {"type": "Degraded", "status": "True", "lastTransitionTime": BEFORE},
        ],
    }
    new, _ = told(look(), old)
    times = {c["type"]: c["lastTransitionTime"] for c in new["conditions"]}
    assert times == {"Available": BEFORE, "Progressing": NOW, "Degraded": NOW}


def test_versions_may_differ_while_handlers_are_replaced_and_not_after() -> None:
    nodes = [NodeView("a", {}, "0.1.0"), NodeView("b", {"pool": "gpu"}, "0.0.9")]
    pools = {"virtHandlerPools": [pool("gpu")]}
    sets = {"virt-handler": handlers(1, 1), "virt-handler-gpu": handlers(1, 1)}
    rolling = look(nodes=nodes, daemon_sets=sets, plan=Plan({"virt-handler-gpu": Rollout(0, 1)}))
    assert told(rolling, DEPLOYED, **pools)[1]["Degraded"][0] == "False"
    done = look(nodes=nodes, daemon_sets=sets, plan=Plan({"virt-handler-gpu": Rollout(1, 0)}))
    assert told(done, DEPLOYED, **pools)[1]["Degraded"] == ("True", "HandlerVersionsDiffer")


def test_a_pool_that_earlier_ones_hide_is_told_so() -> None:
    hidden = {**pool("b"), "nodeSelector": {"pool": "a", "more": "x"}}
    new, _ = told(look(), virtHandlerPools=[pool("a"), hidden])
    reasons = {p["name"]: p["conditions"][0]["reason"] for p in new["virtHandlerPools"]}
    assert reasons == {"a": "NoNodes", "b": "Shadowed"}


def test_a_pool_whose_nodes_wait_for_it_to_be_proven_is_told_so_and_not_that_it_has_none() -> None:
    pools, nodes = {"virtHandlerPools": [pool("gpu")]}, [NodeView("a", {"pool": "gpu"}, "")]
    empty = {"virt-handler-gpu": handlers(0, 0)}
    for failure, reason in ((None, "HandlersNotReady"), (("ImageUnproven", "why"), "ImageUnproven")):
        new, _ = told(look(nodes=nodes, daemon_sets=empty, plan=Plan(failure=failure)), DEPLOYED, **pools)
        assert new["virtHandlerPools"][0]["conditions"][0]["reason"] == reason


def test_handlers_that_are_not_on_the_network_of_migrations_are_told_with_what_to_do() -> None:
    new, conditions = told(
        look(off_network=["b", "a"]), DEPLOYED, configuration={"migrations": {"network": "kubevirt/fast"}}
    )
    assert conditions["Degraded"] == ("True", "MigrationNetworkMissing")
    assert conditions["Available"][0] == "True", "VMs run all the same"
    [message] = [c["message"] for c in new["conditions"] if c["type"] == "Degraded"]
    assert "no VM migrates to a, b" in message and "kubevirt/fast" in message and "Install Multus" in message


ATTACHED = {NETWORK_STATUS: '[{"interface": "eth0"}, {"interface": "migration0", "ips": ["1.2.3.4"]}]'}
ASKED = {"k8s.v1.cni.cncf.io/networks": "kubevirt/fast@migration0"}


@pytest.mark.parametrize(
    ("said", "lacks"),
    [
        ({}, False),  # a handler of before, which is to be replaced
        (ASKED, True),
        ({**ASKED, NETWORK_STATUS: '[{"name": "cbr0", "interface": "eth0"}]'}, True),
        ({**ASKED, NETWORK_STATUS: "not what Multus writes"}, True),
        ({**ASKED, **ATTACHED}, False),
    ],
)
def test_what_multus_says_of_a_handler_is_read(said: dict[str, str], lacks: bool) -> None:
    pod = {"metadata": {"name": "h", "namespace": "kubevirt", "uid": "u", "annotations": said}}
    assert decode_pod(json.dumps(pod).encode()).lacks("kubevirt/fast") is lacks
