"""DataVolumes and DataSources: whether VirtFleet can do what they ask for. Where CDI is, it is not asked."""

from __future__ import annotations

from virtfleet.admission.findings import Findings
from virtfleet.admission.sections import Section, read
from virtfleet.admission.updates import Asker
from virtfleet.api import imports


def check(dv: Section, _: Asker, findings: Findings) -> None:
    for fault in imports.faults(dv):
        findings.invalid(fault.path, fault.message)


def check_update(dv: Section, old: Section, _: Asker, findings: Findings) -> None:
    """The claim is made and filled once."""
    if read(dv, "spec") != read(old, "spec"):
        findings.forbidden("spec", "it cannot be changed; delete the DataVolume, and create another one")


def check_source(_source: Section, _: Asker, findings: Findings) -> None:
    """It may name what is not there yet; whoever uses it is told."""
