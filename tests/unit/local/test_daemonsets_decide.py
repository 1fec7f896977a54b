"""Which pods a daemon set creates and deletes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from virtfleet.local.controllers import nodes, pods
from virtfleet.local.controllers.daemonset import (
    LEAVE,
    RETRY,
    RUN,
    STAY,
    Daemon,
    by_node,
    outdated,
    pinned,
    replaceable,
    settle,
    target,
    tolerations,
    verdict,
)


def a_pod(
    name: str, node: str, *, revision: str = "new", ready: bool = True, bound: bool = True, **more: Any
) -> pods.Pod:
    obj: dict[str, Any] = {
        "metadata": {"name": name, "uid": name, "labels": {"controller-revision-hash": revision}},
        "spec": {"nodeName": node} if bound else {"affinity": pinned(None, node)},
        "status": {"phase": more.get("phase", "Running"), "conditions": [{"type": "Ready", "status": str(ready)}]},
    }
    if more.get("deleting"):
        obj["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    return pods.decode(orjson.dumps(obj))


def a_daemon(verdicts: dict[str, str], there: list[pods.Pod], *, at_once: int = 1, now: float = 1e9) -> Daemon:
    return Daemon("new", at_once, verdicts, by_node(there), now)


def settled(daemon: Daemon) -> tuple[list[str], list[str]]:
    create, delete = settle(daemon)
    return sorted(create), sorted(pod.name for pod in delete)


def replaced(daemon: Daemon) -> list[str]:
    return sorted(pod.name for pod in outdated(daemon))


def a_node(name: str, **spec: Any) -> nodes.NodeView:
    labels = spec.pop("labels", {})
    return nodes.decode(orjson.dumps({"metadata": {"name": name, "labels": labels}, "spec": spec}))


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ({}, LEAVE),
        ({"labels": {"pool": "gpu"}}, RUN),
        ({"labels": {"pool": "gpu"}, "taints": [{"key": "k", "effect": "NoSchedule"}]}, STAY),
        ({"labels": {"pool": "gpu"}, "taints": [{"key": "k", "effect": "NoExecute"}]}, LEAVE),
        ({"labels": {"pool": "gpu"}, "taints": [{"key": nodes.UNREACHABLE, "effect": "NoExecute"}]}, RUN),
        ({"labels": {"pool": "gpu"}, "taints": [{"key": nodes.UNSCHEDULABLE, "effect": "NoSchedule"}]}, RUN),
    ],
)
def test_a_daemon_follows_labels_and_taints_and_outlives_a_nodes_troubles(spec: dict[str, Any], expected: str) -> None:
    template = {"spec": {"nodeSelector": {"pool": "gpu"}, "tolerations": tolerations({})}}
    assert verdict(a_node("a", **spec), pods.template_of(template)) == expected


def test_a_pod_is_counted_for_the_node_it_is_pinned_to_before_it_is_bound() -> None:
    assert target(a_pod("x", "a", bound=False)) == "a"


def test_pinning_keeps_everything_else_of_the_affinity() -> None:
    affinity = {
        "podAntiAffinity": {"x": 1},
        "nodeAffinity": {
            "preferredDuringSchedulingIgnoredDuringExecution": [1],
            "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [{"matchExpressions": []}]},
        },
    }
    result = pinned(affinity, "a")
    assert result["podAntiAffinity"] == {"x": 1}
    assert result["nodeAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"] == [1]
    assert result["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"] == {
        "nodeSelectorTerms": [{"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["a"]}]}]
    }


def test_every_node_that_wants_one_gets_a_pod_and_the_others_lose_theirs() -> None:
    daemon = a_daemon(
        {"a": RUN, "b": RUN, "c": LEAVE, "d": STAY}, [a_pod("b1", "b"), a_pod("c1", "c"), a_pod("d1", "d")]
    )
    assert settled(daemon) == (["a"], ["c1"])


def test_no_second_pod_while_the_first_one_is_still_terminating() -> None:
    assert settled(a_daemon({"a": RUN}, [a_pod("old", "a", deleting=True)])) == ([], [])


def test_of_two_pods_on_a_node_the_older_one_stays() -> None:
    assert settled(a_daemon({"a": RUN}, [a_pod("two", "a"), a_pod("one", "a")])) == ([], ["two"])


def test_failed_and_succeeded_pods_are_deleted_the_failed_ones_only_when_they_may_be_retried() -> None:
    daemon = a_daemon({"a": RUN, "b": RUN}, [a_pod("f", "a", phase="Failed"), a_pod("s", "b", phase="Succeeded")])
    assert settled(daemon) == ([], ["f", "s"])
    assert settled(replace(daemon, now=RETRY - 1)) == ([], ["s"])


def test_unbound_pods_of_a_node_that_is_gone_are_deleted_and_bound_ones_left_to_the_nodes_end() -> None:
    assert settled(a_daemon({}, [a_pod("unbound", "gone", bound=False), a_pod("bound", "gone")])) == ([], ["unbound"])


def test_an_update_deletes_as_many_as_may_be_unavailable() -> None:
    there = [a_pod(n, n, revision="old") for n in "abcd"]
    assert replaced(a_daemon(dict.fromkeys("abcd", RUN), there, at_once=2)) == ["a", "b"]


def test_a_broken_old_pod_is_replaced_first_and_counts_as_unavailable() -> None:
    there = [a_pod("a", "a", revision="old"), a_pod("b", "b", revision="old", ready=False)]
    assert replaced(a_daemon({"a": RUN, "b": RUN}, there)) == ["b"]


def test_an_update_waits_for_the_new_pod() -> None:
    there = [a_pod("a", "a", ready=False), a_pod("b", "b", revision="old")]
    assert replaced(a_daemon({"a": RUN, "b": RUN}, there)) == []


def test_on_delete_updates_nothing_by_itself() -> None:
    assert replaceable({"updateStrategy": {"type": "OnDelete"}}, 1) == 0
    assert replaced(a_daemon({"a": RUN}, [a_pod("a", "a", revision="old")], at_once=0)) == []


def test_status_counts_what_kubectl_rollout_status_looks_at() -> None:
    there = [a_pod("a1", "a"), a_pod("b1", "b", revision="old", ready=False), a_pod("d1", "d")]
    assert a_daemon({"a": RUN, "b": RUN, "c": RUN, "d": STAY}, there).status() == {
        "desiredNumberScheduled": 3,
        "currentNumberScheduled": 2,
        "numberMisscheduled": 1,
        "numberReady": 1,
        "numberAvailable": 1,
        "numberUnavailable": 2,
        "updatedNumberScheduled": 1,
    }


@given(
    count=st.integers(1, 8),
    unavailable=st.integers(0, 3),
    broken=st.sets(st.integers(0, 7)),
)
def test_an_update_reaches_every_node_and_stays_within_its_limits(
    count: int, unavailable: int, broken: set[int]
) -> None:
    verdicts = {f"n{i}": RUN for i in range(count)}
    there = [a_pod(f"old{i}", f"n{i}", revision="old", ready=i not in broken) for i in range(count)]
    at_once = replaceable({"updateStrategy": {"rollingUpdate": {"maxUnavailable": unavailable}}}, count)
    available = sum(p.ready for p in there)
    for step in range(100):
        daemon = a_daemon(verdicts, there, at_once=at_once)
        create, delete = settle(daemon)
        delete = delete if create or delete else outdated(daemon)
        if not create and not delete:
            waiting = [p for p in there if not p.ready and p.labels["controller-revision-hash"] == "new"]
            if not waiting:
                break
            there = [a_pod(p.name, p.node) if p in waiting else p for p in there]
            continue
        there = [p for p in there if p not in delete]
        there += [a_pod(f"new-{step}-{node}", node, ready=False) for node in create]
        nodes_served = {p.node for p in there if p.ready}
        assert len(nodes_served) >= min(available, count - at_once)
    assert sorted(p.node for p in there) == sorted(verdicts)
    assert all(p.labels["controller-revision-hash"] == "new" for p in there)
