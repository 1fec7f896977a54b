"""What of an edited template a running instance follows, and what waits for a restart."""

from __future__ import annotations

from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from virtfleet.api import traits
from virtfleet.api.quantity import Quantity
from virtfleet.api.view import read
from virtfleet.api.vmi import VirtualMachineInstance as VMI
from virtfleet.controller import liveupdate, placement, sizes, templates
from virtfleet.controller.following import at, replaced, without
from virtfleet.controller.records.cluster import NodeRecord, decode_node
from virtfleet.hypervisors import registry
from virtfleet.installation import Installation
from virtfleet.kube.resource import Obj
from virtfleet.pods.resources import requirements

GI = 1024**3
CLUSTER = Installation({})
STAGED = Installation({"spec": {"configuration": {"vmRolloutStrategy": "Stage"}}})


def template(sockets: int = 2, guest: str = "2Gi", **spec: Any) -> Obj:
    return {
        "domain": {"cpu": {"sockets": sockets, "cores": 1}, "memory": {"guest": guest}, "devices": {}},
        "architecture": "amd64",
        **spec,
    }


def instance(
    sockets: int = 2, guest: str = "2Gi", most: int = 8, most_guest: str = "8Gi", room: Obj | None = None, **spec: Any
) -> Obj:
    made = template(sockets, guest, **spec)
    made["domain"]["cpu"]["maxSockets"] = most
    made["domain"]["memory"]["maxGuest"] = most_guest
    status = {
        "currentCPUTopology": {"sockets": sockets, "cores": 1, "threads": 1},
        "memory": {"guestAtBoot": guest, "guestCurrent": guest, "guestRequested": guest},
    }
    return {"metadata": {"name": "vm", "namespace": "n"}, "spec": made, "status": {**status, "podRoom": room}}


def merged(old: Any, patch: Any) -> Any:
    """RFC 7396, as an API server does it."""
    if not isinstance(patch, dict):
        return patch
    result = dict(old) if isinstance(old, dict) else {}
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        else:
            result[key] = merged(result.get(key), value)
    return result


def test_sizes_of_a_running_vm_follow_the_template_and_say_so() -> None:
    found = liveupdate.follow(instance(), template(4, "4096Mi"), CLUSTER)
    assert found.spec == {"domain": {"cpu": {"sockets": 4}, "memory": {"guest": "4Gi"}}}
    assert set(found.pending) == {"HotVCPUChange", "HotMemoryChange"}
    assert not found.refused
    after = merged(instance()["spec"], found.spec)
    started, now = ({"template": {"spec": spec}} for spec in (template(), template(4, "4096Mi")))
    assert templates.template_changes(started, now, after) == []
    assert templates.template_changes(started, now, instance()["spec"]) == ["domain.cpu.sockets", "domain.memory.guest"]


def test_nothing_follows_where_changes_are_staged() -> None:
    edited = template(4, "4Gi", nodeSelector={"zone": "b"})
    assert liveupdate.follow(instance(), edited, STAGED) == liveupdate.Following()


@pytest.mark.parametrize(
    ("vmi", "edited", "field", "words"),
    [
        (instance(), template(9), sizes.SOCKETS, "room for 8 sockets"),
        (instance(), template(1), sizes.SOCKETS, "not taken from a running VM, which has 2"),
        (instance(most=0), template(4), sizes.SOCKETS, "no room was kept"),
        (instance(room={"podUID": "p", "sockets": 4}), template(3), sizes.SOCKETS, "which has 4 sockets"),
        (instance(), template(guest="9Gi"), sizes.GUEST, "room for 8Gi"),
        (instance(), template(guest="1Gi"), sizes.GUEST, "not taken from a running VM, which has 2Gi"),
        (instance(), template(guest="2049Mi"), sizes.GUEST, "steps of 2Mi"),
        (instance(room={"podUID": "p", "guest": "4Gi"}), template(guest="3Gi"), sizes.GUEST, "which has 4Gi"),
    ],
)
def test_what_a_running_vm_cannot_have_waits_for_a_restart_with_the_reason(
    vmi: Obj, edited: Obj, field: str, words: str
) -> None:
    found = liveupdate.follow(vmi, edited, CLUSTER)
    assert not found.spec
    assert words in found.refused[field]


@pytest.mark.parametrize("own", [{"dedicatedCpuPlacement": True}, {"realtime": {}}, {"numa": {"x": {}}}])
def test_a_vm_with_cpus_of_its_own_gets_no_more_of_them(own: Obj) -> None:
    vmi = instance()
    vmi["spec"]["domain"]["cpu"] |= own
    assert "CPUs of its own" in liveupdate.follow(vmi, template(4), CLUSTER).refused[sizes.SOCKETS]


def test_what_was_not_given_yet_can_be_taken_back() -> None:
    vmi = instance()
    vmi["spec"] = merged(vmi["spec"], liveupdate.follow(vmi, template(4, "4Gi"), CLUSTER).spec)
    back = liveupdate.follow(vmi, template(), CLUSTER)
    assert not back.refused
    assert merged(vmi["spec"], back.spec) == instance()["spec"]


def test_what_a_vm_has_counts_and_not_what_it_was_started_with() -> None:
    started = {"template": {"spec": template(1, "1Gi", nodeSelector={"zone": "a"})}}
    now = instance(2, "2Gi", nodeSelector={"zone": "b"})["spec"]
    paths = ["domain.cpu.sockets", "domain.memory.guest", "nodeSelector.zone"]
    assert templates.template_changes(started, started, now) == paths
    unsaid = {"template": {"spec": {"domain": {"cpu": {"cores": 1}}}}}
    assert templates.template_changes(unsaid, unsaid, now) == [], "what admission has filled in is no change"


AMOUNTS = st.integers(min_value=1, max_value=16)


@given(AMOUNTS, AMOUNTS, st.integers(0, 64), st.sampled_from([1, 10]))
def test_pods_of_all_ways_to_a_size_ask_for_the_same(first: int, then: int, more: int, ratio: int) -> None:
    """Whether a VM grows at once or in steps, or is started with the size: its Pod is the same one."""
    cluster = Installation({"spec": {"configuration": {"developerConfiguration": {"cpuAllocationRatio": ratio}}}})
    sockets, guest = first + then, f"{(first + then) * 1024 + 2 * more}Mi"
    resources = {"requests": {"memory": "1Gi", "cpu": "1"}, "limits": {"memory": "2Gi"}}

    def grown(*steps: tuple[int, str]) -> Obj:
        vmi = instance(1, "1Gi", most=64, most_guest="64Gi")
        vmi["spec"]["domain"]["resources"] = resources
        for count, amount in steps:
            edited = template(count, amount)
            edited["domain"]["resources"] = resources
            vmi["spec"] = merged(vmi["spec"], liveupdate.follow(vmi, edited, cluster).spec)
        return vmi

    one, two = (read(VMI, v) for v in (grown((sockets, guest)), grown((first, f"{first}Gi"), (sockets, guest))))
    assert traits.topology(one).sockets == sockets
    hypervisor = registry.get(registry.DEFAULT)
    asked = [requirements(each, hypervisor, cluster) for each in (one, two)]
    assert asked[0]["requests"]["memory"] == asked[1]["requests"]["memory"]
    assert asked[0]["limits"]["memory"] == asked[1]["limits"]["memory"]
    added = Quantity.parse(guest) - Quantity.parse("1Gi")
    small = requirements(read(VMI, grown()), hypervisor, cluster)
    for kind in ("requests", "limits"):
        gained = Quantity.parse(asked[0][kind]["memory"]) - Quantity.parse(small[kind]["memory"])
        assert gained >= added, "the Pod grows by as much as the guest, and by what runs beside it"


@given(
    st.recursive(st.integers() | st.text(max_size=3), lambda x: st.dictionaries(st.sampled_from("abc"), x, max_size=3)),
    st.recursive(st.integers(), lambda x: st.dictionaries(st.sampled_from("abc"), x, max_size=3)),
)
def test_a_field_is_replaced_by_a_merge(old: Any, new: Any) -> None:
    assert merged({"f": old}, {"f": replaced(old, new)}) == {"f": new}


def test_fields_are_taken_out_with_the_sections_that_they_leave_empty() -> None:
    spec = {"domain": {"cpu": {"sockets": 2}, "memory": {"guest": "1Gi", "hugepages": {}}}}
    assert without(spec, ["domain.cpu.sockets", "domain.memory.guest"]) == {"domain": {"memory": {"hugepages": {}}}}
    assert at(spec, "domain.cpu.sockets") == 2
    assert at(spec, "domain.clock.utc") is None


# --- placement


def node(labels: Obj | None = None, taints: list[Obj] | None = None) -> NodeRecord:
    return decode_node(
        orjson.dumps({"metadata": {"name": "n1", "labels": labels or {}}, "spec": {"taints": taints or []}})
    )


AFFINE = {
    "nodeAffinity": {
        "requiredDuringSchedulingIgnoredDuringExecution": {
            "nodeSelectorTerms": [{"matchExpressions": [{"key": "zone", "operator": "In", "values": ["b"]}]}]
        }
    }
}


@pytest.mark.parametrize(
    ("spec", "where", "why"),
    [
        ({}, node(), ""),
        ({"nodeSelector": {"zone": "a"}}, node({"zone": "a"}), ""),
        ({"nodeSelector": {"zone": "b"}}, node({"zone": "a"}), "does not have zone=b"),
        ({"affinity": AFFINE}, node({"zone": "a"}), "does not match the node affinity"),
        ({"affinity": AFFINE}, node({"zone": "b"}), ""),
        ({}, node(taints=[{"key": "own", "value": "x", "effect": "NoSchedule"}]), "taint own of node n1"),
        ({}, node(taints=[{"key": "own", "effect": "PreferNoSchedule"}]), ""),
        (
            {"tolerations": [{"key": "own", "value": "x"}]},
            node(taints=[{"key": "own", "value": "x", "effect": "NoSchedule"}]),
            "",
        ),
    ],
)
def test_a_vm_leaves_a_node_that_does_not_fit(spec: Obj, where: NodeRecord, why: str) -> None:
    told = placement.move({"spec": spec}, where)
    assert why in told
    assert bool(told) == bool(why)


def test_placement_follows_and_needs_no_restart() -> None:
    vmi = instance(nodeSelector={"zone": "a", "disk": "ssd"})
    edited = template(nodeSelector={"zone": "b"}, affinity=AFFINE)
    found = liveupdate.follow(vmi, edited, CLUSTER)
    after = merged(vmi["spec"], found.spec)
    assert (after["nodeSelector"], after["affinity"]) == ({"zone": "b"}, AFFINE)
    assert set(found.pending) == {"MigrationRequired"}
    started, now = ({"template": {"spec": spec}} for spec in (template(nodeSelector={"zone": "a"}), edited))
    assert templates.template_changes(started, now, after) == []
    assert not liveupdate.follow({**vmi, "spec": after}, edited, CLUSTER).spec


# --- the Pod


def test_only_what_differs_is_asked_of_a_pod() -> None:
    has = {"requests": {"cpu": "1000m", "memory": "1Gi", "example.org/x": "1"}, "limits": {"memory": "2Gi"}}
    wanted = {"requests": {"cpu": "1", "memory": "2048Mi"}, "limits": {"memory": "2Gi"}}
    assert sizes.changed(has, wanted) == {"requests": {"memory": "2048Mi"}}
    assert sizes.fixed({"requests": {"memory": "1", "hugepages-2Mi": "2Mi"}}) == ["hugepages-2Mi"]


def test_a_pod_has_enough_where_its_node_says_so_but_for_rounded_processors() -> None:
    wanted = {"requests": {"cpu": "100m", "memory": "1Gi"}}
    assert sizes.enough({"requests": {"cpu": "99m", "memory": "1Gi"}}, wanted)
    assert not sizes.enough({"requests": {"cpu": "50m", "memory": "1Gi"}}, wanted)
    assert not sizes.enough({"requests": {"cpu": "100m", "memory": "512Mi"}}, wanted)
    assert not sizes.enough({}, wanted)


@given(AMOUNTS, AMOUNTS, AMOUNTS, AMOUNTS)
def test_a_vm_has_been_given_all_only_where_both_sizes_are_there(s: int, g: int, now: int, asked: int) -> None:
    vmi = instance(s, f"{g}Gi", most=64, most_guest="64Gi")
    vmi["status"]["currentCPUTopology"]["sockets"] = now
    vmi["status"]["memory"]["guestRequested"] = f"{asked}Gi"
    assert sizes.given(read(VMI, vmi)) == (now >= s and asked >= g)
