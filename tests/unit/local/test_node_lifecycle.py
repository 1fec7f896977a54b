"""What a node does next with a pod's containers, and what it tells of them."""

from __future__ import annotations

from typing import Any

import pytest

from virtfleet.local.apiserver.kinds.pod_spec import qos_class
from virtfleet.local.node import cgroups, lifecycle, podstatus
from virtfleet.local.node.containers import Container
from virtfleet.local.node.lifecycle import LONG_RUN, Seen, Why, next_backoff, plan, restart_at, unserved
from virtfleet.local.node.podstatus import PodFacts, is_part_of

NOW = 1_000_000.0


def pod(*containers: str, init: tuple[str, ...] = (), policy: str = "Always", **spec: Any) -> dict[str, Any]:
    inits = [{"name": name, "image": "i"} for name in init]
    named = [{"name": name, "image": "i"} for name in containers]
    return {
        "metadata": {"name": "p", "namespace": "n", "uid": "u"},
        "spec": {"containers": named, "initContainers": inits, "restartPolicy": policy, **spec},
    }


def running(**fields: Any) -> Seen:
    run = Container(id="r", pod="u", name="c", version="i", image="i", started=NOW - 5)
    return Seen(run=run, started=True, ready=True, **fields)


def ended(code: int = 0, *, ago: float = 0, backoff: float = 0, lasted: float = 5, attempt: int = 0) -> Seen:
    finished = NOW - ago
    run = Container(
        id="e", pod="u", name="c", version="i", started=finished - lasted, finished=finished, exit_code=code,
        backoff=backoff, attempt=attempt,
    )  # fmt: skip
    return Seen(run=run)


def test_init_containers_go_one_after_the_other_then_all_the_others_at_once() -> None:
    whole = pod("a", "b", init=("i1", "i2"))
    seen = dict.fromkeys(("a", "b", "i1", "i2"), Seen())
    assert plan(whole, seen, NOW).start == ["i1"]
    assert plan(whole, seen | {"i1": running()}, NOW).start == []
    assert plan(whole, seen | {"i1": ended()}, NOW).start == ["i2"]
    assert plan(whole, seen | {"i1": ended(), "i2": ended()}, NOW).start == ["a", "b"]


@pytest.mark.parametrize(
    ("policy", "code", "again"),
    [("Always", 0, True), ("Always", 1, True), ("OnFailure", 0, False), ("OnFailure", 1, True), ("Never", 1, False)],
)
def test_the_restart_policy_says_who_runs_again(policy: str, code: int, again: bool) -> None:
    result = plan(pod("a", policy=policy), {"a": ended(code)}, NOW)
    assert (result.start == ["a"], result.done) == (again, not again)


def test_a_failed_init_container_fails_the_pod_that_never_restarts_and_is_tried_again_in_others() -> None:
    seen = {"a": Seen(), "i": ended(1)}
    assert plan(pod("a", init=("i",), policy="Never"), seen, NOW).done
    assert plan(pod("a", init=("i",)), seen, NOW).start == ["i"]


def accompanied(*order: str, policy: str = "Never") -> dict[str, Any]:
    """A pod with the init containers in this order, those with an s in front being sidecars, and one that is not."""
    whole = pod("a", init=order, policy=policy)
    for container in whole["spec"]["initContainers"]:
        container |= {"restartPolicy": "Always"} if container["name"].startswith("s") else {}
    return whole


def test_a_sidecar_holds_others_up_only_until_it_has_started() -> None:
    whole, none = accompanied("s1", "i", "s2"), dict.fromkeys(("s1", "i", "s2", "a"), Seen())
    assert plan(whole, none, NOW).start == ["s1"]
    starting = Seen(run=running().run)  # its startup probe has not passed
    assert plan(whole, none | {"s1": starting}, NOW).start == []
    assert plan(whole, none | {"s1": running()}, NOW).start == ["i"]
    assert plan(whole, none | {"s1": running(), "i": ended()}, NOW).start == ["s2"]
    assert plan(whole, none | {"s1": running(), "i": ended(), "s2": starting}, NOW).start == []
    assert plan(whole, none | {"s1": running(), "i": ended(), "s2": running()}, NOW).start == ["a"]


def test_a_sidecar_is_run_again_whenever_it_ends_and_whatever_the_policy_and_fails_no_pod() -> None:
    whole, rest = accompanied("s1", "i", "s2"), {"i": ended(), "s2": running(), "a": running()}
    for code in (0, 1):
        again = plan(whole, {"s1": ended(code), **rest}, NOW)
        assert (again.start, again.done) == (["s1"], False)
    assert plan(whole, {"s1": ended(1, ago=9, backoff=10), **rest}, NOW).paused == {"s1": NOW + 1}
    assert plan(whole, {"s1": running(unhealthy="ill"), **rest}, NOW).kill == {"s1": "ill"}
    first = plan(whole, {"s1": ended(1), "i": Seen(), "s2": Seen(), "a": Seen()}, NOW)
    assert (first.start, first.done) == (["s1"], False)
    # What has begun after it does not wait for it again.
    assert plan(whole, {"s1": ended(1), "i": ended(), "s2": Seen(), "a": Seen()}, NOW).start == ["s1", "s2"]


def test_a_pod_is_over_with_its_ordinary_containers_or_a_failed_init_container() -> None:
    whole = accompanied("s1", "i")
    assert plan(whole, {"s1": running(), "i": ended(), "a": ended(3)}, NOW).done
    assert plan(whole, {"s1": ended(1, backoff=10), "i": ended(), "a": ended()}, NOW).done
    assert plan(whole, {"s1": running(), "i": ended(1), "a": Seen()}, NOW).done
    assert not plan(accompanied("s1", policy="Always"), {"s1": running(), "a": ended()}, NOW).done


def test_pauses_double_from_ten_seconds_to_five_minutes_and_end_with_a_long_run() -> None:
    pauses, run = [], None
    for _ in range(8):
        pause = next_backoff(run)
        pauses.append(pause)
        run = ended(1, backoff=pause).run
    assert pauses == [0, 10, 20, 40, 80, 160, 300, 300]
    assert plan(pod("a"), {"a": ended(1, ago=9, backoff=10)}, NOW).paused == {"a": NOW + 1}
    assert plan(pod("a"), {"a": ended(1, ago=11, backoff=10)}, NOW).start == ["a"]
    long = ended(1, backoff=300, lasted=LONG_RUN).run
    assert long and restart_at(long) == NOW and next_backoff(long) == 10


def test_a_clock_that_was_set_back_makes_nobody_wait_for_hours() -> None:
    assert plan(pod("a"), {"a": ended(1, ago=-3600, backoff=10)}, NOW).start == ["a"]


def test_an_unhealthy_or_changed_container_is_ended() -> None:
    assert plan(pod("a"), {"a": running(unhealthy="failed liveness probe")}, NOW).kill == {"a": "failed liveness probe"}
    whole = pod("a")
    whole["spec"]["containers"][0]["image"] = "other"
    assert "definition changed" in lifecycle.plan(whole, {"a": running()}, NOW).kill["a"]


HERE = PodFacts(host_ips=("10.0.0.1",), addresses=("10.1.0.2",), sandboxed=True)


def status(whole: dict[str, Any], seen: dict[str, Seen], facts: PodFacts = HERE) -> dict[str, Any]:
    return podstatus.status(whole, seen, facts, NOW)


def condition(told: dict[str, Any], kind: str) -> dict[str, Any]:
    return next(c for c in told["conditions"] if c["type"] == kind)


@pytest.mark.parametrize(
    ("policy", "seen", "phase"),
    [
        ("Always", {"a": Seen(), "b": Seen()}, "Pending"),
        ("Always", {"a": running(), "b": Seen()}, "Pending"),
        ("Always", {"a": running(), "b": running()}, "Running"),
        ("Always", {"a": ended(1), "b": ended(0)}, "Running"),
        ("OnFailure", {"a": ended(1), "b": ended(0)}, "Running"),
        ("OnFailure", {"a": ended(0), "b": ended(0)}, "Succeeded"),
        ("Never", {"a": ended(0), "b": running()}, "Running"),
        ("Never", {"a": ended(0), "b": ended(3)}, "Failed"),
        ("Never", {"a": ended(0), "b": ended(0)}, "Succeeded"),
    ],
)
def test_the_phase_follows_from_the_containers_and_the_policy(policy: str, seen: Any, phase: str) -> None:
    assert status(pod("a", "b", policy=policy), seen)["phase"] == phase


def test_before_init_containers_are_done_the_others_wait_with_that_reason() -> None:
    told = status(pod("a", init=("i",)), {"a": Seen(), "i": running()})
    assert told["containerStatuses"][0]["state"] == {"waiting": {"reason": "PodInitializing"}}
    assert condition(told, "Initialized")["reason"] == "ContainersNotInitialized"
    assert condition(told, "Initialized")["message"] == "containers with incomplete status: [i]"


def test_sidecars_are_shown_among_the_init_containers_and_count_for_readiness() -> None:
    whole = accompanied("s1", "i")
    early = status(whole, {"s1": Seen(run=running().run), "i": Seen(), "a": Seen()})
    assert condition(early, "Initialized")["message"] == "containers with incomplete status: [s1 i]"
    later = status(whole, {"s1": running(), "i": running(), "a": Seen()})
    assert condition(later, "Initialized")["message"] == "containers with incomplete status: [i]"
    [sidecar, _] = later["initContainerStatuses"]
    assert (sidecar["ready"], sidecar["started"], list(sidecar["state"])) == (True, True, ["running"])
    up = {"s1": running(), "i": ended(), "a": running()}
    assert condition(status(whole, up), "Ready")["status"] == "True"
    down = status(whole, up | {"s1": ended(1)})
    assert condition(down, "Ready")["message"] == "containers with unready status: [s1]"
    assert condition(down, "Initialized")["status"] == "True" and down["phase"] == "Running"


@pytest.mark.parametrize(
    ("sidecar", "over", "phase"),
    [(running(), False, "Running"), (ended(137), True, "Succeeded"), (ended(137), False, "Succeeded")],
)
def test_a_pod_is_not_over_while_a_sidecar_runs_and_how_that_ends_is_all_the_same(
    sidecar: Seen, over: bool, phase: str
) -> None:
    facts = PodFacts(("h",), over=over)
    assert status(accompanied("s1"), {"s1": sidecar, "a": ended(0)}, facts)["phase"] == phase


def test_a_failed_init_container_fails_the_pod_when_the_sidecars_have_ended() -> None:
    whole, failed = accompanied("s1", "i"), {"i": ended(1), "a": Seen()}
    assert status(whole, {"s1": running(), **failed})["phase"] == "Pending"
    assert status(whole, {"s1": ended(), **failed}, PodFacts(("h",), over=True))["phase"] == "Failed"


def test_a_container_in_back_off_shows_why_and_what_was_before() -> None:
    seen = Seen(run=ended(1, attempt=2).run, waiting=Why("CrashLoopBackOff", "back-off 20s"))
    told = status(pod("a"), {"a": seen})["containerStatuses"][0]
    assert told["state"] == {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 20s"}}
    assert told["lastState"]["terminated"]["exitCode"] == 1
    assert told["restartCount"] == 2


def test_readiness_waits_for_containers_and_for_gates() -> None:
    whole = pod("a", readinessGates=[{"conditionType": "x/gate"}])
    assert condition(status(whole, {"a": Seen()}), "Ready")["reason"] == "ContainersNotReady"
    told = status(whole, {"a": running()})
    assert condition(told, "ContainersReady")["status"] == "True"
    assert condition(told, "Ready")["reason"] == "ReadinessGatesNotReady"
    whole["status"] = {"conditions": [{"type": "x/gate", "status": "True"}]}
    assert condition(status(whole, {"a": running()}), "Ready")["status"] == "True"


def test_a_condition_keeps_the_time_of_its_last_change() -> None:
    whole = pod("a")
    whole["status"] = {"conditions": [{"type": "Ready", "status": "True", "lastTransitionTime": "long ago"}]}
    assert condition(status(whole, {"a": running()}), "Ready")["lastTransitionTime"] == "long ago"
    assert condition(status(whole, {"a": Seen()}), "Ready")["lastTransitionTime"] != "long ago"


def test_a_pod_that_failed_as_a_whole_says_why() -> None:
    told = status(pod("a"), {"a": ended(137)}, PodFacts(("h",), over=True, outcome=Why("Evicted", "too much")))
    assert (told["phase"], told["reason"], told["message"]) == ("Failed", "Evicted", "too much")


def test_a_status_that_is_there_already_is_not_written_again() -> None:
    wanted = {"a": 1, "conditions": [{"type": "X", "status": "True", "reason": None}]}
    there = {"a": 1, "b": 2, "conditions": [{"type": "Y"}, {"type": "X", "status": "True"}]}
    assert is_part_of(wanted, there)
    assert not is_part_of({**wanted, "a": 2}, there)
    assert not is_part_of({"conditions": [{"type": "Z"}]}, there)


def resources(**amounts: Any) -> dict[str, Any]:
    return {"name": "c", "resources": amounts}


def test_requests_and_limits_become_shares_quota_and_bytes() -> None:
    told = cgroups.resources(resources(requests={"cpu": "250m"}, limits={"cpu": "1500m", "memory": "64Mi"}))
    assert told["cpu"] == {"shares": 256, "quota": 150_000, "period": 100_000}
    assert told["memory"] == {"limit": 64 << 20}
    assert cgroups.resources(resources())["cpu"] == {"shares": 2}
    assert cgroups.resources(resources(limits={"cpu": "1m"}))["cpu"]["quota"] == 1000, "the kernel's least"
    pages = cgroups.resources(resources(limits={"hugepages-2Mi": "4Mi"}))["hugepageLimits"]
    assert pages == [{"pageSize": "2MB", "limit": 4 << 20}]


@pytest.mark.parametrize(
    ("amounts", "qos", "score"),
    [
        ({}, "BestEffort", 1000),
        ({"limits": {"cpu": "1", "memory": "1Gi"}}, "Guaranteed", -997),
        ({"requests": {"memory": "4Gi"}}, "Burstable", 750),
        ({"requests": {"cpu": "1"}, "limits": {"cpu": "2", "memory": "1Gi"}}, "Burstable", 938),
    ],
)
def test_who_is_killed_first_follows_from_what_was_asked_for(amounts: Any, qos: str, score: int) -> None:
    container = resources(**amounts)
    whole = {"spec": {"containers": [container]}}
    assert qos_class(whole["spec"]) == qos
    assert cgroups.oom_score(whole, container, 16 << 30) == score


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"shareProcessNamespace": True}, "spec.shareProcessNamespace"),
        ({"containers": [{"name": "a", "lifecycle": {"preStop": {}}}]}, "spec.containers[0].lifecycle"),
        (
            {"containers": [{"name": "a", "livenessProbe": {"grpc": {"port": 1}}}]},
            "spec.containers[0].livenessProbe.grpc",
        ),
        ({"initContainers": [{"name": "s", "restartPolicy": "Never"}]}, "spec.initContainers[0].restartPolicy"),
        ({"containers": [{"name": "a", "restartPolicy": "Always"}]}, "spec.containers[0].restartPolicy"),
    ],
)
def test_what_this_node_cannot_do_is_named(change: dict[str, Any], field: str) -> None:
    assert unserved(pod("a")) == ""
    assert unserved(pod("a", **change)) == f"the local cluster has nothing for {field}; leave that out"
