"""Who stands in for a handler: of the template that is to come, on that very node, and for as long as it takes."""

from __future__ import annotations

from typing import Any

import orjson

from virtfleet import __version__
from virtfleet.installation import Installation
from virtfleet.operator.handlerpods import HandlerPod, decode_pod
from virtfleet.operator.rollout import Change
from virtfleet.operator.standin import PREFIX, StandIns, render

from .fleets import daemon_set, kubevirt

OWNED = {**kubevirt(), "metadata": {**kubevirt()["metadata"], "uid": "u"}}
SETTINGS = Installation(OWNED)


def pod(name: str, *, node: str = "n", ready: bool = False, started: bool = False, **more: Any) -> HandlerPod:
    made = {
        "metadata": {"name": name, "labels": {"kubevirt.io": "virt-handler"}, **more.pop("metadata", {})},
        "spec": {"nodeName": node},
        "status": {
            "conditions": [{"type": "Ready", "status": str(ready)}],
            "containerStatuses": [{"name": "virt-handler", "started": started, **more}],
        },
    }
    return decode_pod(orjson.dumps(made))


def test_it_is_the_next_handler_on_that_node_and_asks_for_next_to_nothing() -> None:
    made = render(SETTINGS, daemon_set(), "n")
    spec, meta = made["spec"], made["metadata"]
    assert (spec["nodeName"], spec["serviceAccountName"], spec["hostPID"]) == ("n", "kubevirt-handler", True)
    assert "affinity" not in spec and "nodeSelector" not in spec
    assert spec["activeDeadlineSeconds"] > daemon_set()["spec"]["template"]["spec"]["terminationGracePeriodSeconds"]
    [handler] = spec["containers"]
    assert handler["image"] == f"virtfleet/virt-handler:{__version__}"
    assert handler["resources"]["requests"] == {"cpu": "1m", "memory": "1Mi"}
    assert "limits" in handler["resources"], "what a launcher says is bounded for it, too"
    assert meta["ownerReferences"][0]["kind"] == "KubeVirt" and meta["ownerReferences"][0]["controller"]
    assert meta["labels"]["kubevirt.io"] == "virt-handler", "virt-api finds it"
    assert meta["name"] == render(SETTINGS, daemon_set(), "n")["metadata"]["name"], "another operator finds it again"
    assert meta["name"] != render(SETTINGS, daemon_set(imageTag="v2"), "n")["metadata"]["name"]


def test_a_handler_goes_when_somebody_stands_by() -> None:
    change, name = (
        Change(pod("old", ready=True), "virt-handler"),
        render(SETTINGS, daemon_set(), "n")["metadata"]["name"],
    )
    for there, goes in (
        ([], False),
        ([pod(name)], False),
        ([pod(name, started=True)], True),
        ([pod(name, started=True, metadata={"deletionTimestamp": "2026-01-01T00:00:00Z"})], False),
        ([pod(f"{PREFIX}of-another-image", started=True)], False),
    ):
        standing = StandIns(SETTINGS, there)
        assert standing.waits(change, daemon_set()) is goes
        assert list(standing.needed) == [name]


def test_nobody_stands_in_for_what_does_not_serve_or_where_there_is_no_room() -> None:
    standing = StandIns(SETTINGS, [])
    assert standing.waits(Change(pod("old"), "virt-handler"), daemon_set()) and not standing.needed
    name = render(SETTINGS, daemon_set(), "n")["metadata"]["name"]
    full = decode_pod(
        orjson.dumps({"metadata": {"name": name}, "spec": {"nodeName": "n"}, "status": {"phase": "Failed"}})
    )
    standing = StandIns(SETTINGS, [full])
    assert standing.waits(Change(pod("old", ready=True), "virt-handler"), daemon_set())
    assert not standing.failure


def test_one_that_does_not_come_up_says_so_and_the_old_handler_stays() -> None:
    name = render(SETTINGS, daemon_set(), "n")["metadata"]["name"]
    crashing = pod(name, state={"waiting": {"reason": "CrashLoopBackOff", "message": "oh"}})
    standing = StandIns(SETTINGS, [crashing])
    assert not standing.waits(Change(pod("old", ready=True), "virt-handler"), daemon_set())
    assert standing.failure.startswith("virt-handler does not come up on n, so old stays")


def test_it_is_over_when_a_handler_of_the_nodes_own_has_come_up() -> None:
    there = [pod(f"{PREFIX}x", started=True)]
    ending = {"deletionTimestamp": "2026-01-01T00:00:00Z"}
    for handlers, over in (
        ([], False),
        ([pod("old", ready=True, metadata=ending)], False),
        ([pod("new")], False),
        ([pod("new", node="other", started=True)], False),
        ([pod("new", started=True)], True),
    ):
        assert bool(StandIns(SETTINGS, there).over(handlers)) is over
