"""What counts as ready, object by object."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from virtfleet.cli import installing
from virtfleet.cli.home import readiness
from virtfleet.kube.errors import ApiError
from virtfleet.local.directory import Settings


def pod(name: str, ready: str = "True", phase: str = "Running", owner: str = "", **meta: Any) -> dict[str, Any]:
    owners = {"ownerReferences": [{"uid": owner}]} if owner else {}
    status = {"phase": phase, "conditions": [{"type": "Ready", "status": ready}]}
    return {"metadata": {"name": name, **owners, **meta}, "status": status}


def kubevirt(observed: int, **conditions: str) -> dict[str, Any]:
    listed = [{"type": kind, "status": status, "message": f"{kind}!"} for kind, status in conditions.items()]
    return {"metadata": {"generation": 2}, "status": {"observedGeneration": observed, "conditions": listed}}


def test_a_component_counts_when_it_is_ready_and_stays() -> None:
    assert installing.why_components_unready([pod("a"), pod("b", "False", "Succeeded")]) is None
    assert installing.why_components_unready([]) == "virt-operator starts"
    probe = pod("p", "False")
    probe["metadata"]["labels"] = {"kubevirt.io": "virt-image-volume-probe"}
    assert installing.why_components_unready([pod("a"), probe]) is None
    going = pod("c", deletionTimestamp="2026-01-01T00:00:00Z")
    assert installing.why_components_unready([pod("a"), pod("b", "False"), going]) == "not ready yet: b, c"


def test_what_the_operator_says_counts_for_the_object_as_it_is_now() -> None:
    assert installing.why_unavailable(kubevirt(2, Available="True", Progressing="False")) is None
    assert installing.why_unavailable(kubevirt(1, Available="True")) == "virt-operator starts"
    assert installing.why_unavailable(kubevirt(2, Available="True", Progressing="True")) == "Progressing!"
    assert installing.why_unavailable(kubevirt(2, Available="False", Degraded="True")) == "Degraded!"
    assert installing.why_unavailable({"metadata": {"generation": 1}}) == "virt-operator starts"


def test_a_vmi_of_before_a_down_is_not_taken_for_a_running_one() -> None:
    vmis = [
        {"metadata": {"namespace": "d", "name": name, "uid": name}, "status": {"phase": phase}}
        for name, phase in (("alive", "Running"), ("dead", "Running"), ("ended", "Failed"), ("new", "Pending"))
    ]
    pods = [pod("1", owner="alive"), pod("2", phase="Failed", owner="dead")]
    assert readiness.why_stale(vmis, pods) == "not looked at yet: VMI d/dead"
    assert readiness.why_stale(vmis[:1], pods) is None


@pytest.mark.parametrize(
    ("reason", "said"),
    [
        ("Timeout", "the API server does not answer: no"),
        ("ServiceUnavailable", "the API server does not answer: no"),
        ("Forbidden", "the API server refuses what is asked: no"),
    ],
)
def test_silence_is_not_told_as_a_refusal(
    reason: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise ApiError(reason, "no")

    monkeypatch.setattr(readiness, "why_api_unready", lambda _: None)
    monkeypatch.setattr(readiness, "ask", fail)
    settings = Settings("c", 1, "10.0.0.0/16", "10.1.0.0/16", [])
    child = {"name": readiness.CONTROL_PLANE, "running": True, "ending": False, "reason": ""}
    assert readiness.why_unready(tmp_path, settings, [child]) == said
