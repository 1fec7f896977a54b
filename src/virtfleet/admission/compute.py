"""Rules for memory, CPU, NUMA and the machine type."""

from __future__ import annotations

from fnmatch import fnmatchcase

from virtfleet.admission.case import ZERO, Case
from virtfleet.api import traits
from virtfleet.api.names import CPU_FEATURE, CPU_MODEL
from virtfleet.api.quantity import Quantity, QuantityError
from virtfleet.api.selectors import label_key_error

_LEAST_MEMORY = Quantity.parse("1M")
_MOST_VCPUS = 4096  # of the largest machine types that QEMU has
_MOST_COUNTED = 2**31 - 1  # of the number of sockets
_SHARED = ("cpu", "memory", "ephemeral-storage")
_POLICIES = ("", "force", "require", "optional", "disable", "forbid")
_REQUEST, _LIMIT = "domain.resources.requests", "domain.resources.limits"
_DEDICATED = "domain.cpu.dedicatedCpuPlacement"


def check(case: Case) -> None:
    _check_memory(case)
    _check_hugepages(case)
    _check_whole_resources(case)
    _check_machine_type(case)
    _check_cpu_amounts(case)
    _check_topology(case)
    if case.cpu.dedicated_cpu_placement:
        _check_dedicated_cpus(case)
        _check_threads(case)
    _check_numa(case)
    _check_cpu_extras(case)
    _check_io_threads(case)


def _check_memory(case: Case) -> None:
    field, request, limit = f"{_REQUEST}.memory", case.requests.get("memory", ZERO), case.limits.get("memory", ZERO)
    if request < ZERO:
        case.invalid(field, f"memory request {request} is negative; ask for at least 1M")
    elif ZERO < request < _LEAST_MEMORY:
        case.invalid(field, f"memory request {request} is less than 1M; a unit such as Mi may be missing")
    if limit < ZERO:
        case.invalid(f"{_LIMIT}.memory", f"memory limit {limit} is negative; remove it or raise it")
    elif limit and request > limit:
        case.invalid(
            field, f"memory request {request} is more than the limit {limit}; lower the request or raise the limit"
        )
    if case.guest is not None:
        _check_guest_memory(case, case.guest, limit)
    if case.memory.reserved_overhead is not None:
        case.needs_gate("domain.memory.reservedOverhead", "ReservedOverheadMemlock", "memory.reservedOverhead")


def _check_guest_memory(case: Case, guest: Quantity, limit: Quantity) -> None:
    field, most = "domain.memory.guest", case.memory.max_guest
    if guest < _LEAST_MEMORY and not case.requests.get("memory"):
        case.invalid(field, f"guest memory {guest} is less than 1M; a unit such as Mi may be missing")
    if limit and guest > limit:
        case.invalid(
            field,
            f"guest memory {guest} is more than the memory limit {limit}, so the VM would be killed when it uses it; "
            f"raise {case.at(f'{_LIMIT}.memory')} or lower guest",
        )
    if most is not None and guest > Quantity.parse(most):
        case.invalid(field, f"guest memory {guest} is more than maxGuest {most}; raise maxGuest or lower guest")


def _check_hugepages(case: Case) -> None:
    if case.memory.hugepages is None:
        return
    text = case.memory.hugepages.page_size
    try:
        page = Quantity.parse(text)
    except QuantityError:
        page = ZERO
    if page <= ZERO:
        case.invalid("domain.memory.hugepages.pageSize", f"{text!r} is not a page size; use 2Mi or 1Gi")
        return
    field, memory = f"{_REQUEST}.memory", case.requests.get("memory") or case.guest or case.limits.get("memory", ZERO)
    if memory and memory < page:
        case.invalid(field, f"memory {memory} is less than one huge page of {page}; ask for more memory")
    elif memory.value() % page.value():
        case.invalid(field, f"memory {memory} is not a multiple of the huge page size {page}; round it up")


def _check_whole_resources(case: Case) -> None:
    """Devices and huge pages are had or not: Kubernetes wants their request and limit to be one number."""
    for name in {**case.requests, **case.limits}:
        field = f"{_REQUEST}.{name}"
        if name in _SHARED:
            continue
        if "/" not in name and not name.startswith("hugepages-"):
            case.invalid(field, f"{name!r} is no resource; use cpu, memory or one that a node offers")
            continue
        if why := label_key_error(name):
            case.invalid(field, f"{name!r} is not the name of a resource: {why}")
        request, limit = case.requests.get(name), case.limits.get(name)
        if limit is None or (request is not None and request != limit):
            case.invalid(f"{_LIMIT}.{name}", f"{name} cannot be shared; set its limit, to the same as its request")


def _check_machine_type(case: Case) -> None:
    machine = case.domain.machine.type if case.domain.machine else ""
    allowed = case.cluster.emulated_machines(case.architecture)
    if machine and not any(fnmatchcase(machine, pattern) for pattern in allowed):
        case.invalid(
            "domain.machine.type",
            f"machine type {machine!r} is not allowed on {case.architecture}; use one that matches "
            f"{', '.join(allowed)}, or leave it out for the default",
        )


def _check_cpu_amounts(case: Case) -> None:
    request, limit = case.requests.get("cpu", ZERO), case.limits.get("cpu", ZERO)
    for kind, amount in ((_REQUEST, request), (_LIMIT, limit)):
        if amount < ZERO:
            case.invalid(f"{kind}.cpu", f"{amount} CPUs is negative; use 0 or more")
    if limit > ZERO and request.milli() > limit.milli():
        message = f"CPU request {request} is more than the limit {limit}; lower the request or raise the limit"
        case.invalid(f"{_REQUEST}.cpu", message)


def _check_topology(case: Case) -> None:
    cpu = case.cpu
    counts = {"cores": cpu.cores, "sockets": cpu.sockets, "threads": cpu.threads, "maxSockets": cpu.max_sockets}
    for name, count in counts.items():
        if (count or 0) < 0:
            case.invalid(f"domain.cpu.{name}", f"{count} {name} is negative; use 1 or more")
    largest = max(traits.stated_vcpus(cpu, cpu.sockets), traits.stated_vcpus(cpu, cpu.max_sockets))
    # Who requests as many CPUs of a node reads from the scheduler that there is none, as with any Pod.
    requested = largest <= _MOST_COUNTED and not case.requests.get("cpu", ZERO) < Quantity.of(largest)
    if largest > _MOST_VCPUS and not requested:
        case.invalid(
            "domain.cpu",
            f"{largest} virtual CPUs are more than any hypervisor has ({_MOST_VCPUS}); lower cores, sockets, "
            "maxSockets or threads, or resources.requests.cpu where sockets come of it",
        )
    if cpu.max_sockets and (cpu.sockets or 0) > cpu.max_sockets:
        message = f"{cpu.sockets} sockets are more than maxSockets {cpu.max_sockets}; raise maxSockets or lower sockets"
        case.invalid("domain.cpu.sockets", message)


def _check_dedicated_cpus(case: Case) -> None:
    request, limit = case.requests.get("cpu", ZERO), case.limits.get("cpu", ZERO)
    count = traits.stated_vcpus(case.cpu, case.cpu.sockets)
    memory_request, memory_limit = case.requests.get("memory", ZERO), case.limits.get("memory", ZERO)
    if not (memory_limit or memory_request or case.guest or case.memory.hugepages is not None):
        case.invalid(f"{_LIMIT}.memory", "dedicated CPUs need a fixed amount of memory; set domain.memory.guest")
    for kind, amount in ((_REQUEST, request), (_LIMIT, limit)):
        if amount > ZERO and amount.value() * 1000 != amount.milli():
            case.invalid(f"{kind}.cpu", f"{amount} is not a whole number of CPUs, and only those can be dedicated")
    if memory_request > ZERO and memory_limit > ZERO and memory_request.value() != memory_limit.value():
        case.invalid(
            f"{_REQUEST}.memory",
            f"with dedicated CPUs memory request {memory_request} and limit {memory_limit} must be equal; change one",
        )
    if not request.value() and not limit.value() and not count:
        case.invalid(_DEDICATED, "dedicated CPUs need to know how many; set domain.cpu.cores")
    if request > ZERO and limit > ZERO and request.value() != limit.value():
        case.invalid(
            _DEDICATED, f"with dedicated CPUs the CPU request {request} and limit {limit} must be equal; change one"
        )
    if (request > ZERO or limit > ZERO) and count and count not in (request.value(), limit.value()):
        case.invalid(
            _DEDICATED,
            f"the topology has {count} CPUs but resources ask for {request or limit}; remove resources.*.cpu or make "
            "them equal",
        )


def _check_threads(case: Case) -> None:
    """What dedicated CPUs want of the threads of a core."""
    threads = case.cpu.threads or 0
    if threads > 1 and case.architecture == "arm64":
        case.invalid("architecture", f"arm64 has one thread per core, not {threads}; set cpu.threads to 1")
    if threads > 2:
        case.invalid(_DEDICATED, f"dedicated CPUs have at most 2 threads per core, not {threads}; use more cores")


def _check_numa(case: Case) -> None:
    field, cpu = "domain.cpu.numa.guestMappingPassthrough", case.cpu
    if cpu.numa and cpu.numa.guest_mapping_passthrough is not None:
        if not cpu.dedicated_cpu_placement:
            case.invalid(field, f"NUMA passthrough needs dedicated CPUs; set {case.at(_DEDICATED)}: true")
        if case.memory.hugepages is None:
            pages = case.at("domain.memory.hugepages.pageSize")
            case.invalid(field, f"NUMA passthrough needs huge pages; set {pages}")
    elif cpu.realtime is not None:
        case.required(field, "realtime needs NUMA passthrough; set domain.cpu.numa.guestMappingPassthrough: {}")
    if cpu.realtime is not None and not cpu.dedicated_cpu_placement:
        case.required(_DEDICATED, "realtime needs dedicated CPUs; set dedicatedCpuPlacement: true")


def _check_cpu_extras(case: Case) -> None:
    if case.cpu.isolate_emulator_thread and not case.cpu.dedicated_cpu_placement:
        message = f"a CPU for the emulator alone needs dedicated CPUs; set {case.at(_DEDICATED)}: true"
        case.invalid("domain.cpu.isolateEmulatorThread", message)
    model = case.cpu.model
    if label_key_error(f"{CPU_MODEL}{model or 'x'}"):  # nodes say by labels what they have
        case.invalid("domain.cpu.model", f"{model!r} is not the name of a CPU model; leave it out for the default")
    for i, feature in enumerate(case.cpu.features):
        field = f"domain.cpu.features[{i}]"
        if label_key_error(f"{CPU_FEATURE}{feature.name}"):
            case.invalid(f"{field}.name", f"{feature.name!r} is not the name of a CPU feature; write it like aes")
        if feature.policy not in _POLICIES:
            case.unsupported(
                f"{field}.policy",
                f"policy {feature.policy!r} of CPU feature {feature.name} does not exist; use one of "
                f"{', '.join(_POLICIES[1:])}",
            )


def _check_io_threads(case: Case) -> None:
    if not 0 <= (count := traits.pool_threads(case.vmi)) <= _MOST_VCPUS:
        field = "domain.ioThreads.supplementalPoolThreadCount"
        case.invalid(field, f"{count} threads cannot be had; use 0 to {_MOST_VCPUS}")


def check_memory_is_given(case: Case) -> None:
    """A VMI must say how much memory it has; a template may leave that to an instance type."""
    if not case.requests.get("memory") and case.guest is None and case.memory.hugepages is None:
        field = case.at("domain.memory.guest")
        case.whole.required("", f"the VM has no memory; set {field}, for example to 1Gi")
