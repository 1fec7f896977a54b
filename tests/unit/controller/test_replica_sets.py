"""How a set of VMIs comes to its size."""

from __future__ import annotations

import pytest

from controller.objects import NOW, condition, vmi
from virtfleet.api.conditions import find
from virtfleet.api.selectors import Selector, from_label_selector, parse_label_selector
from virtfleet.controller.replicaset import as_text, plan, status_of

READY = [condition("Ready", "True")]
LOST = [condition("Ready", "False", "PodTerminating")]


def test_missing_instances_are_counted_without_those_that_end() -> None:
    owned = [
        vmi("Running", name="a"),
        vmi("Running", name="b", deleting=True),
        vmi("Succeeded", name="c"),
        vmi("Running", name="d", conditions=LOST),
    ]
    needed = plan(3, owned)
    assert needed.missing == 2
    assert needed.surplus == ()
    assert [v.name for v in needed.finished] == ["c", "d"]


def test_of_too_many_those_go_whose_loss_hurts_least() -> None:
    owned = [
        vmi("Running", name="ready", conditions=READY),
        vmi("Running", name="unready"),
        vmi("Scheduled", name="scheduled"),
        vmi("Pending", name="pending"),
    ]
    assert [v.name for v in plan(1, owned).surplus] == ["pending", "scheduled", "unready"]
    assert plan(0, owned).missing == 0


@pytest.mark.parametrize(
    ("selector", "text"),
    [
        ({"matchLabels": {"b": "2", "a": "1"}}, "a=1,b=2"),
        ({"matchExpressions": [{"key": "a", "operator": "In", "values": ["y", "x"]}]}, "a in (x,y)"),
        ({"matchExpressions": [{"key": "a", "operator": "NotIn", "values": ["x"]}]}, "a notin (x)"),
        ({"matchExpressions": [{"key": "b", "operator": "Exists"}, {"key": "a", "operator": "DoesNotExist"}]}, "!a,b"),
    ],
)
def test_the_selector_as_text_means_the_same(selector: dict[str, object], text: str) -> None:
    assert as_text(from_label_selector(selector)) == text
    again = parse_label_selector(text)
    for labels in ({}, {"a": "1", "b": "2"}, {"a": "x"}, {"a": "y", "b": ""}, {"b": "2"}):
        assert again.matches(labels) == from_label_selector(selector).matches(labels)


def test_the_status_counts_active_and_ready_instances() -> None:
    owned = [vmi("Running", conditions=READY), vmi("Pending"), vmi("Failed"), vmi("Running", deleting=True)]
    status = status_of({"spec": {"replicas": 2}}, owned, Selector(), "", NOW)
    assert (status["replicas"], status["readyReplicas"], status["conditions"]) == (2, 1, [])


def test_pauses_and_failures_are_conditions_until_they_are_over() -> None:
    paused = status_of({"spec": {"replicas": 2, "paused": True}}, [], Selector(), "no room", NOW)
    assert find(paused["conditions"], "ReplicaPaused")
    failure = find(paused["conditions"], "ReplicaFailure")
    assert failure and (failure["reason"], failure["message"]) == ("FailedCreate", "no room")
    assert status_of({"spec": {"replicas": 2}, "status": paused}, [], Selector(), "", NOW)["conditions"] == []
