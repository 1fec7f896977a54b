"""Whether a VM has what its preference requires. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

from virtfleet.admission.findings import Findings
from virtfleet.admission.instancetypes import ANY, SPREAD, SPREADS, spread, topology
from virtfleet.admission.sections import Section, read
from virtfleet.api import kinds
from virtfleet.api.quantity import Quantity
from virtfleet.instancetypes.matching import Types

_DOMAIN = "spec.template.spec.domain"
_TOPOLOGY = ("cores", "sockets", "threads")


def check(types: Types, spec: Section, findings: Findings) -> None:
    """`spec` is that of the VM's instances, with all defaults."""
    for field, message in _unmet(types, spec):
        findings.not_found(field, f"failure checking preference requirements: {message}")


def _unmet(types: Types, spec: Section) -> Iterator[tuple[str, str]]:
    required = read(types.preference or {}, "requirements")
    if required.get("cpu") is not None:
        yield from _too_few_cpus(types, read(spec, "domain", "cpu"), read(required, "cpu").get("guest") or 0)
    if required.get("memory") is not None:
        yield from _too_little_memory(types, spec, Quantity.parse(read(required, "memory").get("guest") or 0))
    wanted, used = required.get("architecture"), spec.get("architecture")
    if wanted is not None and wanted != used:
        message = f"preference requires architecture {wanted} but {used} is being requested"
        yield "spec.template.spec.architecture", message


def _too_few_cpus(types: Types, cpu: Section, least: int) -> Iterator[tuple[str, str]]:
    if types.instancetype is not None:
        vcpus = read(types.instancetype, "cpu").get("guest") or 0
        said = f"insufficient CPU resources of {vcpus} vCPU provided by instance type, preference requires {least} vCPU"
        if vcpus < least:
            yield "spec.instancetype", said
        return
    preference = types.preference or {}
    wanted = topology(preference)
    across = spread(preference)[1]
    counted = {ANY: _TOPOLOGY, SPREAD: SPREADS.get(across, _TOPOLOGY)}.get(wanted, (wanted,))
    vcpus = prod(cpu.get(field) or 0 for field in counted)
    if vcpus >= least:
        return
    shown = {ANY: "cores, sockets and threads", SPREAD: across}.get(wanted, wanted)
    message = (
        f"insufficient CPU resources of {vcpus} vCPU provided by {kinds.VM.kind}, preference requires {least} vCPU"
        f" provided as {shown}"
    )
    yield ", ".join(f"{_DOMAIN}.cpu.{field}" for field in counted), message


def _too_little_memory(types: Types, spec: Section, least: Quantity) -> Iterator[tuple[str, str]]:
    provider, field = kinds.VM.kind, f"{_DOMAIN}.memory"
    if types.instancetype is not None:
        provider, field = "instance type", "spec.instancetype"
    memory = Quantity.parse(read(spec, "domain", "memory").get("guest") or 0)
    if memory < least:
        yield field, f"insufficient Memory resources of {memory} provided by {provider}, preference requires {least}"
