"""Whose handler keeps a node, and when it changes hands."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from pools.nodes import pod_admits

from examples import examples
from virtfleet.kube.resource import Obj
from virtfleet.operator.keeping import Keeping, look, moves_nodes, narrowing, unfinished, value
from virtfleet.operator.proof import Proving
from virtfleet.operator.world import NodeView
from virtfleet.pools.model import pools_of

from .fleets import kubevirt, objects, pod_spec, pool
from .test_rollout import INSTALLATION, NEW, OLD, handlers, pod, proofs

POOLS = pools_of(kubevirt(virtHandlerPools=[pool("gpu")]))
PRIMARY, GPU = "virt-handler", "virt-handler-gpu"
SERVED_BY = "virtfleet.io/served-by"
IN_POOL = {"pool": "gpu"}


def by(daemon_set: str) -> dict[str, str]:
    return {SERVED_BY: str(value(daemon_set))}


def at(labels: dict[str, str], *there: Any, up: bool = True, **sets: Obj) -> Keeping:
    """One node with these labels and handlers; there are the primary's DaemonSet and that of a pool."""
    pods = [pod(0, NEW, of=each) if isinstance(each, str) else each for each in there]
    installed = {PRIMARY: handlers(1), GPU: handlers(1, GPU), **sets}
    return look(POOLS, installed, [NodeView("node0", labels, "", up)], pods)


def test_a_node_is_kept_by_the_handler_that_serves_it() -> None:
    assert at({}, PRIMARY).labels == {"node0": PRIMARY}
    assert at(IN_POOL, GPU).labels == {"node0": GPU}
    assert at(by(PRIMARY), PRIMARY) == at({**by(GPU), **IN_POOL}, GPU) == at({}) == Keeping()


def test_a_node_whose_labels_changed_before_it_was_kept_is_kept_by_the_handler_that_is_there() -> None:
    assert at(IN_POOL, PRIMARY).labels == {"node0": PRIMARY}
    assert at({}, GPU).labels == {"node0": GPU}


def test_a_handler_that_cannot_work_keeps_no_node() -> None:
    assert at({}, pod(0, NEW, ready=False, failing="CrashLoopBackOff")) == Keeping()


def test_a_node_that_comes_into_a_pool_or_leaves_it_is_to_move() -> None:
    for labels, old, new in (({**by(PRIMARY), **IN_POOL}, PRIMARY, GPU), (by(GPU), GPU, PRIMARY)):
        [change] = at(labels, old).moves
        assert (change.node, change.successor, change.moves) == ("node0", new, True)


def test_a_node_that_was_let_go_is_between_two_handlers_until_the_next_is_there() -> None:
    moving = {**by(GPU), **IN_POOL}
    assert at(moving, PRIMARY) == Keeping(between={"node0": GPU}, transit=1)
    assert at(moving, pod(0, NEW, ending=True)) == at(moving) == Keeping(between={"node0": GPU})
    assert at(moving, GPU, pod(0, NEW, ending=True)) == Keeping()


def test_a_node_whose_handler_is_replaced_is_between_two_handlers() -> None:
    assert at(by(PRIMARY), pod(0, OLD, ending=True)).between == {"node0": PRIMARY}
    assert at(by(PRIMARY)).between == {"node0": PRIMARY}
    waiting = pod(0, NEW)
    waiting.spec.node_name = ""
    assert at(by(PRIMARY), waiting).between == {"node0": PRIMARY}, "the scheduler has not placed it yet"


def test_a_label_that_nobody_answers_for_goes() -> None:
    assert at(by("virt-handler-gone")).labels == {"node0": None}
    assert at(by("virt-handler-gone"), PRIMARY).labels == {"node0": PRIMARY}
    assert at(by(GPU), **{GPU: handlers(0, GPU)}).labels == {"node0": None}, "placed elsewhere"
    leaving = handlers(1, GPU)
    leaving["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    assert at(by(GPU), **{GPU: leaving}).labels == {"node0": None}
    assert at(by(GPU), GPU, **{GPU: leaving}) == Keeping(), "its handler ends with it"


def test_nothing_is_decided_about_a_node_that_is_down() -> None:
    for labels in ({}, IN_POOL, by(PRIMARY), by(GPU)):
        assert at(labels, PRIMARY, up=False) == Keeping()


# -- DaemonSets


def test_a_daemon_set_does_not_change_while_a_node_waits_for_what_it_is_unless_that_is_proven_there() -> None:
    def waiting(new: Obj, there: dict[str, Any] | None = None, between: str = GPU) -> tuple[frozenset[str], Proving]:
        proving = Proving(INSTALLATION, (there or {}).values())
        return unfinished({GPU: handlers(1, GPU)}, {GPU: new}, {"node0": between}, proving), proving

    other = handlers(1, GPU, image="handler:newer", **{"virtfleet.io/handler-content": "newer"})
    same_images = handlers(1, GPU, **{"virtfleet.io/handler-content": "newer"})
    held, proving = waiting(other)
    assert held == {GPU}
    [wanted] = proving.needed.values()
    assert wanted["spec"]["nodeName"] == "node0"
    assert waiting(other, proofs(wanted))[0] == frozenset()
    assert waiting(same_images)[0] == waiting(handlers(1, GPU))[0] == waiting(other, between=PRIMARY)[0] == frozenset()


KEYS, VALUES = ("a", "b"), ("1", "2")
LABELS = st.dictionaries(st.sampled_from(KEYS), st.sampled_from(VALUES))
SELECTORS = st.dictionaries(st.sampled_from(KEYS), st.sampled_from(VALUES), min_size=1)
FLEETS = st.dictionaries(st.sampled_from(("p", "q", "r")), SELECTORS, max_size=3)


def rendered(pools: dict[str, dict[str, str]]) -> dict[str, Obj]:
    listed = [{**pool(name), "nodeSelector": selector} for name, selector in pools.items()]
    return {n: obj for (kind, n), obj in objects(virtHandlerPools=listed).items() if kind == "DaemonSet"}


def admitting(sets: dict[str, Obj], labels: dict[str, str]) -> list[str]:
    return [name for name, ds in sets.items() if pod_admits(pod_spec(ds), {"kubernetes.io/os": "linux", **labels})]


@settings(max_examples=examples(150), deadline=None)
@given(FLEETS, FLEETS, LABELS, st.data())
def test_whatever_changes_a_node_is_its_keepers_alone(
    before: dict[str, dict[str, str]], after: dict[str, dict[str, str]], labels: dict[str, str], data: st.DataObject
) -> None:
    """In whichever order DaemonSets change, also those that are wanted no more."""
    old, new = rendered(before), rendered(after)
    keeper = data.draw(st.sampled_from(sorted(old)))
    mixed = {name: data.draw(st.sampled_from([s[name] for s in (old, new) if name in s])) for name in old | new}
    for name in old.keys() - new.keys():
        if change := data.draw(st.sampled_from([None, narrowing(mixed[name])])):
            pod_spec(mixed[name])["nodeSelector"] |= change["spec"]["template"]["spec"]["nodeSelector"]
            assert narrowing(mixed[name]) is None
    assert admitting(mixed, {**labels, **by(keeper)}) == [keeper]


@settings(max_examples=examples(100), deadline=None)
@given(FLEETS, LABELS)
def test_a_node_that_nobody_keeps_is_its_owners_alone(pools: dict[str, dict[str, str]], labels: dict[str, str]) -> None:
    owners = [n for n, selector in pools.items() if selector.items() <= labels.items()]
    assert admitting(rendered(pools), labels) == [f"virt-handler-{owners[0]}" if owners else PRIMARY]


def test_other_nodes_are_those_of_a_change_of_pools() -> None:
    old = rendered({"p": {"a": "1"}})
    assert moves_nodes(old, rendered({})) and moves_nodes(old, rendered({"p": {"a": "2"}}))
    assert moves_nodes(rendered({}), old)
    assert not moves_nodes(old, old) and not moves_nodes({}, old)
