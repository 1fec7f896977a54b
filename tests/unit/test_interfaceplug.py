"""Interfaces that come and go: what an edited template makes of a running VMI, its Pod, and what needs a migration."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from virtfleet.api import interfaceplug
from virtfleet.api.view import read
from virtfleet.api.vmi import VirtualMachineInstance as VMI
from virtfleet.controller import connections, templates
from virtfleet.handler.network.networks import requests
from virtfleet.handler.network.plan import Link, plan, undo
from virtfleet.handler.vms.preparation import connected, without_awaited
from virtfleet.pods.networks import NETWORKS, attachments, pod_interface

Obj = dict[str, Any]
POD: Obj = {"name": "default", "pod": {}}
SHARED: Obj = {"name": "default", "masquerade": {}}


def nic(name: str = "blue", **fields: Any) -> Obj:
    return {"name": name, "bridge": {}, **fields}


def net(name: str = "blue", definition: str = "") -> Obj:
    return {"name": name, "multus": {"networkName": definition or name}}


def spec(*pairs: tuple[Obj, Obj]) -> Obj:
    return {
        "networks": [POD, *(network for network, _ in pairs)],
        "domain": {"devices": {"interfaces": [SHARED, *(interface for _, interface in pairs)]}},
    }


BLUE = (net(), nic())
GOING = (net(), nic(state="absent"))


def declared(now: Obj, template: Obj, *attached: str, moves: bool = True) -> Obj:
    return interfaceplug.as_declared(now, template, attached, moves=moves)


def test_what_the_template_adds_comes_to_the_running_vmi_once() -> None:
    once = declared(spec(), spec(BLUE))
    assert once == spec(BLUE)
    assert not interfaceplug.differs(declared(once, spec(BLUE)), once)


@pytest.mark.parametrize(
    ("network", "interface"),
    [
        ({"name": "blue", "pod": {}}, nic()),
        ({"name": "blue", "multus": {"networkName": "x", "default": True}}, nic()),
        (net(), {"name": "blue", "sriov": {}}),
        (net(), nic(state="absent")),
    ],
)
def test_what_cannot_be_plugged_waits_for_a_restart(network: Obj, interface: Obj) -> None:
    assert not interfaceplug.differs(declared(spec(), spec((network, interface))), spec())


def test_an_interface_goes_when_nobody_has_it_and_comes_again_only_then() -> None:
    going = declared(spec(BLUE), spec(GOING), "blue")
    assert going == spec(GOING)
    assert declared(going, spec(BLUE), "blue") == spec(GOING), "what goes, goes"
    assert declared(going, spec(GOING)) == spec()
    assert interfaceplug.without_gone(spec(GOING), ["default", "blue"]) is None
    assert interfaceplug.without_gone(spec(GOING), ["default"]) == spec()


def test_links_are_switched_and_networks_changed_where_the_vm_moves() -> None:
    down = (net(), nic(state="down"))
    assert declared(spec(BLUE), spec(down), "blue") == spec(down)
    assert declared(spec(down), spec(BLUE), "blue") == spec(BLUE)
    red = (net(definition="red"), nic())
    assert declared(spec(BLUE), spec(red), "blue") == spec(red)
    assert declared(spec(BLUE), spec(red), "blue", moves=False) == spec(BLUE)


@pytest.mark.parametrize(
    ("started", "running", "now", "restart"),
    [
        (spec(), spec(BLUE), spec(BLUE), False),
        (spec(), spec(), spec(BLUE), True),
        (spec(BLUE), spec(GOING), spec(GOING), False),
        (spec(BLUE), spec(), spec(), False),
        (spec(BLUE), spec(BLUE), spec(), True),
        (spec(BLUE), spec(BLUE), spec((net(), nic(macAddress="02:00:00:00:00:01"))), True),
        (spec(), spec(BLUE), spec((net(), nic(macAddress="02:00:00:00:00:01"))), True),
        # What the template leaves open is in the running VMI.
        (spec(BLUE), spec((net(), nic(model="virtio", state="down"))), spec((net(), nic(state="down"))), False),
        (spec(BLUE), spec((net(definition="red"), nic())), spec((net(definition="red"), nic())), False),
        (spec(BLUE, (net("b"), nic("b"))), spec(BLUE, (net("b"), nic("b"))), spec((net("b"), nic("b")), BLUE), False),
    ],
)
def test_a_restart_is_required_for_what_the_running_vmi_has_not(
    started: Obj, running: Obj, now: Obj, restart: bool
) -> None:
    changes = templates.template_changes({"template": {"spec": started}}, {"template": {"spec": now}}, running)
    assert bool(changes) == restart, changes


# --- the Pod


def vmi(*pairs: tuple[Obj, Obj], interfaces: list[Obj] | None = None, **more: Any) -> VMI:
    meta = {"name": "vm", "namespace": "mine", "uid": "u1"}
    return read(VMI, {"metadata": meta, "spec": spec(*pairs), "status": {"interfaces": interfaces or [], **more}})


def test_a_pod_is_asked_for_what_is_in_use() -> None:
    [asked] = json.loads(attachments(vmi(BLUE))[NETWORKS])
    assert asked == {"name": "blue", "namespace": "mine", "interface": "pod16477688c0e"}
    assert pod_interface("blue") == "pod16477688c0e", "KubeVirt's name for it"
    assert attachments(vmi(GOING)) == {}
    assert attachments(vmi(GOING), ["blue"]) == attachments(vmi(BLUE))


def test_another_pod_takes_what_its_own_has_not() -> None:
    coming, there = vmi(BLUE), vmi(BLUE, interfaces=[{"name": "blue", "infoSource": "domain"}])
    assert connections.awaited(coming) == ["blue"] and not connections.awaited(there)
    assert not connections.awaited(vmi(GOING))
    red = (net(definition="red"), nic())
    elsewhere, present = vmi(red, interfaces=[{"name": "blue"}]), connections.wanted(there)
    assert connections.moved(elsewhere, present) == ["mine/red"]
    assert connections.requested(connections.wanted(elsewhere), present) == present, "a running Pod keeps its networks"
    asked = attachments(there)[NETWORKS]
    meta = {"name": "vm", "namespace": "mine", "uid": "u1"}
    for pairs, status, why in (
        (BLUE, [], "interface blue"),
        (red, [{"name": "blue"}], "mine/red"),
        (BLUE, [{"name": "blue"}], ""),
    ):
        said = connections.move({"metadata": meta, "spec": spec(pairs), "status": {"interfaces": status}}, asked)
        assert why in said and bool(said) == bool(why)


def test_an_annotation_of_somebody_else_is_not_believed() -> None:
    assert connections.read_networks("blue@net1") == []
    assert connections.read_networks('{"name": "x"}') == []
    assert msgspec.json.encode(connections.wanted(vmi(BLUE))) == attachments(vmi(BLUE))[NETWORKS].encode()


# --- the node


def test_a_launcher_is_not_told_of_what_has_not_come() -> None:
    both = vmi(BLUE, (net("red"), nic("red")), interfaces=[{"name": "red", "infoSource": "domain, multus-status"}])
    assert connected(both) == ["red"]
    told = without_awaited({"spec": spec(BLUE, (net("red"), nic("red")))}, both, connected(both))
    assert [i["name"] for i in told["spec"]["domain"]["devices"]["interfaces"]] == ["default", "red"]


def test_what_was_set_up_is_given_back_wherever_it_stopped() -> None:
    [request] = requests(vmi(GOING), absent=True)
    assert not [each for each in requests(vmi(GOING)) if each.name == "blue"]
    link = Link(request.link, "02:00:00:00:00:01", 1500, ["10.7.0.2/24"])
    made = plan([request], {request.link: link}, ["lo", request.link]).commands
    assert f"link set {request.link} name {request.moved}" in made
    kinds = {request.link: "bridge", request.moved: "veth", request.tap: "tun", request.bridge: "bridge"}
    whole = undo(request, link, kinds)
    assert whole[:3] == [f"link delete dev {name}" for name in (request.link, request.tap, request.bridge)]
    assert f"link set dev {request.moved} name {request.link}" in whole
    assert undo(request, link, {request.link: "veth"}) == [], "it is given back already"
    gone = undo(request, link, {request.link: "bridge", request.bridge: "bridge"})
    assert gone == [f"link delete dev {request.link}", f"link delete dev {request.bridge}"], "its maker was faster"


def test_a_guest_keeps_the_address_that_it_had_on_a_secondary_network() -> None:
    devices = [{"name": "interface/virtio-non-transitional/blue", "address": "", "mac": "02:00:00:00:00:09"}]
    assert requests(vmi(BLUE))[1].mac == "", "the Pod's, at first"
    assert requests(vmi(BLUE, guestABI={"devices": devices}))[1].mac == "02:00:00:00:00:09"
