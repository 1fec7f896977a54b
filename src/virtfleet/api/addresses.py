"""Addresses: networks of guests behind a Pod's address, places of PCI devices, and hardware addresses."""

from __future__ import annotations

import re
from ipaddress import IPv4Network, IPv6Network, ip_address
from typing import Final

_LEADING_ZEROS = re.compile(r"(?<![0-9])0+(?=[0-9])")
_KINDS: Final[dict[int, type[IPv4Network] | type[IPv6Network]]] = {4: IPv4Network, 6: IPv6Network}
_LEAST_BITS = 2  # of addresses: the network itself, its gateway, the guest, and the broadcast


PCI_ADDRESS: Final = re.compile(r"([0-9a-fA-F]{4}):([0-9a-fA-F]{2}):([0-9a-fA-F]{2})\.([0-7])")
"""Domain, bus, slot and function of a device in the guest."""


class NetworkError(ValueError):
    """Text that is no network for guests; the message says why, and how to write one."""


def plain_ip(text: str) -> str:
    """An address as it is written today: as in KubeVirt, zeros before a number mean nothing. ValueError for others."""
    return str(ip_address(text if ":" in text else _LEADING_ZEROS.sub("", text)))


def guest_network(text: str, version: int) -> IPv4Network | IPv6Network:
    """The network that is meant. As in KubeVirt, zeros before a number and bits after the prefix mean nothing."""
    example = "10.0.2.0/24" if version == 4 else "fd10:0:2::/120"
    plain = _LEADING_ZEROS.sub("", text) if version == 4 else text
    try:
        network = _KINDS[version](plain, strict=False)
    except ValueError:
        raise NetworkError(f"{text!r} is not an IPv{version} network; write it like {example}") from None
    if "/" not in text or network.max_prefixlen - network.prefixlen < _LEAST_BITS:
        raise NetworkError(f"{text!r} has no room for a gateway and a guest; write it like {example}")
    first = network.network_address
    if first.is_multicast or first.is_loopback or first.is_unspecified or "%" in text:
        raise NetworkError(f"guests cannot have addresses of {text!r}; use a private network such as {example}")
    return network


def mac_address(owner: str, interface: str) -> str:
    """A hardware address of the locally administered range that stays the same for its owner."""
    import hashlib  # brings a whole library of cryptography along, and most launchers do not need it

    digest = hashlib.sha256(f"{owner}/{interface}".encode()).hexdigest()
    return "02:" + ":".join(digest[i : i + 2] for i in range(0, 10, 2))
