"""Plans for the guest's network, and what guest and status are told of it."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from virtfleet.api.view import read
from virtfleet.api.vmi import VirtualMachineInstance as VMI
from virtfleet.handler.network import networks as network
from virtfleet.handler.network import plan as netplan
from virtfleet.handler.network.networks import Resolver, requests
from virtfleet.handler.network.plan import InterfaceRequest, Link, Route

ETH0 = Link("eth0", "0a:00:00:00:00:01", 1450, ["10.244.1.7/24"], [Route("0.0.0.0/0", "10.244.1.1")])
BOTH = Link("eth0", "0a:00:00:00:00:01", 1450, ["10.244.1.7/24", "fd00::7/64"])


def vmi(
    binding: str = "masquerade",
    *,
    multus: bool = False,
    queues: bool = False,
    pod: dict[str, str] | None = None,
    **interface: Any,
) -> VMI:
    source: dict[str, Any] = {"multus": {"networkName": "blue"}} if multus else {"pod": pod or {}}
    devices = {
        "interfaces": [{"name": "default", binding: {}, **interface}],
        "networkInterfaceMultiqueue": queues,
    }
    spec = {
        "domain": {"devices": devices, "cpu": {"cores": 4}},
        "networks": [{"name": "default", **source}],
    }
    return read(VMI, {"metadata": {"name": "vm", "namespace": "default", "uid": "u1"}, "spec": spec})


def test_masquerade_puts_a_tap_and_a_private_address_behind_a_bridge() -> None:
    made = netplan.plan(requests(vmi()), {"eth0": ETH0}, ["lo", "eth0"])
    assert made.commands == [
        "link add k6t-eth0 address 02:00:00:00:00:00 mtu 1450 type bridge",
        "tuntap add dev tap0 mode tap user 107 vnet_hdr",
        "link set tap0 mtu 1450 master k6t-eth0 up",
        "link set k6t-eth0 up",
        "addr replace 10.0.2.1/24 dev k6t-eth0",
    ]
    assert made.sysctls["net/ipv4/ip_forward"] == "1"
    assert "table ip6" not in made.rules, "the Pod has no IPv6"


def test_bits_of_an_address_in_a_network_are_overlooked() -> None:
    (nic,) = requests(vmi(pod={"vmNetworkCIDR": "10.9.8.7/24", "vmIPv6NetworkCIDR": "fd10:0:2::2/120"}))
    assert (nic.guests, nic.guests6) == ("10.9.8.0/24", "fd10:0:2::/120")


def test_a_plan_makes_no_link_twice() -> None:
    wanted = requests(vmi())
    again = netplan.plan(wanted, {"eth0": ETH0}, ["lo", "eth0", "k6t-eth0", "tap0"])
    assert not [command for command in again.commands if " add " in command]


def test_both_families_are_translated_where_the_pod_has_both() -> None:
    made = netplan.plan(requests(vmi()), {"eth0": BOTH}, ["eth0"])
    assert "addr replace fd10:0:2::1/120 dev k6t-eth0 nodad" in made.commands
    assert "table ip6 kubevirt" in made.rules
    assert made.sysctls["net/ipv6/conf/all/forwarding"] == "1"


def test_a_network_is_read_as_kubevirt_reads_it() -> None:
    """Zeros before a number and bits after the prefix mean nothing."""
    asked = vmi()
    pod = asked.spec.networks[0].pod
    assert pod is not None
    pod.vm_network_cidr, pod.vm_ipv6_network_cidr = "10.10.010.7/24", "fd10:0:2::2/120"
    made = netplan.plan(requests(asked), {"eth0": BOTH}, ["eth0"])
    assert "addr replace 10.10.10.1/24 dev k6t-eth0" in made.commands
    assert "addr replace fd10:0:2::1/120 dev k6t-eth0 nodad" in made.commands
    (wired,) = network.wired(asked, {"eth0": BOTH})
    assert wired.lease and wired.lease.address == "10.10.10.2/24"
    assert wired.lease6 and wired.lease6.address == "fd10:0:2::2/120"


def test_ports_limit_what_reaches_the_guest() -> None:
    ports = [{"port": 80}, {"port": 443, "protocol": "TCP"}, {"port": 53, "protocol": "UDP"}]
    ranges = [{"start": 8000, "end": 8010, "protocol": "TCP"}]
    made = netplan.plan(requests(vmi(ports=ports, portRanges=ranges)), {"eth0": ETH0}, ["eth0"])
    assert 'iifname "eth0" tcp dport { 80, 443, 8000-8010 } dnat to 10.0.2.2' in made.rules
    assert 'iifname "eth0" udp dport { 53 } dnat to 10.0.2.2' in made.rules


def test_a_bridged_guest_takes_the_place_of_the_pod() -> None:
    made = netplan.plan(requests(vmi("bridge")), {"eth0": ETH0}, ["lo", "eth0"])
    assert made.rules == ""
    assert made.commands[4:7] == ["link set eth0 down", "link set eth0 name eth0-nic", "link add eth0 type bridge"]
    assert "addr replace 10.244.1.7/24 dev eth0" in made.commands
    assert "addr replace 169.254.75.10/32 dev k6t-eth0" in made.commands


@pytest.mark.parametrize(
    ("present", "expected"),
    [(["eth0-nic", "eth0"], []), (["eth0-nic"], ["link add eth0 type bridge"])],
)
def test_taking_over_goes_on_where_it_stopped(present: list[str], expected: list[str]) -> None:
    made = netplan.plan(requests(vmi("bridge")), {"eth0": ETH0}, present)
    assert [c for c in made.commands if c.startswith("link add eth0 ") or "name" in c] == expected


def test_secondary_networks_have_links_of_their_own_with_names_the_kernel_takes() -> None:
    (nic,) = requests(vmi("bridge", multus=True))
    names = {nic.link, nic.bridge, nic.tap, nic.moved}
    assert len(names) == 4
    assert all(len(name) <= 15 for name in names)


def test_several_queues_need_a_tap_that_has_them() -> None:
    made = netplan.plan(requests(vmi(queues=True)), {"eth0": ETH0}, ["eth0"])
    assert "tuntap add dev tap0 mode tap user 107 vnet_hdr multi_queue" in made.commands


def test_a_card_that_has_one_queue_gets_a_tap_with_one() -> None:
    """libvirt opens it without more, which the kernel refuses for a tap of several queues."""
    (wanted,) = requests(vmi(queues=True, model="e1000"))
    assert wanted.queues == 0
    assert "tuntap add dev tap0 mode tap user 107 vnet_hdr" in netplan.plan([wanted], {"eth0": ETH0}, ["eth0"]).commands


def test_a_guest_keeps_its_hardware_address() -> None:
    (first,), (again,) = requests(vmi()), requests(vmi())
    assert first.mac == again.mac
    assert first.mac.startswith("02:")
    (own,) = requests(vmi(macAddress="AA-BB-CC-00-11-22"))
    assert own.mac == "aa:bb:cc:00:11:22"


def test_interfaces_that_are_to_go_or_do_not_use_the_namespace_are_not_wired() -> None:
    assert requests(vmi(state="absent")) == []
    assert requests(vmi("sriov")) == []


def test_a_masqueraded_guest_is_told_its_private_address() -> None:
    (found,) = network.wired(vmi(), {"eth0": ETH0}, Resolver(["10.96.0.10", "fd00::a"], ["svc.cluster.local"]))
    assert found.addresses == ["10.244.1.7"], "what the cluster reaches it by"
    assert found.lease
    assert (found.lease.address, found.lease.server, found.lease.routers) == ("10.0.2.2/24", "10.0.2.1", ["10.0.2.1"])
    assert found.lease.dns == ["10.96.0.10"]
    assert (found.lease.mtu, found.lease.hostname, found.lease.mac) == (1450, "vm", found.mac)


def test_a_bridged_guest_is_told_the_pods_address_and_routes() -> None:
    link = Link(
        "eth0",
        "0a:00:00:00:00:01",
        1450,
        ["10.244.1.7/32"],
        [Route("0.0.0.0/0", "10.244.0.1"), Route("10.244.0.1/32")],
    )
    (found,) = network.wired(vmi("bridge"), {"eth0": link})
    assert found.lease
    assert found.mac == link.mac
    assert (found.lease.address, found.lease.server) == ("10.244.1.7/32", "169.254.75.10")
    assert found.lease.routers == ["10.244.0.1"]
    assert found.lease.routes == [("10.244.0.1/32", "0.0.0.0"), ("0.0.0.0/0", "10.244.0.1")]


def test_routes_that_the_address_implies_are_not_told() -> None:
    link = Link("eth0", "m", 1500, ["10.1.0.5/24"], [Route("10.1.0.0/24"), Route("0.0.0.0/0", "10.1.0.1")])
    (found,) = network.wired(vmi("bridge"), {"eth0": link})
    assert found.lease
    assert found.lease.routes == []


def test_the_guest_hears_what_the_vmi_wants_it_to() -> None:
    options = {
        "bootFileName": "pxelinux.0",
        "tftpServerName": "10.0.0.9",
        "ntpServers": ["10.0.0.3", "0127.0.0.3"],
        "privateOptions": [{"option": 240, "value": "x"}],
    }
    (found,) = network.wired(vmi(dhcpOptions=options), {"eth0": ETH0})
    assert found.lease
    assert found.lease.boot_file == "pxelinux.0"
    assert found.lease.options == {240: "x"}
    assert found.lease.ntp == ["10.0.0.3", "127.0.0.3"]


def test_a_pod_without_ipv4_gives_no_lease() -> None:
    (found,) = network.wired(vmi(), {"eth0": Link("eth0", "m", 1500, ["fd00::7/64"])})
    assert found.lease is None


def test_name_servers_come_from_the_pod() -> None:
    servers = "nameserver 10.96.0.10\nnameserver 01.1.1.1\nnameserver\nnameserver gateway\n"
    text = f"{servers}search a.local\nsearch ns.svc.cluster.local cluster.local\noptions ndots:5\n"
    assert network.resolver(text) == Resolver(["10.96.0.10", "1.1.1.1"], ["ns.svc.cluster.local", "cluster.local"])


def test_wishes_travel_as_json() -> None:
    wanted = requests(vmi(ports=[{"port": 80}]))
    assert msgspec.json.decode(msgspec.json.encode(wanted), type=list[InterfaceRequest]) == wanted


def test_a_connection_that_came_with_the_guest_is_the_guests_whatever_its_port() -> None:
    goes_on = 'iifname "eth0" tcp flags & (syn | rst) == 0 dnat to 10.0.2.2'
    limited = netplan.plan(requests(vmi(ports=[{"port": 80}])), {"eth0": ETH0}, ["eth0"])
    assert goes_on in limited.rules
    assert goes_on not in netplan.plan(requests(vmi()), {"eth0": ETH0}, ["eth0"]).rules, "everything is"
