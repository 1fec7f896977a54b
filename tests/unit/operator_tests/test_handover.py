"""Nodes change hands in order: the old owner lets go before the new one takes over."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from pools.nodes import pod_admits

from virtfleet.kube.resource import Obj
from virtfleet.operator.handover import held, narrowed, pending, placement, step

from .fleets import objects, pod_spec, pool

KEYS, VALUES = ("a", "b"), ("1", "2")
OWN = st.dictionaries(st.sampled_from(KEYS), st.sampled_from(VALUES))
# The primary handler may keep a node, whatever its other labels are.
LABELS = st.one_of(OWN, OWN.map(lambda labels: {**labels, "virtfleet.io/served-by": "primary"}))
SELECTORS = st.dictionaries(st.sampled_from(KEYS), st.sampled_from(VALUES), min_size=1)
POOLS = st.dictionaries(st.sampled_from(("p", "q", "r")), SELECTORS, max_size=3)


def handlers(pools: dict[str, dict[str, str]]) -> dict[str, Obj]:
    listed = [{**pool(name), "nodeSelector": selector} for name, selector in pools.items()]
    return {n: obj for (kind, n), obj in objects(virtHandlerPools=listed).items() if kind == "DaemonSet"}


def stored(wanted: Obj, *, observed: bool = True, **metadata: Any) -> Obj:
    return {
        **wanted,
        "metadata": {**wanted["metadata"], "generation": 2, **metadata},
        "status": {"observedGeneration": 2 if observed else 1},
    }


def admits(daemon_set: Obj, labels: dict[str, str]) -> bool:
    return pod_admits(pod_spec(daemon_set), {"kubernetes.io/os": "linux", **labels})


@settings(max_examples=300, deadline=None)
@given(POOLS, POOLS, LABELS)
def test_a_narrowed_handler_has_the_nodes_that_it_had_and_keeps(
    before: dict[str, dict[str, str]], after: dict[str, dict[str, str]], labels: dict[str, str]
) -> None:
    old, new = handlers(before), handlers(after)
    for name in old.keys() & new.keys():
        both = admits(old[name], labels) and admits(new[name], labels)
        assert admits(narrowed(old[name], new[name]), labels) == both


@settings(max_examples=150, deadline=None)
@given(POOLS, POOLS, st.lists(LABELS, min_size=1, max_size=4), st.booleans())
def test_every_step_leaves_each_node_to_one_handler_at_most_and_the_last_one_to_the_right_one(
    before: dict[str, dict[str, str]], after: dict[str, dict[str, str]], nodes: list[dict[str, str]], lazy: bool
) -> None:
    installed = {name: stored(obj) for name, obj in handlers(before).items()}
    wanted = handlers(after)
    for number in range(6):
        now = step(installed, wanted)
        for gone in now.delete:
            del installed[gone["metadata"]["name"]]
        for obj in now.apply:
            # The DaemonSet controller may be late; the next step must wait for it.
            installed[obj["metadata"]["name"]] = stored(obj, observed=not lazy or number % 2 == 1)
        for labels in nodes:
            assert sum(admits(obj, labels) for obj in installed.values()) <= 1
        if now.done:
            break
        if lazy:
            installed = {name: stored(obj) for name, obj in installed.items()}
    assert now.done
    for labels in nodes:
        [owner] = [name for name, obj in installed.items() if admits(obj, labels)]
        [expected] = [name for name, obj in wanted.items() if admits(obj, labels)]
        assert owner == expected


@settings(max_examples=150, deadline=None)
@given(POOLS, POOLS, OWN)
def test_a_node_that_the_primary_keeps_is_its_own_at_every_step(
    before: dict[str, dict[str, str]], after: dict[str, dict[str, str]], labels: dict[str, str]
) -> None:
    """Whatever changes about pools: as long as the label is there, only the primary handler is admitted."""
    kept = {**labels, "virtfleet.io/served-by": "primary"}
    installed = {name: stored(obj) for name, obj in handlers(before).items()}
    wanted = handlers(after)
    if before:
        assert [name for name, obj in installed.items() if admits(obj, kept)] == ["virt-handler"]
        held_ones = [held(ds, wanted[name]) for name, ds in installed.items() if name in wanted]
        assert [obj["metadata"]["name"] for obj in held_ones if admits(obj, kept)] == ["virt-handler"]
    for _ in range(6):
        now = step(installed, wanted)
        for gone in now.delete:
            del installed[gone["metadata"]["name"]]
        installed |= {obj["metadata"]["name"]: stored(obj) for obj in now.apply}
        assert [name for name, obj in installed.items() if admits(obj, kept)] == ["virt-handler"]
        if now.done:
            return


def test_a_daemon_set_that_is_held_has_new_content_and_its_old_nodes() -> None:
    old, new = handlers({"p": {"a": "1"}})["virt-handler-p"], handlers({"p": {"a": "2"}})["virt-handler-p"]
    new["spec"]["template"]["spec"]["containers"][0]["image"] = "other"
    kept = held(old, new)
    assert placement(kept) == placement(old)
    assert pod_spec(kept)["containers"][0]["image"] == "other"
    assert pending({"virt-handler-p": old}, {"virt-handler-p": new})
    assert not pending({"virt-handler-p": old}, {"virt-handler-p": kept})
    assert pending({"virt-handler-p": old}, {})


def test_a_first_installation_needs_one_step() -> None:
    wanted = handlers({"p": {"a": "1"}})
    now = step({}, wanted)
    assert now.done
    assert [obj["metadata"]["name"] for obj in now.apply] == ["virt-handler", "virt-handler-p"]


def test_nothing_widens_before_the_daemon_set_controller_has_seen_the_narrowing() -> None:
    wanted = handlers({"p": {"a": "1"}})
    installed = {"virt-handler": stored(handlers({})["virt-handler"])}
    [primary] = step(installed, wanted).apply
    waiting = step({"virt-handler": stored(primary, observed=False)}, wanted)
    assert [obj["metadata"]["name"] for obj in waiting.apply] == ["virt-handler"] and not waiting.done
    assert [obj["metadata"]["name"] for obj in step({"virt-handler": stored(primary)}, wanted).apply] == [
        "virt-handler",
        "virt-handler-p",
    ]


def test_a_pool_that_is_made_again_waits_for_its_old_daemon_set_to_be_gone() -> None:
    wanted = handlers({"p": {"a": "1"}})
    installed = {name: stored(obj) for name, obj in wanted.items()}
    installed["virt-handler-p"]["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    now = step(installed, wanted)
    assert not now.done
    assert "virt-handler-p" not in [obj["metadata"]["name"] for obj in now.apply]
