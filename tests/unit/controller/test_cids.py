"""Addresses on vsock: no two VMIs ever have the same one."""

from __future__ import annotations

from typing import Any, cast
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.controller.objects import NOW, pod, vmi
from virtfleet.api import names
from virtfleet.controller import cids, lifecycle
from virtfleet.controller.cids import HIGHEST, LOWEST, Cids, NoneLeft, free
from virtfleet.controller.records.instance import Instance
from virtfleet.kube.cache import Cache

VSOCK = {"domain": {"devices": {"autoattachVSOCK": True}}}
VMIS = [f"vm{number}" for number in range(3)]
FEW = LOWEST + len(VMIS) - 1  # as many addresses as VMIs


class Known:
    """The VMIs as a cache has them, by their names."""

    def __init__(self) -> None:
        self.vmis: dict[str, Instance] = {}
        self._made = 0

    def by_index(self, index: str, value: str) -> list[Instance]:
        assert index == cids.INDEX
        return [each for each in self.vmis.values() if value in cids.index(each)]

    def make(self, name: str) -> None:
        self._made += 1
        self.put(name, str(UUID(int=self._made)))

    def put(self, name: str, uid: str, cid: int | None = None) -> None:
        self.vmis[name] = vmi(name=name, uid=uid, spec=VSOCK, status={} if cid is None else {"VSOCKCID": cid})

    def addresses(self) -> list[int]:
        return [each.status.vsock_cid for each in self.vmis.values() if each.status.vsock_cid is not None]


def over(known: Known, highest: int = FEW) -> Cids:
    return Cids(cast("Cache[Instance]", known), highest)


STEPS = st.tuples(st.sampled_from(("make", "ask", "write", "delete", "restart")), st.sampled_from(VMIS))


@given(st.lists(STEPS, min_size=30, max_size=80))
def test_no_two_vmis_share_one_whatever_comes_between_giving_and_writing_it(steps: list[tuple[str, str]]) -> None:
    known = Known()
    giving, asked = over(known), dict[str, int]()
    for step, name in steps:
        there = known.vmis.get(name)
        if step == "make" and not there:
            known.make(name)
        elif step == "restart":  # what was not written is lost
            giving, asked = over(known), {}
        elif step == "ask" and there:
            cid = giving.of(there)
            assert asked.setdefault(name, cid) == cid, "another one than before"
            assert LOWEST <= cid <= FEW
        elif step == "write" and there and name in asked:
            known.put(name, there.uid, asked[name])
        elif step == "delete" and there:
            del known.vmis[name]
            giving.forget(there.key)
            asked.pop(name, None)
        taken = known.addresses()
        assert len(taken) == len(set(taken))
        # What is promised is nobody else's either.
        held = {**{n: v.status.vsock_cid for n, v in known.vmis.items() if v.status.vsock_cid is not None}, **asked}
        assert len(set(held.values())) == len(held)


def test_the_next_controller_gives_a_vmi_the_one_that_may_be_on_its_way() -> None:
    known = Known()
    known.make("vm0")
    assert over(known, HIGHEST).of(known.vmis["vm0"]) == over(known, HIGHEST).of(known.vmis["vm0"])


def test_those_of_hosts_and_the_one_that_means_any_are_never_given() -> None:
    for uid in map(str, range(2000)):
        assert LOWEST <= free(uid, lambda _: False) <= HIGHEST == 0xFFFF_FFFE
    everything = {free(str(uid), lambda _: False, LOWEST + 3) for uid in range(200)}
    assert everything == {3, 4, 5, 6}


def test_after_the_last_one_the_search_goes_on_at_the_first() -> None:
    for number in range(20):
        assert free(str(number), lambda cid: cid != LOWEST, LOWEST + 3) == LOWEST


def test_that_none_is_left_is_said() -> None:
    with pytest.raises(NoneLeft, match="all 4 vsock addresses are in use"):
        free("uid", lambda _: True, LOWEST + 3)


@pytest.mark.parametrize(("phase", "told"), [("Running", {"VSOCKCID": 77}), ("Pending", {})])
def test_it_is_told_with_the_hand_over_and_not_before(phase: str, told: dict[str, Any]) -> None:
    at = lifecycle.Situation(vmi("Scheduling", spec=VSOCK), (pod(phase, node="node-a"),), cid=77)
    status = lifecycle.change(at, NOW).get("status", {})
    assert {key: value for key, value in status.items() if key == "VSOCKCID"} == told


def test_a_vmi_that_runs_without_one_is_given_none() -> None:
    """Nobody could add it to a guest that runs."""
    running = vmi("Running", spec=VSOCK, pods={"pod-1": "node-a"})
    at = lifecycle.Situation(running, (pod("Running", node="node-a"),), cid=77)
    assert "VSOCKCID" not in lifecycle.change(at, NOW).get("status", {})


def test_a_vm_that_has_moved_keeps_it() -> None:
    moved = vmi("Running", spec=VSOCK, pods={"pod-2": "node-b"}, status={"VSOCKCID": 77})
    there = pod("Running", uid="pod-2", node="node-b", labels={names.MIGRATION_UID: "migration"})
    assert "VSOCKCID" not in lifecycle.change(lifecycle.Situation(moved, (there,)), NOW).get("status", {})


def test_the_index_has_those_that_have_one() -> None:
    assert cids.index(vmi(status={"VSOCKCID": 9})) == ["9"]
    assert cids.index(vmi()) == []
