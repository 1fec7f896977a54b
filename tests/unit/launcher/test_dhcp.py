"""What a guest hears by DHCP."""

from __future__ import annotations

import struct

from hypothesis import given
from hypothesis import strategies as st

from virtfleet.launcher.guestnet.dhcp import reply
from virtfleet.protocol.messages import Lease

MAC = "02:00:00:00:00:01"
LEASE = Lease(
    device="k6t-eth0",
    mac=MAC,
    address="10.0.2.2/24",
    server="10.0.2.1",
    routers=["10.0.2.1"],
    dns=["10.96.0.10"],
    search=["default.svc.cluster.local", "svc.cluster.local"],
    mtu=1450,
    hostname="guest",
)
DISCOVER, OFFER, REQUEST, ACK, NAK, RELEASE, INFORM = 1, 2, 3, 5, 6, 7, 8


def question(kind: int, mac: str = MAC, **options: bytes) -> bytes:
    """A client's packet; options by `oNUMBER`."""
    hardware = bytes.fromhex(mac.replace(":", "")).ljust(16, b"\0")
    header = struct.pack(
        "!BBBBIHH16s16s192x4s", 1, 1, 6, 0, 0xCAFE, 0, 0x8000, bytes(16), hardware, b"\x63\x82\x53\x63"
    )
    extra = b"".join(bytes([int(name[1:]), len(value)]) + value for name, value in options.items())
    return header + bytes([53, 1, kind]) + extra + b"\xff"


def options(packet: bytes | None) -> dict[int, bytes]:
    assert packet is not None
    found: dict[int, bytes] = {}
    data = packet[240:]
    while data[0] != 255:
        found[data[0]] = found.get(data[0], b"") + data[2 : 2 + data[1]]
        data = data[2 + data[1] :]
    return found


def test_a_guest_that_looks_for_a_server_is_offered_its_address() -> None:
    answer = reply(LEASE, question(DISCOVER))
    assert answer is not None
    assert answer[4:8] == struct.pack("!I", 0xCAFE)
    assert answer[16:20] == bytes([10, 0, 2, 2])
    told = options(answer)
    assert told[53] == bytes([OFFER])
    assert told[1] == bytes([255, 255, 255, 0])
    assert told[3] == told[54] == bytes([10, 0, 2, 1])
    assert told[6] == bytes([10, 96, 0, 10])
    assert told[12] == b"guest"
    assert told[15] == b"default.svc.cluster.local"
    assert told[26] == struct.pack("!H", 1450)
    assert told[51] == b"\xff\xff\xff\xff"
    assert told[119].endswith(b"\x03svc\x07cluster\x05local\x00")


def test_a_guest_that_asks_for_its_address_gets_it() -> None:
    assert options(reply(LEASE, question(REQUEST, o50=bytes([10, 0, 2, 2]))))[53] == bytes([ACK])


def test_a_guest_that_asks_for_another_address_is_told_no_and_nothing_else() -> None:
    answer = reply(LEASE, question(REQUEST, o50=bytes([10, 0, 2, 9])))
    assert options(answer) == {53: bytes([NAK]), 54: bytes([10, 0, 2, 1])}
    assert answer is not None
    assert answer[16:20] == bytes(4)


def test_somebody_elses_questions_are_not_answered() -> None:
    assert reply(LEASE, question(DISCOVER, mac="02:00:00:00:00:02")) is None
    assert reply(LEASE, question(REQUEST, o54=bytes([10, 0, 2, 7]))) is None
    assert reply(LEASE, question(RELEASE)) is None


def test_a_guest_with_an_address_of_its_own_is_told_the_rest() -> None:
    told = options(reply(LEASE, question(INFORM)))
    assert 51 not in told
    assert told[6] == bytes([10, 96, 0, 10])


def test_routes_are_written_with_as_many_bytes_as_their_prefix_needs() -> None:
    lease = Lease(mac=MAC, address="10.1.0.5/16", server="169.254.75.10", routes=[("0.0.0.0/0", "10.1.0.1")])
    assert options(reply(lease, question(DISCOVER)))[121] == bytes([0, 10, 1, 0, 1])
    lease = Lease(mac=MAC, address="10.1.0.5/16", server="169.254.75.10", routes=[("192.168.8.0/22", "10.1.0.1")])
    assert options(reply(lease, question(DISCOVER)))[121] == bytes([22, 192, 168, 8, 10, 1, 0, 1])


def test_long_options_are_split_and_come_together_again() -> None:
    domains = [f"{'a' * 60}.example{n}.org" for n in range(8)]
    lease = Lease(mac=MAC, address="10.0.2.2/24", server="10.0.2.1", search=domains)
    assert options(reply(lease, question(DISCOVER)))[119].count(b"\x03org\x00") == len(domains)


def test_only_private_options_can_be_added() -> None:
    lease = Lease(mac=MAC, address="10.0.2.2/24", server="10.0.2.1", options={240: "private", 53: "x"})
    told = options(reply(lease, question(DISCOVER)))
    assert told[240] == b"private"
    assert told[53] == bytes([OFFER])


@given(st.binary(max_size=400))
def test_rubbish_is_not_answered(data: bytes) -> None:
    assert reply(LEASE, data) is None


@given(st.binary(max_size=64))
def test_rubbish_options_do_no_harm(data: bytes) -> None:
    reply(LEASE, question(DISCOVER)[:-1] + data)
