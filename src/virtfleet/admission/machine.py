"""A VMI spec as rules read it: its sections at hand, its quantities parsed, its path for messages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from virtfleet.admission.sections import Section, read
from virtfleet.api.quantity import Quantity
from virtfleet.installation import Installation

ZERO = Quantity.of(0)


class Machine:
    """One spec under review. `path` is `spec` for a VMI and `spec.template.spec` for a template."""

    __slots__ = (
        "architecture", "cluster", "cpu", "devices", "disks", "domain", "guest", "interfaces", "limits", "memory",
        "networks", "path", "requests", "spec", "volumes",
    )  # fmt: skip

    def __init__(self, spec: Section, cluster: Installation, path: str = "spec") -> None:
        self.spec = spec
        self.cluster = cluster
        self.path = path
        self.architecture: str = spec.get("architecture") or cluster.default_architecture
        self.domain = read(spec, "domain")
        self.devices = read(self.domain, "devices")
        self.cpu = read(self.domain, "cpu")
        self.memory = read(self.domain, "memory")
        resources = read(self.domain, "resources")
        self.requests = _quantities(read(resources, "requests"))
        self.limits = _quantities(read(resources, "limits"))
        guest = self.memory.get("guest")
        self.guest = None if guest is None else Quantity.parse(guest)
        self.disks: Sequence[Section] = self.devices.get("disks") or ()
        self.interfaces: Sequence[Section] = self.devices.get("interfaces") or ()
        self.networks: Sequence[Section] = spec.get("networks") or ()
        self.volumes: Sequence[Section] = spec.get("volumes") or ()

    def at(self, field: str) -> str:
        """The full path of a field of the spec."""
        return f"{self.path}.{field}"

    def enabled(self, gate: str) -> bool:
        return self.cluster.enabled(gate)


def _quantities(amounts: Section) -> dict[str, Quantity]:
    return {name: Quantity.parse(amount) for name, amount in amounts.items() if amount is not None}


def is_on(section: Section, field: str) -> bool:
    """Whether a feature that is enabled by naming it is on: it is there and not switched off."""
    feature: Any = section.get(field)
    return feature is not None and feature.get("enabled") is not False
