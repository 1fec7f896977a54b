"""What a guest is told by DHCPv6 and by router advertisement, packet by packet."""

from __future__ import annotations

import struct
from ipaddress import IPv6Address

import pytest
from hypothesis import given
from hypothesis import strategies as st

from virtfleet.launcher.guestnet.dhcp6 import Kind, Option, Options, decoded, encoded, reply
from virtfleet.launcher.guestnet.network import advertisement
from virtfleet.protocol.messages import Lease6

LEASE = Lease6(device="k6t-eth0", address="fd10:0:2::2/120", dns=["fd09::53"], search=["a.example"], mtu=1400)
OWN, FOREIGN = IPv6Address("fd10:0:2::2").packed, IPv6Address("fd00::9").packed
CLIENT: tuple[int, bytes] = (Option.CLIENT_ID, b"\0\3\0\1guest!")
ASSOCIATION: tuple[int, bytes] = (Option.IDENTITY, b"iaid" + bytes(8))


def ask(kind: Kind, *options: tuple[int, bytes]) -> tuple[int, dict[int, bytes]]:
    answer = reply(LEASE, bytes([kind]) + b"abc" + encoded([CLIENT, *options]))
    assert answer is not None
    assert answer[1:4] == b"abc"
    found = dict(decoded(answer[4:]))
    assert found[Option.CLIENT_ID] == CLIENT[1]
    return answer[0], found


def association(*addresses: bytes) -> tuple[int, bytes]:
    held: Options = [(int(Option.ADDRESS), address + bytes(8)) for address in addresses]
    return Option.IDENTITY, b"iaid" + bytes(8) + encoded(held)


def lifetimes(identity: bytes) -> dict[bytes, int]:
    assert identity[:4] == b"iaid"
    return {v[:16]: struct.unpack("!I", v[20:24])[0] for o, v in decoded(identity[12:]) if o == Option.ADDRESS}


def test_a_client_is_offered_its_address_and_gets_it_for_good() -> None:
    kind, offered = ask(Kind.SOLICIT, ASSOCIATION)
    assert (kind, lifetimes(offered[Option.IDENTITY])) == (Kind.ADVERTISE, {OWN: 0xFFFFFFFF})
    kind, given_ = ask(Kind.REQUEST, ASSOCIATION, (Option.SERVER_ID, offered[Option.SERVER_ID]))
    assert (kind, lifetimes(given_[Option.IDENTITY])) == (Kind.REPLY, {OWN: 0xFFFFFFFF})
    assert given_[Option.DNS] == IPv6Address("fd09::53").packed
    assert given_[Option.SEARCH] == b"\1a\7example\0"


def test_a_client_in_a_hurry_gets_it_at_once() -> None:
    kind, answer = ask(Kind.SOLICIT, ASSOCIATION, (Option.RAPID_COMMIT, b""))
    assert kind == Kind.REPLY
    assert Option.RAPID_COMMIT in answer


@pytest.mark.parametrize("kind", [Kind.RENEW, Kind.REBIND])
def test_an_address_from_elsewhere_is_over(kind: Kind) -> None:
    _, answer = ask(kind, association(FOREIGN))
    assert lifetimes(answer[Option.IDENTITY]) == {FOREIGN: 0, OWN: 0xFFFFFFFF}


@pytest.mark.parametrize(("address", "status"), [(OWN, 0), (FOREIGN, 4)])
def test_a_client_that_comes_back_learns_whether_its_address_still_holds(address: bytes, status: int) -> None:
    _, answer = ask(Kind.CONFIRM, association(address))
    assert answer[Option.STATUS] == struct.pack("!H", status)


def test_a_client_without_need_of_an_address_gets_the_rest() -> None:
    kind, answer = ask(Kind.INFORMATION_REQUEST)
    assert kind == Kind.REPLY
    assert Option.IDENTITY not in answer
    assert Option.DNS in answer


def test_what_is_given_back_is_taken_back() -> None:
    assert ask(Kind.RELEASE, association(OWN))[1][Option.STATUS] == b"\0\0"


def test_what_is_meant_for_another_server_is_left_alone() -> None:
    request = bytes([Kind.REQUEST]) + b"abc" + encoded([CLIENT, ASSOCIATION, (Option.SERVER_ID, b"another")])
    assert reply(LEASE, request) is None


@given(st.binary(max_size=200))
def test_no_packet_upsets_the_server(packet: bytes) -> None:
    answer = reply(LEASE, packet)
    assert answer is None or answer[0] in (Kind.ADVERTISE, Kind.REPLY)


def test_the_advertisement_names_router_prefix_mtu_and_name_servers() -> None:
    packet = advertisement(LEASE)
    kind, _, _, _, flags, lifetime = struct.unpack_from("!BBHBBH", packet)
    assert (kind, flags) == (134, 0xC0), "address and the rest by DHCPv6"
    assert lifetime > 0, "a default router"
    options = {}
    rest = packet[16:]
    while rest:
        length = rest[1] * 8
        options[rest[0]], rest = rest[:length], rest[length:]
    assert options[3][2:4] == bytes([120, 0x80]), "on the link, but not to choose addresses from"
    assert options[3][16:] == IPv6Address("fd10:0:2::").packed
    assert struct.unpack("!I", options[5][4:]) == (1400,)
    assert options[25][8:] == IPv6Address("fd09::53").packed
