"""The spec of one VMI, or of a template of VMIs, under review."""

from __future__ import annotations

import re
from typing import Any

from virtfleet.admission.findings import Findings
from virtfleet.admission.sections import Section, read
from virtfleet.api import view
from virtfleet.api.domainspec import CPU, Memory
from virtfleet.api.quantity import Quantity
from virtfleet.api.vmi import VirtualMachineInstance
from virtfleet.installation import Installation

ZERO = Quantity.of(0)
_STEP = re.compile(r"[^.\[\]]+")


class Case(Findings):
    """What a spec says, in which cluster, and what is wrong with it.

    Rules read the view, whose types have been checked. Fields that they name are below `path`, which is `spec` for a
    VMI and `spec.template.spec` for a template; what they find goes to `whole`, which knows full paths.
    """

    __slots__ = (
        "architecture", "cluster", "cpu", "devices", "domain", "guest", "instance", "limits", "memory", "path",
        "requests", "spec", "vmi", "whole",
    )  # fmt: skip

    def __init__(self, instance: Section, cluster: Installation, path: str, whole: Findings) -> None:
        super().__init__(*whole.lists(), prefix=f"{path}.")
        self.instance, self.cluster, self.path, self.whole = instance, cluster, path, whole
        self.vmi = view.read(VirtualMachineInstance, instance)
        self.spec = self.vmi.spec
        self.domain = self.spec.domain
        self.devices = self.domain.devices
        self.cpu = self.domain.cpu or CPU()
        self.memory = self.domain.memory or Memory()
        self.architecture = self.spec.architecture or cluster.default_architecture
        self.requests = {name: Quantity.parse(amount) for name, amount in self.domain.resources.requests.items()}
        self.limits = {name: Quantity.parse(amount) for name, amount in self.domain.resources.limits.items()}
        self.guest = None if self.memory.guest is None else Quantity.parse(self.memory.guest)

    def at(self, field: str) -> str:
        """The full path of a field of the spec."""
        return f"{self.prefix}{field}"

    def says(self, field: str) -> bool:
        """Whether a field is there at all.

        The one thing that a view cannot tell of texts and lists: empty and missing are the same to readers, and not to
        KubeVirt's rules.
        """
        value: Any = read(self.instance, "spec")
        for step in _STEP.findall(field):
            value = value[int(step)] if isinstance(value, list) else value.get(step)
            if value is None:
                return False
        return True

    def enabled(self, gate: str) -> bool:
        return self.cluster.enabled(gate)

    def needs_gate(self, field: str, gate: str, what: str) -> bool:
        """Whether a feature gate is on; where it is not, that is wrong with `what` at `field`."""
        if not self.enabled(gate):
            self.gate_is_off(field, gate, what)
        return self.enabled(gate)
