"""From the scheduler's words to what an owner can do."""

from __future__ import annotations

import pytest

from virtfleet.controller.advice import placement


@pytest.mark.parametrize(
    ("message", "hint"),
    [
        ("0/3 nodes are available: 3 Insufficient memory.", "ask for less memory"),
        ("0/3 nodes are available: 2 Insufficient cpu, 1 Insufficient memory.", "ask for less cpu and memory"),
        ("0/1 nodes are available: 1 Insufficient example.com/GPU_9.", "enough of example.com/GPU_9 left"),
        ("0/1 nodes are available: 1 Insufficient devices.kubevirt.io/kvm.", "useEmulation"),
        ("0/3 nodes are available: 3 Insufficient devices.kubevirt.io/vhost-vsock.", "modprobe vhost_vsock"),
        ("0/2 nodes are available: 2 node(s) didn't match Pod's node affinity/selector.", "--show-labels"),
        ("0/1 nodes are available: 1 node(s) had untolerated taint {a: b}.", "add a toleration"),
    ],
)
def test_the_words_are_kept_and_what_to_do_is_added(message: str, hint: str) -> None:
    told = placement(message)
    assert message in told and hint in told


def test_a_scarce_device_matters_more_than_nodes_that_were_never_meant() -> None:
    message = (
        "0/3 nodes are available: 1 Insufficient example.com/gpu, 2 node(s) didn't match Pod's node affinity/selector."
    )
    assert "--show-labels" not in placement(message)


def test_words_that_nobody_knows_are_passed_on() -> None:
    assert placement("it is raining") == "No node can run the VM: it is raining"
