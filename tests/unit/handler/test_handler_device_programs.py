"""Programs that guard the devices of control groups of version 2: what they say, and what they say once added to."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from virtfleet.handler.pods.deviceprogram import Device, NotUnderstood, allowing, movable, permits, without


def instructions(*listed: tuple[int, int, int, int, int]) -> bytes:
    """Each as code, target, source, offset and value; as the machines that run this have them."""
    return b"".join(
        struct.pack("<BBhi", code, source << 4 | target, at, value) for code, target, source, at, value in listed
    )


# What runc loads for "deny all, allow c 1:3 rwm and c 5:* rw": kind in r2, access in r3, numbers in r4 and r5.
RUNC = instructions(
    (0x61, 2, 1, 0, 0),
    (0x54, 2, 0, 0, 0xFFFF),
    (0x61, 3, 1, 0, 0),
    (0x74, 3, 0, 0, 16),
    (0x61, 4, 1, 4, 0),
    (0x61, 5, 1, 8, 0),
    (0x55, 2, 0, 4, 2),
    (0x55, 4, 0, 3, 1),
    (0x55, 5, 0, 2, 3),
    (0xB4, 0, 0, 0, 1),
    (0x95, 0, 0, 0, 0),
    (0x55, 2, 0, 6, 2),
    (0xBC, 1, 3, 0, 0),
    (0x54, 1, 0, 0, 6),
    (0x5D, 1, 3, 3, 0),
    (0x55, 4, 0, 2, 5),
    (0xB4, 0, 0, 0, 1),
    (0x95, 0, 0, 0, 0),
    (0xB4, 0, 0, 0, 0),
    (0x95, 0, 0, 0, 0),
)


@pytest.mark.parametrize(
    ("line", "allowed"),
    [
        ("c 1:3 rwm", True),
        ("c 1:5 r", False),
        ("b 1:3 r", False),
        ("c 5:7 rw", True),
        ("c 5:7 w", True),
        ("c 5:7 m", False),
        ("c 10:232 rw", False),
    ],
)
def test_the_program_of_a_runtime_is_understood(line: str, allowed: bool) -> None:
    assert permits(RUNC, Device.parse(line)) is allowed


devices = st.builds(
    Device,
    kind=st.sampled_from([1, 2]),
    major=st.integers(0, 2**12 - 1) | st.sampled_from([1, 5, 10]),
    minor=st.integers(0, 2**20 - 1) | st.sampled_from([3, 232]),
    access=st.integers(1, 7),
)


@given(added=devices, asked=devices)
def test_what_is_added_is_allowed_and_all_else_stays_as_it_was(added: Device, asked: Device) -> None:
    program = allowing(added, RUNC)
    within = (asked.kind, asked.major, asked.minor) == (added.kind, added.major, added.minor)
    ours = within and asked.access & ~added.access == 0
    assert permits(program, asked) is (ours or permits(RUNC, asked))
    assert permits(program, added)


def test_devices_are_added_one_after_another() -> None:
    program = allowing(Device.parse("b 253:1 rw"), allowing(Device.parse("c 10:232 rwm"), RUNC))
    for line in ("b 253:1 rw", "c 10:232 rwm", "c 1:3 r"):
        assert permits(program, Device.parse(line))
    assert not permits(program, Device.parse("b 253:1 m"))


@given(added=st.lists(devices, unique=True, max_size=4), gone=devices)
def test_what_was_added_can_be_taken_away_again_and_nothing_else(added: list[Device], gone: Device) -> None:
    program = RUNC
    for device in added:
        program = allowing(device, program)
    expected = RUNC
    for device in (each for each in added if each != gone):
        expected = allowing(device, expected)
    assert without(gone, program) == expected


def test_what_is_not_known_is_not_guessed() -> None:
    with pytest.raises(NotUnderstood, match="instruction 0"):
        permits(instructions((0x85, 0, 0, 0, 1)), Device.parse("c 1:3 r"))
    with pytest.raises(NotUnderstood, match="no end"):
        permits(instructions((0x05, 0, 0, -1, 0)), Device.parse("c 1:3 r"))
    assert movable(RUNC)
    assert not movable(RUNC + instructions((0x85, 0, 0, 0, 1)))
