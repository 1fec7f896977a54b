"""What a launcher Pod asks its node for: the guest's memory and CPUs, what runs beside the guest, and devices."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from virtfleet.api import names, traits
from virtfleet.api.devices import GPU, HostDevice
from virtfleet.api.networks import ClaimRequest
from virtfleet.api.quantity import BINARY, Quantity
from virtfleet.api.vmi import VirtualMachineInstance as VMI
from virtfleet.hypervisors.base import Hypervisor
from virtfleet.installation import Installation

_MI = 1024 * 1024

# Memory beside the guest's own, in bytes, for what has nothing to do with its hypervisor.
OWN_CPUS = 100 * _MI  # nothing is reclaimed from a Pod with CPUs of its own, so it gets a margin
PROBES, PER_PROBE = 100 * _MI, 10 * _MI


def requirements(vmi: VMI, hypervisor: Hypervisor, settings: Installation) -> dict[str, Any]:
    """`resources` of the compute container."""
    requests = dict(vmi.spec.domain.resources.requests)
    limits = dict(vmi.spec.domain.resources.limits)
    _memory(vmi, requests, limits, overhead(vmi, hypervisor, settings), settings)
    _cpus(vmi, requests, limits, settings)
    for device, count in devices(vmi, hypervisor, settings).items():
        requests[device] = limits[device] = str(count)
    result: dict[str, Any] = {"requests": _canonical(requests)}
    if limits:
        result["limits"] = _canonical(limits)
    if claims := _claims(vmi):
        result["claims"] = claims
    return result


def add_limits(wanted: dict[str, Any], given: Mapping[str, float]) -> bool:
    """Give a container limits that it does not have: so many CPUs, and so many times the memory that it asks for."""
    limits = wanted.setdefault("limits", {})
    missing = given.keys() - limits.keys()
    for name in missing:
        request = Quantity.parse(wanted["requests"][name])
        memory = name == "memory"
        limit = Quantity.of(int(request.value() * given[name]), BINARY) if memory else Quantity.of(int(given[name]))
        limits[name] = str(max(limit, request))
    return bool(missing)


def overhead(vmi: VMI, hypervisor: Hypervisor, settings: Installation) -> Quantity:
    """Memory that a VM needs beside its guest's."""
    amount = hypervisor.descriptor.overheads.total(emulated=settings.emulation).value() + hypervisor.memory(vmi)
    amount += OWN_CPUS if traits.dedicated_cpus(vmi) else 0
    inside = traits.probes_inside(vmi)
    amount += PROBES + PER_PROBE * inside if inside else 0
    amount = -(-amount * settings.overhead_ratio.numerator // settings.overhead_ratio.denominator)
    memory = vmi.spec.domain.memory
    reserved = memory.reserved_overhead if memory else None
    if reserved and reserved.added_overhead is not None:
        amount += Quantity.parse(reserved.added_overhead).value()
    return Quantity.of(-(-amount // _MI) * _MI, BINARY)


def devices(vmi: VMI, hypervisor: Hypervisor, settings: Installation) -> Counter[str]:
    """Devices that device plugins hand out, and how many of each."""
    spec = vmi.spec.domain.devices
    own = hypervisor.devices(vmi, emulated=settings.emulation)
    wanted = Counter(names.DEVICE_PREFIX + device for device in own)
    assigned: list[GPU | HostDevice] = [*spec.gpus, *spec.host_devices]
    for device in assigned:
        if device.device_name and not device.claim_name:
            wanted[device.device_name] += 1
    return wanted


def _memory(
    vmi: VMI, requests: dict[str, Any], limits: dict[str, Any], beside: Quantity, settings: Installation
) -> None:
    guest = traits.memory(vmi)
    request = Quantity.parse(requests.get("memory") or limits.get("memory") or 0)
    if not request:
        request = Quantity.of(guest.value() * 100 // settings.memory_overcommit, BINARY)
    limit = Quantity.parse(limits["memory"]) if "memory" in limits else None
    if (memory := vmi.spec.domain.memory) and memory.hugepages:
        # The guest lies in huge pages, so of ordinary memory only what goes beyond it is left.
        pages = f"hugepages-{memory.hugepages.page_size}"
        requests[pages] = limits[pages] = min(request, guest)
        request = max(request - guest, Quantity.of(0))
        limit = max(limit - guest, Quantity.of(0)) if limit is not None else None
    if traits.dedicated_cpus(vmi):
        limit = request = max(request, limit or request)  # whole CPUs are only for Pods with equal requests and limits
    overcommitted = vmi.spec.domain.resources.overcommit_guest_overhead and not traits.dedicated_cpus(vmi)
    requests["memory"] = request if overcommitted else request + beside
    if limit is not None:
        limits["memory"] = limit + beside


def _cpus(vmi: VMI, requests: dict[str, Any], limits: dict[str, Any], settings: Installation) -> None:
    pool, vcpus = traits.pool_threads(vmi), traits.topology(vmi).vcpus
    if traits.dedicated_cpus(vmi):
        requests["cpu"] = limits["cpu"] = Quantity.of(vcpus + pool + traits.emulator_cpus(vmi))
    elif "cpu" not in requests:
        requests["cpu"] = limits.get("cpu") or Quantity.of_milli(-(-(vcpus + pool) * 1000 // settings.cpu_ratio))


def _claims(vmi: VMI) -> list[dict[str, str]]:
    """Devices out of the VM's resource claims."""
    spec = vmi.spec.domain.devices
    networks = [n.resource_claim for n in vmi.spec.networks if n.resource_claim]
    asked: list[GPU | HostDevice | ClaimRequest] = [*spec.gpus, *spec.host_devices, *networks]
    return [
        {"name": c.claim_name, **({"request": c.request_name} if c.request_name else {})} for c in asked if c.claim_name
    ]


def _canonical(amounts: dict[str, Any]) -> dict[str, str]:
    return {name: str(Quantity.parse(amount)) for name, amount in sorted(amounts.items())}
