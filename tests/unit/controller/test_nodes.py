"""When a node's handler counts as silent, and what is lost with it."""

from __future__ import annotations

import pytest

from controller.objects import NOW, node, pod, vmi
from virtfleet.api.times import timestamp
from virtfleet.controller.node import lost, silence_left


def test_a_handler_has_five_minutes() -> None:
    assert silence_left(node(timestamp(NOW - 60)), NOW) == 240.0
    assert silence_left(node(timestamp(NOW - 301)), NOW) < 0


def test_a_node_that_is_gone_is_silent() -> None:
    assert silence_left(None, NOW) == 0.0


@pytest.mark.parametrize("heartbeat", [None, "", "yesterday"])
def test_a_node_without_a_heartbeat_is_not_judged(heartbeat: str | None) -> None:
    assert silence_left(node(heartbeat), NOW) == float("inf")


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
