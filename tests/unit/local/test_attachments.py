"""What Pods ask to be attached to, and what definitions of networks say: read as Multus reads it, and bounded."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from virtfleet.local.node.attachments import MOST, Config, Request, Unusable, config, requested
from virtfleet.pods.networks import NETWORKS

BRIDGE = {"cniVersion": "0.3.1", "name": "blue", "type": "bridge"}
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=12), inner, max_size=4),
    max_leaves=20,
)


def pod(annotation: Any) -> dict[str, Any]:
    text = annotation if isinstance(annotation, str) else json.dumps(annotation)
    return {"metadata": {"name": "p", "namespace": "mine", "uid": "u", "annotations": {NETWORKS: text}}}


def test_networks_are_named_in_both_ways() -> None:
    assert requested({"metadata": {"namespace": "mine"}}) == []
    assert requested(pod("blue, default/red@fast")) == [
        Request("mine", "blue", "net1"),
        Request("default", "red", "fast"),
    ]
    whole = [{"name": "blue", "namespace": "mine", "interface": "pod1", "mac": "02:00:00:00:00:0A"}]
    assert requested(pod(whole)) == [Request("mine", "blue", "pod1", "02:00:00:00:00:0a")]


@pytest.mark.parametrize(
    ("asked", "why"),
    [
        ([{"name": "blue", "namespace": "theirs"}], "use one of mine or of default"),
        ([{"name": "../blue"}], "no name of a NetworkAttachmentDefinition"),
        ([{"name": "blue", "interface": "eth0"}], "no interface can be called 'eth0'"),
        ([{"name": "blue", "interface": "a b"}], "no interface can be called"),
        ([{"name": "blue", "interface": "x type veth peer"}], "no interface can be called"),
        ([{"name": "blue", "interface": "a" * 16}], "no interface can be called"),
        ([{"name": "blue", "mac": "01:00:00:00:00:00"}], "no hardware address"),
        ([{"name": "blue", "mac": "02:00:00:00:00:00 up"}], "no hardware address"),
        ([{"name": "blue", "ips": ["10.0.0.1"]}], "ips"),
        ([{"name": "blue", "interface": "a"}, {"name": "red", "interface": "a"}], "names an interface twice"),
        ([{"name": f"n{i}"} for i in range(MOST + 1)], f"{MOST} are possible"),
        ("[" * 50_000, "cannot be read"),
        ("x" * 70_000, "shorten it"),
        ("{}", "cannot be read"),
        ("blue@eth0", "no interface can be called"),
    ],
)
def test_what_nobody_may_have_is_refused(asked: Any, why: str) -> None:
    with pytest.raises(Unusable, match=why):
        requested(pod(asked))


@given(JSON | st.text(max_size=200))
def test_no_annotation_is_anything_but_read_or_refused(asked: Any) -> None:
    try:
        found = requested(pod(asked))
    except Unusable:
        return
    assert all(len(each.interface) <= 15 and each.namespace in ("mine", "default") for each in found)


def test_a_bridge_has_addresses_where_its_definition_says_so() -> None:
    assert config(json.dumps(BRIDGE)) == Config()
    assert config(json.dumps({**BRIDGE, "mtu": 9000, "bridge": "br1", "ipam": {}})) == Config(9000)
    assert config(json.dumps({"plugins": [BRIDGE, {"type": "tuning"}]})) == Config()
    local = config(json.dumps({**BRIDGE, "ipam": {"type": "host-local", "subnet": "10.1.0.0/29"}}))
    taken: list[str] = []
    while len(taken) < 5:
        taken.append(local.pools[0].choose(taken))
    assert taken == [f"10.1.0.{n}/29" for n in (2, 3, 4, 5, 6)], "neither the network, nor its gateway or broadcast"
    with pytest.raises(Unusable, match="no address is free"):
        local.pools[0].choose(taken)
    both = [[{"subnet": "10.1.0.0/24", "rangeStart": "10.1.0.9"}], [{"subnet": "fd00::/64"}]]
    ranges = config(json.dumps({**BRIDGE, "ipam": {"type": "host-local", "ranges": both}})).pools
    assert [pool.choose([]) for pool in ranges] == ["10.1.0.9/24", "fd00::2/64"]


@pytest.mark.parametrize(
    ("said", "why"),
    [
        (None, "is empty"),
        ("", "is empty"),
        ("{", "cannot be read"),
        ("[]", "cannot be read"),
        ('{"type": "bridge", "x": ' + "[" * 20_000 + "]" * 20_000 + "}", "cannot be read"),
        ("x" * 70_000, "shorten it"),
        ({"type": "macvlan"}, "use one of type bridge"),
        ({"plugins": []}, "use one of type bridge"),
        ({"plugins": [BRIDGE, {"type": "firewall"}]}, "type firewall"),
        ({"plugins": "bridge"}, "use one of type bridge"),
        ({**BRIDGE, "isGateway": True}, "isGateway is not done"),
        ({**BRIDGE, "vlan": 7}, "vlan is not done"),
        ({**BRIDGE, "macspoofchk": True}, "macspoofchk is not done"),
        ({**BRIDGE, "mtu": 1 << 40}, "mtu"),
        ({**BRIDGE, "mtu": "1500 up"}, "mtu"),
        ({**BRIDGE, "ipam": {"type": "dhcp"}}, "use host-local"),
        ({**BRIDGE, "ipam": {"type": "host-local"}}, "write subnet"),
        ({**BRIDGE, "ipam": {"type": "host-local", "subnet": "10.0.0.0/32"}}, "no room"),
        ({**BRIDGE, "ipam": {"type": "host-local", "subnet": "10.0.0.0/24", "rangeEnd": "11.0.0.1"}}, "not a range"),
        ({**BRIDGE, "ipam": {"type": "host-local", "subnet": "x; reboot"}}, "ipam"),
        ({**BRIDGE, "ipam": {"type": "host-local", "subnet": "10.0.0.0/24", "routes": [{}]}}, "routes"),
        ({**BRIDGE, "ipam": {"type": "static", "addresses": [{"address": "1.2.3.4/24"}]}}, "addresses"),
    ],
)
def test_what_a_definition_asks_for_and_is_not_done_is_refused(said: Any, why: str) -> None:
    with pytest.raises(Unusable, match=why):
        config(said if said is None or isinstance(said, str) else json.dumps(said))


@given(st.dictionaries(st.sampled_from(["type", "plugins", "ipam", "mtu", "vlan"]), JSON | st.just("bridge")))
def test_no_definition_is_anything_but_read_or_refused(said: dict[str, Any]) -> None:
    try:
        found = config(json.dumps(said))
    except Unusable:
        return
    assert 576 <= found.mtu <= 65535
