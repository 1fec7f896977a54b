"""Rules for memory, CPU, NUMA and the machine type."""

from __future__ import annotations

from fnmatch import fnmatchcase

from virtfleet.admission.findings import Findings
from virtfleet.admission.machine import ZERO, Machine
from virtfleet.admission.sections import read
from virtfleet.api.names import CPU_FEATURE, CPU_MODEL
from virtfleet.api.quantity import Quantity, QuantityError
from virtfleet.api.selectors import label_key_error

_LEAST_MEMORY = Quantity.parse("1M")
_MOST_VCPUS = 4096  # of the largest machine types that QEMU has
_SHARED = ("cpu", "memory", "ephemeral-storage")
_POLICIES = ("", "force", "require", "optional", "disable", "forbid")
_REQUEST, _LIMIT = "domain.resources.requests", "domain.resources.limits"
_DEDICATED = "domain.cpu.dedicatedCpuPlacement"


def check(m: Machine, found: Findings) -> None:
    _check_memory(m, found)
    _check_hugepages(m, found)
    _check_whole_resources(m, found)
    _check_machine_type(m, found)
    _check_cpu_amounts(m, found)
    _check_topology(m, found)
    if m.cpu.get("dedicatedCpuPlacement"):
        _check_dedicated_cpus(m, found)
    _check_numa(m, found)
    _check_cpu_extras(m, found)
    _check_io_threads(m, found)


def _check_memory(m: Machine, found: Findings) -> None:
    request, limit = m.requests.get("memory", ZERO), m.limits.get("memory", ZERO)
    if request < ZERO:
        found.invalid(m.at(f"{_REQUEST}.memory"), f"memory request {request} is negative; ask for at least 1M")
    elif ZERO < request < _LEAST_MEMORY:
        found.invalid(
            m.at(f"{_REQUEST}.memory"), f"memory request {request} is less than 1M; a unit such as Mi may be missing"
        )
    if limit < ZERO:
        found.invalid(m.at(f"{_LIMIT}.memory"), f"memory limit {limit} is negative; remove it or raise it")
    elif limit and request > limit:
        found.invalid(
            m.at(f"{_REQUEST}.memory"),
            f"memory request {request} is more than the limit {limit}; lower the request or raise the limit",
        )
    if m.guest is not None:
        _check_guest_memory(m, m.guest, limit, found)
    if m.memory.get("reservedOverhead") is not None and not m.enabled("ReservedOverheadMemlock"):
        found.gate_is_off(m.at("domain.memory.reservedOverhead"), "ReservedOverheadMemlock", "memory.reservedOverhead")


def _check_guest_memory(m: Machine, guest: Quantity, limit: Quantity, found: Findings) -> None:
    field = m.at("domain.memory.guest")
    if guest < _LEAST_MEMORY and not m.requests.get("memory"):
        found.invalid(field, f"guest memory {guest} is less than 1M; a unit such as Mi may be missing")
    if limit and guest > limit:
        found.invalid(
            field,
            f"guest memory {guest} is more than the memory limit {limit}, so the VM would be killed when it uses it; "
            f"raise {m.at(f'{_LIMIT}.memory')} or lower guest",
        )
    max_guest = m.memory.get("maxGuest")
    if max_guest is not None and guest > Quantity.parse(max_guest):
        found.invalid(field, f"guest memory {guest} is more than maxGuest {max_guest}; raise maxGuest or lower guest")


def _check_hugepages(m: Machine, found: Findings) -> None:
    hugepages = m.memory.get("hugepages")
    if hugepages is None:
        return
    text = hugepages.get("pageSize") or ""
    try:
        page = Quantity.parse(text)
    except QuantityError:
        page = ZERO
    if page <= ZERO:
        found.invalid(m.at("domain.memory.hugepages.pageSize"), f"{text!r} is not a page size; use 2Mi or 1Gi")
        return
    memory = m.requests.get("memory", ZERO) or m.guest or m.limits.get("memory", ZERO)
    if memory and memory < page:
        found.invalid(
            m.at(f"{_REQUEST}.memory"), f"memory {memory} is less than one huge page of {page}; ask for more memory"
        )
    elif memory.value() % page.value():
        found.invalid(
            m.at(f"{_REQUEST}.memory"), f"memory {memory} is not a multiple of the huge page size {page}; round it up"
        )


def _check_whole_resources(m: Machine, found: Findings) -> None:
    """Devices and huge pages are had or not: Kubernetes wants their request and limit to be one number."""
    for name in {*m.requests, *m.limits}:
        if name in _SHARED:
            continue
        if "/" not in name and not name.startswith("hugepages-"):
            found.invalid(
                m.at(f"{_REQUEST}.{name}"), f"{name!r} is no resource; use cpu, memory or one that a node offers"
            )
            continue
        if why := label_key_error(name):
            found.invalid(m.at(f"{_REQUEST}.{name}"), f"{name!r} is not the name of a resource: {why}")
        request, limit = m.requests.get(name), m.limits.get(name)
        if limit is None or (request is not None and request != limit):
            found.invalid(
                m.at(f"{_LIMIT}.{name}"), f"{name} cannot be shared; set its limit, to the same as its request"
            )


def _check_machine_type(m: Machine, found: Findings) -> None:
    machine = (m.domain.get("machine") or {}).get("type")
    if not machine:
        return
    allowed = m.cluster.emulated_machines(m.architecture)
    if not any(fnmatchcase(machine, pattern) for pattern in allowed):
        found.invalid(
            m.at("domain.machine.type"),
            f"machine type {machine!r} is not allowed on {m.architecture}; use one that matches {', '.join(allowed)}, "
            "or leave it out for the default",
        )


def _check_cpu_amounts(m: Machine, found: Findings) -> None:
    request, limit = m.requests.get("cpu", ZERO), m.limits.get("cpu", ZERO)
    for kind, amount in ((_REQUEST, request), (_LIMIT, limit)):
        if amount < ZERO:
            found.invalid(m.at(f"{kind}.cpu"), f"{amount} CPUs is negative; use 0 or more")
    if limit > ZERO and request.milli() > limit.milli():
        found.invalid(
            m.at(f"{_REQUEST}.cpu"),
            f"CPU request {request} is more than the limit {limit}; lower the request or raise the limit",
        )


def _check_topology(m: Machine, found: Findings) -> None:
    for name in ("cores", "sockets", "threads", "maxSockets"):
        if (m.cpu.get(name) or 0) < 0:
            found.invalid(m.at(f"domain.cpu.{name}"), f"{m.cpu[name]} {name} is negative; use 1 or more")
    largest = max(vcpus(m), vcpus(m, sockets="maxSockets"))
    if largest > _MOST_VCPUS:
        found.invalid(
            m.at("domain.cpu"),
            f"{largest} virtual CPUs are more than any hypervisor has ({_MOST_VCPUS}); lower cores, sockets, "
            "maxSockets or threads, or resources.requests.cpu where sockets come of it",
        )
    most = m.cpu.get("maxSockets") or 0
    if most and (m.cpu.get("sockets") or 0) > most:
        found.invalid(
            m.at("domain.cpu.sockets"),
            f"{m.cpu['sockets']} sockets are more than maxSockets {most}; raise maxSockets or lower sockets",
        )


def vcpus(m: Machine, sockets: str = "sockets") -> int:
    """How many the topology has; 0 where it says nothing."""
    counts = [m.cpu.get(name) or 0 for name in ("cores", sockets, "threads")]
    if not any(counts):
        return 0
    total = 1
    for count in counts:
        total *= count or 1
    return total


def _check_dedicated_cpus(m: Machine, found: Findings) -> None:
    request, limit, count = m.requests.get("cpu", ZERO), m.limits.get("cpu", ZERO), vcpus(m)
    if not (m.limits.get("memory") or m.requests.get("memory") or m.guest or m.memory.get("hugepages") is not None):
        found.invalid(m.at(f"{_LIMIT}.memory"), "dedicated CPUs need a fixed amount of memory; set domain.memory.guest")
    for kind, amount in ((_REQUEST, request), (_LIMIT, limit)):
        if amount > ZERO and amount.value() * 1000 != amount.milli():
            found.invalid(
                m.at(f"{kind}.cpu"), f"{amount} is not a whole number of CPUs, and only those can be dedicated"
            )
    memory_request, memory_limit = m.requests.get("memory", ZERO), m.limits.get("memory", ZERO)
    if memory_request > ZERO and memory_limit > ZERO and memory_request.value() != memory_limit.value():
        found.invalid(
            m.at(f"{_REQUEST}.memory"),
            f"with dedicated CPUs memory request {memory_request} and limit {memory_limit} must be equal; change one",
        )
    if not request.value() and not limit.value() and not count:
        found.invalid(m.at(_DEDICATED), "dedicated CPUs need to know how many; set domain.cpu.cores")
    if request > ZERO and limit > ZERO and request.value() != limit.value():
        found.invalid(
            m.at(_DEDICATED),
            f"with dedicated CPUs the CPU request {request} and limit {limit} must be equal; change one",
        )
    if (request > ZERO or limit > ZERO) and count and count not in (request.value(), limit.value()):
        found.invalid(
            m.at(_DEDICATED),
            f"the topology has {count} CPUs but resources ask for {request or limit}; remove resources.*.cpu or make "
            "them equal",
        )
    threads = m.cpu.get("threads") or 0
    if threads > 1 and m.architecture == "arm64":
        found.invalid(m.at("architecture"), f"arm64 has one thread per core, not {threads}; set cpu.threads to 1")
    if threads > 2:
        found.invalid(
            m.at(_DEDICATED), f"dedicated CPUs have at most 2 threads per core, not {threads}; use more cores"
        )


def _check_numa(m: Machine, found: Findings) -> None:
    field = m.at("domain.cpu.numa.guestMappingPassthrough")
    if (m.cpu.get("numa") or {}).get("guestMappingPassthrough") is not None:
        if not m.cpu.get("dedicatedCpuPlacement"):
            found.invalid(field, f"NUMA passthrough needs dedicated CPUs; set {m.at(_DEDICATED)}: true")
        if m.memory.get("hugepages") is None:
            found.invalid(field, f"NUMA passthrough needs huge pages; set {m.at('domain.memory.hugepages.pageSize')}")
    elif m.cpu.get("realtime") is not None:
        found.required(field, "realtime needs NUMA passthrough; set domain.cpu.numa.guestMappingPassthrough: {}")
    if m.cpu.get("realtime") is not None and not m.cpu.get("dedicatedCpuPlacement"):
        found.required(m.at(_DEDICATED), "realtime needs dedicated CPUs; set dedicatedCpuPlacement: true")


def _check_cpu_extras(m: Machine, found: Findings) -> None:
    if m.cpu.get("isolateEmulatorThread") and not m.cpu.get("dedicatedCpuPlacement"):
        found.invalid(
            m.at("domain.cpu.isolateEmulatorThread"),
            f"a CPU for the emulator alone needs dedicated CPUs; set {m.at(_DEDICATED)}: true",
        )
    model = m.cpu.get("model") or ""
    if label_key_error(f"{CPU_MODEL}{model or 'x'}"):  # nodes say by labels what they have
        found.invalid(
            m.at("domain.cpu.model"), f"{model!r} is not the name of a CPU model; leave it out for the default"
        )
    for i, feature in enumerate(m.cpu.get("features") or ()):
        if label_key_error(f"{CPU_FEATURE}{feature.get('name') or ''}"):
            at = m.at(f"domain.cpu.features[{i}].name")
            found.invalid(at, f"{feature.get('name')!r} is not the name of a CPU feature; write it like aes")
        policy = feature.get("policy") or ""
        if policy not in _POLICIES:
            found.unsupported(
                m.at(f"domain.cpu.features[{i}].policy"),
                f"policy {policy!r} of CPU feature {feature.get('name')} does not exist; use one of "
                f"{', '.join(_POLICIES[1:])}",
            )


def _check_io_threads(m: Machine, found: Findings) -> None:
    count = read(m.domain, "ioThreads").get("supplementalPoolThreadCount") or 0
    if not 0 <= count <= _MOST_VCPUS:
        field = m.at("domain.ioThreads.supplementalPoolThreadCount")
        found.invalid(field, f"{count} threads cannot be had; use 0 to {_MOST_VCPUS}")


def check_memory_is_given(m: Machine, found: Findings) -> None:
    """A VMI must say how much memory it has; a template may leave that to an instance type."""
    if not m.requests.get("memory") and m.guest is None and m.memory.get("hugepages") is None:
        found.required("", f"the VM has no memory; set {m.at('domain.memory.guest')}, for example to 1Gi")
