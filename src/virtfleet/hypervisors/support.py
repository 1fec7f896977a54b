"""How far a hypervisor has a feature, and why not."""

from __future__ import annotations

import enum
from collections.abc import Mapping

import msgspec


class Level(enum.Enum):
    """How far a feature is there."""

    WORKS = "works"
    EXPERIMENTAL = "experimental"  # behind a feature gate
    ABSENT = "absent"  # VirtFleet does not do it yet
    IMPOSSIBLE = "impossible"  # libvirt's driver, or the hypervisor, cannot


class Support(msgspec.Struct, frozen=True):
    """How far one feature is there."""

    level: Level
    reason: str = ""
    gate: str = ""
    """Feature gate that an experimental feature needs."""
    advice: str = ""
    """What to do instead."""
    admitted: bool = False
    """Whether a VMI that asks for it is admitted, although it is absent: with a warning, as KubeVirt admits it."""


WORKS = Support(Level.WORKS)

NO_CONSOLE_LOG = "libvirt's driver keeps no logs of consoles; virtctl console shows what is said from then on"

Supports = Mapping[str, Support]
"""By `feature`, or by `feature/architecture` where it differs between architectures."""


def works(*keys: str) -> dict[str, Support]:
    """A table of features that work; each argument may name several, with spaces between."""
    return dict.fromkeys((key for names in keys for key in names.split()), WORKS)


def impossible(*reasons: tuple[str, str]) -> dict[str, Support]:
    """A table of features that cannot be had: names of features, and the reason that they share."""
    return {key: Support(Level.IMPOSSIBLE, reason) for keys, reason in reasons for key in keys.split()}
