"""The spec of one VMI, or of a template of VMIs, under review."""

from __future__ import annotations

from virtfleet.admission.findings import Findings
from virtfleet.admission.sections import Section, says
from virtfleet.api import view
from virtfleet.api.domainspec import CPU, Memory
from virtfleet.api.quantity import Quantity
from virtfleet.api.vmi import VirtualMachineInstance
from virtfleet.installation import Installation

ZERO = Quantity.of(0)


class Case(Findings):
    """What a spec says, in which cluster, and what is wrong with it.

    Rules read the view, whose types have been checked. Fields that they name are below `path`, which is `spec` for a
    VMI and `spec.template.spec` for a template; what they find goes to `whole`, which knows full paths.
    """

    def __init__(self, instance: Section, cluster: Installation, path: str, whole: Findings) -> None:
        super().__init__(*whole.lists(), path)
        self.instance, self.cluster, self.whole = instance, cluster, whole
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

    def says(self, field: str) -> bool:
        """Whether a field of the spec is there at all."""
        return says(self.instance, f"spec.{field}")

    def enabled(self, gate: str) -> bool:
        return self.cluster.enabled(gate)

    def needs_gate(self, field: str, gate: str, what: str) -> bool:
        """Whether a feature gate is on; where it is not, that is wrong with `what` at `field`."""
        if not self.enabled(gate):
            self.gate_is_off(field, gate, what)
        return self.enabled(gate)
