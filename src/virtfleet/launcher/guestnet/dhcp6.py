"""DHCPv6 for the one guest beside this launcher: its address, name servers and search domains (RFC 8415).

As with DHCP, the handler decided the address. Whoever asks on the bridge is the guest, so nobody is told apart; the
default route is no part of DHCPv6 and comes by router advertisement.
"""

from __future__ import annotations

import enum
import ipaddress
import struct
from collections.abc import Iterator
from typing import Final

from virtfleet.launcher.guestnet.dhcp import domain_name
from virtfleet.protocol.messages import Lease6

PORT = 547
ALL_SERVERS = ipaddress.IPv6Address("ff02::1:2").packed
_FOREVER = 0xFFFFFFFF  # a guest keeps its address as long as it lives
# A hardware address of Ethernet; on the bridge there is no other server to be told apart from.
_OURS: Final = bytes.fromhex("00030001020000000000")
_SUCCESS, _NOT_ON_LINK = 0, 4


class Kind(enum.IntEnum):
    """What a packet is."""

    SOLICIT = 1
    ADVERTISE = 2
    REQUEST = 3
    CONFIRM = 4
    RENEW = 5
    REBIND = 6
    REPLY = 7
    RELEASE = 8
    DECLINE = 9
    INFORMATION_REQUEST = 11


class Option(enum.IntEnum):
    """What is in a packet."""

    CLIENT_ID = 1
    SERVER_ID = 2
    IDENTITY = 3
    ADDRESS = 5
    STATUS = 13
    RAPID_COMMIT = 14
    DNS = 23
    SEARCH = 24


Options = list[tuple[int, bytes]]


def reply(lease: Lease6, packet: bytes) -> bytes | None:
    """The answer to a client's packet; None where it is not for us."""
    if len(packet) < 4:
        return None
    kind, asked = packet[0], decoded(packet[4:])
    first = dict(reversed(asked))
    if first.get(Option.SERVER_ID, _OURS) != _OURS:  # the client has chosen another server
        return None
    answer: Options = [(Option.SERVER_ID, _OURS)]
    if Option.CLIENT_ID in first:
        answer.append((Option.CLIENT_ID, first[Option.CLIENT_ID]))
    sent = Kind.REPLY
    match kind:
        case Kind.SOLICIT | Kind.REQUEST | Kind.RENEW | Kind.REBIND:
            if kind == Kind.SOLICIT and Option.RAPID_COMMIT not in first:
                sent = Kind.ADVERTISE
            elif kind == Kind.SOLICIT:
                answer.append((Option.RAPID_COMMIT, b""))
            answer += [(Option.IDENTITY, _identity(lease, wanted)) for o, wanted in asked if o == Option.IDENTITY]
            answer += _settings(lease)
        case Kind.CONFIRM:
            addresses = [a for o, wanted in asked if o == Option.IDENTITY for a in _addresses(wanted)]
            status = _SUCCESS if set(addresses) <= {_own(lease)} else _NOT_ON_LINK
            answer.append((Option.STATUS, struct.pack("!H", status)))
        case Kind.RELEASE | Kind.DECLINE:
            answer.append((Option.STATUS, struct.pack("!H", _SUCCESS)))
        case Kind.INFORMATION_REQUEST:
            answer += _settings(lease)
        case _:
            return None
    return bytes([sent]) + packet[1:4] + encoded(answer)


def _identity(lease: Lease6, wanted: bytes) -> bytes:
    """One association of the client with its address. Other addresses that it thinks are its own are over."""
    lifetimes = dict.fromkeys(_addresses(wanted), 0) | {_own(lease): _FOREVER}
    addresses = [(int(Option.ADDRESS), struct.pack("!16sII", a, life, life)) for a, life in lifetimes.items()]
    return wanted[:4] + bytes(8) + encoded(addresses)


def _addresses(identity: bytes) -> list[bytes]:
    return [value[:16] for option, value in decoded(identity[12:]) if option == Option.ADDRESS]


def _own(lease: Lease6) -> bytes:
    return ipaddress.IPv6Interface(lease.address).ip.packed


def _settings(lease: Lease6) -> Iterator[tuple[int, bytes]]:
    if lease.dns:
        yield Option.DNS, b"".join(ipaddress.IPv6Address(server).packed for server in lease.dns)
    if lease.search:
        yield Option.SEARCH, b"".join(map(domain_name, lease.search))


def decoded(data: bytes) -> Options:
    options: Options = []
    position = 0
    while position + 4 <= len(data):
        option, length = struct.unpack_from("!HH", data, position)
        options.append((option, data[position + 4 : position + 4 + length]))
        position += 4 + length
    return options


def encoded(options: Options) -> bytes:
    return b"".join(struct.pack("!HH", option, len(value)) + value for option, value in options)
