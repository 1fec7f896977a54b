"""When a node's handler counts as silent, and what is lost with it."""

from __future__ import annotations

import pytest

from controller.objects import NOW, node, pod, vmi
from virtfleet.api.times import timestamp
from virtfleet.controller.node import Heartbeats, lost


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_a_handler_has_five_minutes_from_when_it_was_last_seen_to_write() -> None:
    clock = Clock()
    heartbeats = Heartbeats(clock=clock)
    assert heartbeats.left("n", node("12:00:00")) == 300.0
    clock.now += 240
    assert heartbeats.left("n", node("12:00:00")) == 60.0
    assert heartbeats.left("n", node("12:04:00")) == 300.0
    clock.now += 301
    assert heartbeats.left("n", node("12:04:00")) < 0


@pytest.mark.parametrize("written", [timestamp(NOW - 86400), timestamp(NOW + 86400), "yesterday"])
def test_what_time_a_handler_believes_it_is_does_not_matter(written: str) -> None:
    clock = Clock()
    heartbeats = Heartbeats(clock=clock)
    for number in range(4):
        assert heartbeats.left("n", node(f"{written}{number % 2}")) == 300.0
        clock.now += 120


def test_a_node_that_is_gone_is_silent_and_one_that_comes_back_begins_anew() -> None:
    clock = Clock()
    heartbeats = Heartbeats(clock=clock)
    heartbeats.left("n", node("12:00:00"))
    clock.now += 400
    assert heartbeats.left("n", None) == 0.0
    assert heartbeats.left("n", node("12:00:00")) == 300.0


@pytest.mark.parametrize("heartbeat", [None, ""])
def test_a_node_without_a_heartbeat_is_not_judged(heartbeat: str | None) -> None:
    assert Heartbeats().left("n", node(heartbeat)) == float("inf")


@pytest.mark.parametrize("phase", ["Scheduled", "Running"])
def test_a_vmi_is_lost_without_a_living_pod(phase: str) -> None:
    over = {"compute": {"terminated": {"exitCode": 137}}}
    assert lost(vmi(phase), [])
    assert lost(vmi(phase), [pod("Failed")])
    assert lost(vmi(phase), [pod("Running", containers=over, deleting=True)])
    assert not lost(vmi(phase), [pod("Running")])
    assert not lost(vmi(phase), [pod("Running", deleting=True)])
    assert not lost(vmi(phase), [pod("Failed"), pod("Running")])


@pytest.mark.parametrize("phase", ["Pending", "Scheduling", "Succeeded", "Failed"])
def test_only_what_was_handed_over_can_be_lost(phase: str) -> None:
    assert not lost(vmi(phase), [])
