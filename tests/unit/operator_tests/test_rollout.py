"""Handlers are replaced by canary: one, then a tenth at a time, and no further once one fails."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import orjson
from hypothesis import given
from hypothesis import strategies as st

from virtfleet.operator.handlerpods import HandlerPod, decode_pod
from virtfleet.operator.rollout import rollout

NEW, OLD = "new", "old"
NOW = datetime(2026, 1, 1, tzinfo=UTC)
TEMPLATE = {"virtfleet.io/handler-content": NEW}


def pod(
    number: int, content: str, *, ready: bool = True, ending: bool = False, failing: str = "", age: float = 1.0
) -> HandlerPod:
    waiting = {"waiting": {"reason": failing, "message": "no such image"}}
    meta = {"name": f"virt-handler-{number}", "annotations": {"virtfleet.io/handler-content": content}}
    meta["creationTimestamp"] = (NOW - timedelta(seconds=age)).isoformat()
    if ending:
        meta["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    status = {
        "conditions": [{"type": "Ready", "status": str(ready)}],
        "containerStatuses": [{"name": "virt-handler", "state": waiting if failing else {}}],
    }
    return decode_pod(orjson.dumps({"metadata": meta, "spec": {"nodeName": f"node{number}"}, "status": status}))


def test_the_first_to_go_is_one_alone() -> None:
    found = rollout([pod(i, OLD) for i in range(50)], TEMPLATE, 50, NOW)
    assert [p.metadata.name for p in found.replace] == ["virt-handler-0"]


def test_nothing_more_goes_before_the_canary_is_ready() -> None:
    assert not rollout([pod(0, NEW, ready=False), *(pod(i, OLD) for i in range(1, 50))], TEMPLATE, 50, NOW).replace
    assert not rollout([pod(0, OLD, ending=True), *(pod(i, OLD) for i in range(1, 50))], TEMPLATE, 50, NOW).replace


def test_a_pod_that_is_gone_and_not_yet_made_anew_counts_as_away() -> None:
    assert not rollout([pod(i, OLD) for i in range(1, 50)], TEMPLATE, 50, NOW).replace


def test_after_the_canary_a_tenth_goes_at_a_time() -> None:
    pods = [pod(0, NEW), *(pod(i, OLD) for i in range(1, 50))]
    assert len(rollout(pods, TEMPLATE, 50, NOW).replace) == 5


def test_a_failing_canary_stops_the_rollout_with_its_reason() -> None:
    canary = pod(0, NEW, ready=False, failing="ImagePullBackOff")
    found = rollout([canary, *(pod(i, OLD) for i in range(1, 9))], TEMPLATE, 9, NOW)
    assert found.stopped and not found.replace
    assert found.failure == "container virt-handler of virt-handler-0 on node0: ImagePullBackOff: no such image"


def test_a_rollout_is_done_when_the_last_new_pod_is_ready_or_has_had_its_time() -> None:
    assert not rollout([pod(0, NEW), pod(1, OLD, ending=True)], TEMPLATE, 2, NOW).done
    assert not rollout([pod(0, NEW)], TEMPLATE, 2, NOW).done
    assert not rollout([pod(0, NEW), pod(1, NEW, ready=False)], TEMPLATE, 2, NOW).done
    assert rollout([pod(0, NEW), pod(1, NEW, ready=False, age=600)], TEMPLATE, 2, NOW).done
    assert rollout([pod(0, NEW), pod(1, NEW)], TEMPLATE, 2, NOW).done


def test_a_restart_that_was_asked_for_replaces_pods_and_its_mark_may_go_later() -> None:
    restart = {**TEMPLATE, "kubectl.kubernetes.io/restartedAt": "2026-01-01T00:00:00Z"}
    pods = [pod(i, NEW) for i in range(3)]
    assert rollout(pods, restart, 3, NOW).outdated == 3
    for each in pods:
        each.metadata.annotations.update(restart)
    assert rollout(pods, restart, 3, NOW).done
    assert rollout(pods, TEMPLATE, 3, NOW).done


def test_a_failed_canary_is_the_first_to_go_when_there_is_something_newer() -> None:
    pods = [pod(1, OLD), pod(7, "broken", ready=False, failing="CrashLoopBackOff"), pod(2, OLD)]
    assert [p.metadata.name for p in rollout(pods, TEMPLATE, 3, NOW).replace] == ["virt-handler-7"]


@given(st.integers(1, 60))
def test_a_rollout_ends_and_never_takes_more_away_than_it_may(count: int) -> None:
    pods = [pod(i, OLD) for i in range(count)]
    for _ in range(count * 3):
        found = rollout(pods, TEMPLATE, count, NOW)
        if found.done and all(p.ready for p in pods):
            break
        going = {p.metadata.name for p in found.replace}
        proven = any(p.made_from(TEMPLATE) and p.ready for p in pods)
        # Those that go come back new and not ready; those that came before are ready by now.
        contents = [p.metadata.annotations["virtfleet.io/handler-content"] for p in pods]
        pods = [
            pod(i, NEW, ready=False) if p.metadata.name in going else pod(i, contents[i]) for i, p in enumerate(pods)
        ]
        away = sum(not p.ready for p in pods)
        assert away <= (max(1, count // 10) if proven else 1)
    assert all(p.made_from(TEMPLATE) and p.ready for p in pods)
