"""DHCP for the one guest beside this launcher.

The address is decided by the handler; here it is only handed out, to the one hardware address that it belongs to. Not
by the handler itself, because a handler that restarts must not keep a guest from renewing its lease.
"""

from __future__ import annotations

import ipaddress
import struct
from collections.abc import Iterable
from contextlib import suppress

from virtfleet.protocol.messages import Lease

PORT = 67
EVERYBODY = ("255.255.255.255", 68)
"""Who hears an answer: the client may have no address yet, and there is nobody else on the wire."""
_COOKIE = b"\x63\x82\x53\x63"
_HEADER = struct.Struct("!BBBBIHH4s4s4s4s16s192x4s")
_DISCOVER, _OFFER, _REQUEST, _ACK, _NAK, _INFORM = 1, 2, 3, 5, 6, 8
_FOREVER = 0xFFFFFFFF  # a guest keeps its address as long as it lives
_FIRST_PRIVATE, _LAST_PRIVATE = 224, 254


def reply(lease: Lease, packet: bytes) -> bytes | None:
    """The answer to a client's packet; None where it is not for us."""
    if len(packet) < _HEADER.size:
        return None
    kind, hardware, length, _, transaction, _, flags, client, _, _, _, address, cookie = _HEADER.unpack_from(packet)
    mac = bytes.fromhex(lease.mac.replace(":", ""))
    if kind != 1 or hardware != 1 or length != 6 or cookie != _COOKIE or address[:6] != mac:
        return None
    asked = _options(packet[_HEADER.size :])
    message = asked.get(53, b"\0")[0]
    ours = _packed(lease.server)
    if asked.get(54, ours) != ours:  # the client has chosen another server
        return None
    own = _packed(lease.address.partition("/")[0])
    if message == _DISCOVER:
        answer = _OFFER
    elif message == _REQUEST:
        wanted = asked.get(50) or client
        answer = _ACK if wanted in (own, bytes(4)) else _NAK
    elif message == _INFORM:
        answer = _ACK
    else:
        return None
    options = [(53, bytes([answer])), (54, ours)]
    if answer != _NAK:
        options += _settings(lease)
    if message != _INFORM and answer != _NAK:
        options.append((51, struct.pack("!I", _FOREVER)))
    given = bytes(4) if answer == _NAK or message == _INFORM else own
    boot = ours
    with suppress(ValueError):  # it may be a name
        boot = _packed(lease.tftp_server)
    header = _HEADER.pack(2, 1, 6, 0, transaction, 0, flags, client, given, boot, bytes(4), address, _COOKIE)
    return header + b"".join(_encoded(options)) + b"\xff"


def _settings(lease: Lease) -> Iterable[tuple[int, bytes]]:
    network = ipaddress.ip_interface(lease.address).network
    yield 1, network.netmask.packed
    if lease.routers:
        yield 3, b"".join(map(_packed, lease.routers))
    if lease.dns:
        yield 6, b"".join(map(_packed, lease.dns))
    if lease.hostname:
        yield 12, lease.hostname.encode()
    if lease.search:
        yield 15, lease.search[0].encode()
        yield 119, b"".join(map(domain_name, lease.search))
    if lease.mtu:
        yield 26, struct.pack("!H", lease.mtu)
    if lease.ntp:
        yield 42, b"".join(map(_packed, lease.ntp))
    if lease.tftp_server:
        yield 66, lease.tftp_server.encode()
    if lease.boot_file:
        yield 67, lease.boot_file.encode()
    if lease.routes:
        yield 121, b"".join(_route(destination, gateway) for destination, gateway in lease.routes)
    for number, value in lease.options.items():
        if _FIRST_PRIVATE <= number <= _LAST_PRIVATE:
            yield number, value.encode()


def _options(data: bytes) -> dict[int, bytes]:
    options: dict[int, bytes] = {}
    position = 0
    while position < len(data) and data[position] != 255:
        if data[position] == 0:
            position += 1
            continue
        if position + 1 >= len(data):
            break
        length = data[position + 1]
        options[data[position]] = data[position + 2 : position + 2 + length]
        position += 2 + length
    return {number: value for number, value in options.items() if value}


def _encoded(options: Iterable[tuple[int, bytes]]) -> Iterable[bytes]:
    """Options longer than one length can say are split, as RFC 3396 has it."""
    for number, value in options:
        for start in range(0, len(value) or 1, 255):
            part = value[start : start + 255]
            yield bytes([number, len(part)]) + part


def _route(destination: str, gateway: str) -> bytes:
    network = ipaddress.IPv4Network(destination)
    significant = network.network_address.packed[: (network.prefixlen + 7) // 8]
    return bytes([network.prefixlen]) + significant + _packed(gateway)


def domain_name(name: str) -> bytes:
    """A name as it is on the wire."""
    return b"".join(bytes([len(label)]) + label.encode() for label in name.strip(".").split(".")) + b"\0"


def _packed(address: str) -> bytes:
    return ipaddress.IPv4Address(address).packed
