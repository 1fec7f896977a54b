"""Rules of instance types and preferences by themselves; what a VM makes of them is in `virtfleet.instancetypes`.

Messages that KubeVirt's users may look for begin with its words.
"""

from __future__ import annotations

from virtfleet.admission.findings import Findings
from virtfleet.admission.sections import Section, read
from virtfleet.admission.updates import Asker
from virtfleet.admission.vmi import check_metadata
from virtfleet.api.quantity import Quantity

SOCKETS, CORES, THREADS, SPREAD, ANY = TOPOLOGIES = ("sockets", "cores", "threads", "spread", "any")
_DEPRECATED = {f"prefer{name.capitalize()}": name for name in TOPOLOGIES}
SPREADS = {
    "SocketsCores": (SOCKETS, CORES),
    "CoresThreads": (CORES, THREADS),
    "SocketsCoresThreads": (SOCKETS, CORES, THREADS),
}
"""What CPUs are spread across."""
THREADS_PER_CORE = 2


def topology(preference: Section) -> str:
    """How a preference wants CPUs to be shown; also where it says so in the old way."""
    wanted = read(preference, "cpu").get("preferredCPUTopology") or SOCKETS
    return _DEPRECATED.get(wanted, wanted)


def spread(preference: Section) -> tuple[int, str]:
    """The ratio of a spread topology, and what it goes across."""
    options = read(preference, "cpu", "spreadOptions")
    ratio = options.get("ratio") or preference.get("preferSpreadSocketToCoreRatio") or 2
    return ratio, options.get("across") or "SocketsCores"


def check_instancetype(instancetype: Section, by: Asker, findings: Findings) -> None:
    spec = read(instancetype, "spec")
    cpu, memory = read(spec, "cpu"), read(spec, "memory")
    for field in ("guest", "maxSockets"):
        if (cpu.get(field) or 0) < 0:
            findings.invalid(f"spec.cpu.{field}", f"{cpu[field]} CPUs is negative; use 1 or more")
    if Quantity.parse(memory.get("guest") or 0).nano < 0:
        findings.invalid("spec.memory.guest", f"{memory['guest']} is negative; write it like 512Mi or 2Gi")
    most = memory.get("maxGuest")
    if most is not None and Quantity.parse(most) < Quantity.parse(memory.get("guest") or 0):
        findings.invalid("spec.memory.maxGuest", f"{most} is less than memory.guest; raise it, or remove maxGuest")
    percent, field = memory.get("overcommitPercent") or 0, "spec.memory.overcommitPercent"
    if not 0 <= percent <= 100:
        findings.invalid(field, f"{field} '{percent}': must be in range between 0 and 100.")
    if percent and memory.get("hugepages") is not None:
        findings.invalid(field, f"{field} and spec.memory.hugepages should not be requested together.")
    check_metadata(spec, "spec", by, findings)
    if spec.get("launchSecurity") is not None:
        findings.warn("spec.launchSecurity is deprecated; use preferredLaunchSecurity of a preference")


def check_preference(preference: Section, by: Asker, findings: Findings) -> None:
    spec = read(preference, "spec")
    said = read(spec, "cpu").get("preferredCPUTopology")
    if topology(spec) not in TOPOLOGIES:
        message = f"unknown preferredCPUTopology {said}; use one of {', '.join(TOPOLOGIES)}"
        findings.invalid("spec.cpu.preferredCPUTopology", message)
    if topology(spec) == SPREAD:
        _check_spread(spec, findings)
    if said in _DEPRECATED:
        findings.warn(
            f"PreferredCPUTopology {said} is deprecated for removal in a future release, please use "
            f"{_DEPRECATED[said]} instead"
        )
    check_metadata(spec, "spec", by, findings)


def _check_spread(spec: Section, findings: Findings) -> None:
    (ratio, across), path = spread(spec), "spec.cpu.spreadOptions"
    if across not in SPREADS:
        findings.invalid(f"{path}.across", f"across {across} is not supported; use one of {', '.join(SPREADS)}")
    elif ratio < 1:
        findings.invalid(f"{path}.ratio", f"a ratio of {ratio} spreads nothing; use 1 or more")
    elif across == "CoresThreads" and ratio != THREADS_PER_CORE:
        message = "only a ratio of 2 (1 core 2 threads) is allowed when spreading vCPUs over cores and threads"
        findings.invalid(f"{path}.ratio", message)
