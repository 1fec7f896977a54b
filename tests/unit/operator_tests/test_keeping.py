"""Which nodes the primary handler keeps, and which it is to give away."""

from __future__ import annotations

from virtfleet.operator.keeping import Keeping, look
from virtfleet.operator.world import Node
from virtfleet.pools.model import pools_of

from .fleets import kubevirt, pool
from .test_rollout import NEW, pod

POOLS = pools_of(kubevirt(virtHandlerPools=[pool("gpu")]))
KEPT, GPU = {"virtfleet.io/served-by": "primary"}, {"pool": "gpu"}


def at(labels: dict[str, str], *handlers: str, settled: bool = True, pools: bool = True, up: bool = True) -> Keeping:
    """One node with these labels, and the DaemonSets of the handlers that are ready there."""
    pods = [pod(0, NEW, of=name) for name in handlers]
    return look(POOLS if pools else (), [Node("node0", labels, "", up)], pods, settled=settled)


def test_a_node_of_the_primary_is_kept_once_its_handler_serves_it() -> None:
    assert at({}, "virt-handler").keep == ["node0"]
    assert at({}) == at(KEPT, "virt-handler") == Keeping()


def test_without_pools_nodes_have_no_label() -> None:
    assert at({}, "virt-handler", pools=False) == Keeping()
    assert at(KEPT, "virt-handler", pools=False).release == ["node0"]
    assert not at(KEPT, "virt-handler", pools=False, settled=False).release, "not before the DaemonSet needs it no more"


def test_before_a_new_pool_gets_its_nodes_they_are_kept() -> None:
    assert at(GPU, "virt-handler", settled=False).keep == ["node0"]


def test_a_kept_node_that_is_a_pools_now_is_to_move() -> None:
    [change] = at({**KEPT, **GPU}, "virt-handler").moves
    assert (change.node, change.successor, change.moves) == ("node0", "virt-handler-gpu", True)


def test_a_kept_node_is_let_go_at_once_where_a_pools_handler_is_and_not_while_there_is_none() -> None:
    assert at({**KEPT, **GPU}, "virt-handler-gpu").release == ["node0"]
    assert at({**KEPT, **GPU}) == Keeping(), "the primary's handler is about to come back"


def test_a_node_that_was_let_go_is_on_its_way_and_not_kept_again() -> None:
    assert at(GPU, "virt-handler") == Keeping(transit=1)


def test_a_handler_on_a_node_that_is_not_its_pools_any_more_is_leaving() -> None:
    [change] = at({}, "virt-handler-gpu").leaving
    assert change.successor == "virt-handler"
    assert at(GPU, "virt-handler-gpu") == Keeping()


def test_nothing_is_decided_about_a_node_that_is_down() -> None:
    for labels in ({}, GPU, KEPT, {**KEPT, **GPU}):
        assert at(labels, "virt-handler", up=False) == Keeping()
