"""A new cluster's address ranges touch nothing that the machine already has."""

from __future__ import annotations

from ipaddress import IPv4Network

import pytest
from hypothesis import given
from hypothesis import strategies as st

from virtfleet.local.ranges import choose

networks = st.builds(
    lambda n, bits: IPv4Network((n & (0xFFFFFFFF << (32 - bits)), bits)),
    st.integers(0x0A000000, 0x0AFFFFFF),
    st.integers(12, 32),
)


def test_a_machine_without_networks_gets_the_familiar_ranges() -> None:
    assert choose([]) == ("10.244.0.0/16", "10.96.0.0/16")


@given(st.lists(networks, max_size=12))
def test_chosen_ranges_overlap_nothing(taken: list[IPv4Network]) -> None:
    try:
        pods, services = map(IPv4Network, choose(taken))
    except ValueError:
        return
    assert not any(pods.overlaps(n) or services.overlaps(n) for n in taken)
    assert not pods.overlaps(services)


def test_a_machine_without_room_is_told_so() -> None:
    with pytest.raises(ValueError, match="pods"):
        choose([IPv4Network("10.0.0.0/8")])
