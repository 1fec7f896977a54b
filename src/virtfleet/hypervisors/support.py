"""How far a hypervisor supports a feature, and why not."""

from __future__ import annotations

import enum
from collections.abc import Mapping

import msgspec


class Level(enum.Enum):
    """How far a feature is supported."""

    SUPPORTED = "supported"
    EXPERIMENTAL = "experimental"
    UNSUPPORTED = "unsupported"


class Support(msgspec.Struct, frozen=True):
    """How far one feature is supported."""

    level: Level
    reason: str = ""
    gate: str = ""
    """Feature gate that an experimental feature needs."""


SUPPORTED = Support(Level.SUPPORTED)

Supports = Mapping[str, Support]
"""By `feature`, or by `feature/architecture` where it differs between architectures."""


def without(*reasons: tuple[str, str]) -> dict[str, Support]:
    """A table of features that are not supported: names of features, and the reason that they share."""
    return {key: Support(Level.UNSUPPORTED, reason) for keys, reason in reasons for key in keys.split()}
