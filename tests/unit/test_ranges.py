"""A new cluster's address ranges touch nothing that the machine already has."""

from __future__ import annotations

import os
import threading
from ipaddress import IPv4Network
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from virtfleet.local.ranges import choose, claim

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


@pytest.mark.skipif(os.geteuid() != 0, reason="ranges are for nodes, which need root")
def test_clusters_that_start_at_once_get_different_ranges_and_give_them_back_with_their_directory(
    tmp_path: Path,
) -> None:
    notes = tmp_path / "run" / "ranges.json"
    places = [tmp_path / f"c{number}" for number in range(6)]
    chosen: dict[Path, tuple[str, str]] = {}

    def start(place: Path) -> None:
        place.mkdir()
        chosen[place] = claim(place, notes)

    threads = [threading.Thread(target=start, args=[place]) for place in places]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({network for ranges in chosen.values() for network in ranges}) == 2 * len(places)
    first = max(chosen, key=lambda place: int(chosen[place][0].split(".")[1]))  # whoever came first has the first range
    first.rmdir()
    (tmp_path / "next").mkdir()
    assert claim(tmp_path / "next", notes) == chosen[first]
