"""A VM with what its instance type and its preference add, and where they contradict each other. Pure."""

from __future__ import annotations

import struct
from collections.abc import Iterator

from virtfleet.admission import defaults
from virtfleet.admission.findings import Findings
from virtfleet.admission.instancetypes import CORES, SPREAD, SPREADS, THREADS, THREADS_PER_CORE, spread, topology
from virtfleet.admission.sections import Obj, Section, copy_of, extend, read
from virtfleet.admission.updates import RESERVED_ANNOTATIONS
from virtfleet.api.quantity import Quantity
from virtfleet.installation import Installation
from virtfleet.instancetypes.matching import PARTS, Types
from virtfleet.instancetypes.preferences import prefer

_TEMPLATE = "spec.template.spec"
_CPU = {  # fields of the type, and where they go in the VM
    "model": "model",
    "dedicatedCPUPlacement": "dedicatedCpuPlacement",
    "isolateEmulatorThread": "isolateEmulatorThread",
    "numa": "numa",
    "realtime": "realtime",
}
_WHOLE = {  # the same for what is not of CPU or memory
    "nodeSelector": "nodeSelector",
    "schedulerName": "schedulerName",
    "ioThreadsPolicy": "domain.ioThreadsPolicy",
    "ioThreads": "domain.ioThreads",
    "launchSecurity": "domain.launchSecurity",
    "gpus": "domain.devices.gpus",
    "hostDevices": "domain.devices.hostDevices",
}
_SILENT: tuple[object, ...] = (None, "", False, [])


class Conflict(Exception):
    """A VM says itself what its instance type says, or one of the two cannot be."""

    def __init__(self, fields: list[str], message: str = "") -> None:
        super().__init__(message or f"VM field(s) {', '.join(fields)} conflicts with selected instance type")
        self.fields = fields
        self.message = message

    def tell(self, findings: Findings) -> None:
        """Each field by itself."""
        for field in self.fields:
            findings.invalid(field, self.message or str(Conflict([field])))


def applied(template: Section, types: Types) -> Obj:
    """A template with its instance type and preference, and no other defaults. Raises Conflict."""
    template, preference = copy_of(template), types.preference or {}
    if types.instancetype is not None:
        if message := _uneven(types.instancetype, preference):
            raise Conflict(["instancetype.spec.cpu.guest"], message)
        if fields := list(_conflicts(types.instancetype, template)):
            raise Conflict(fields)
        _apply(copy_of(types.instancetype), preference, template)
    if reserved := [name for name in RESERVED_ANNOTATIONS if name in read(preference, "annotations")]:
        raise Conflict([f"annotations.{name}" for name in reserved], "a preference cannot set what VirtFleet sets")
    if types.preference is not None:
        prefer(template, types.preference)
    return template


def expanded(template: Section, types: Types, cluster: Installation) -> Obj:
    """A template as its instances are made: preferences hold for the devices, too, that every VM gets."""
    whole = applied(template, types)
    devices = extend(whole, "spec", "domain", "devices")
    if devices.get("autoattachInputDevice") and not devices.get("inputs"):
        devices["inputs"] = [{"name": "default-0"}]
    defaults.complete_devices(whole["spec"], cluster)
    if types.preference is not None:
        prefer(whole, types.preference)
    return whole


def standing_alone(vm: Section, types: Types, cluster: Installation) -> Obj:
    """The VM as it would be if it had been written without either, with its defaults."""
    vm = copy_of(vm)
    vm["spec"]["template"] = expanded(vm["spec"]["template"], types, cluster)
    defaults.complete_vmi_spec(vm["spec"]["template"]["spec"], cluster)
    for part in PARTS:
        vm["spec"].pop(part.field, None)
        vm.get("status", {}).pop(part.ref, None)
    return vm


def with_template(vm: Section, template: Section) -> Obj:
    return {**vm, "spec": {**vm["spec"], "template": template}}


def _conflicts(instancetype: Section, template: Section) -> Iterator[str]:
    spec = read(template, "spec")
    domain = read(spec, "domain")
    for field, target in _WHOLE.items():
        *parents, last = target.split(".")
        if _says(instancetype, field) and _says(read(spec, *parents), last):
            yield f"{_TEMPLATE}.{target}" + (".supplementalPoolThreadCount" if field == "ioThreads" else "")
    cpu, memory = read(domain, "cpu"), read(domain, "memory")
    for kind in ("requests", "limits"):
        for name in ("cpu", "memory"):
            if name in read(domain, "resources", kind):
                yield f"{_TEMPLATE}.domain.resources.{kind}.{name}"
    for field in ("sockets", "cores", "threads"):
        if _says(cpu, field):
            yield f"{_TEMPLATE}.domain.cpu.{field}"
    for field, target in _CPU.items():
        if read(instancetype, "cpu").get(field) is not None and _says(cpu, target):
            yield f"{_TEMPLATE}.domain.cpu.{field}"
    for field in ("guest", "hugepages", "maxGuest"):
        if memory.get(field) is not None and (field == "guest" or _says(read(instancetype, "memory"), field)):
            yield f"{_TEMPLATE}.domain.memory.{field}"
    present = read(template, "metadata", "annotations")
    for name, value in read(instancetype, "annotations").items():
        if name in RESERVED_ANNOTATIONS or present.get(name, value) != value:
            yield f"annotations.{name}"


def _says(section: Section, field: str) -> bool:
    return section.get(field) not in _SILENT


def _apply(instancetype: Section, preference: Section, template: Obj) -> None:
    spec = extend(template, "spec")
    domain = extend(spec, "domain")
    for field, target in _WHOLE.items():
        if _says(instancetype, field):
            *parents, last = target.split(".")
            extend(spec, *parents)[last] = instancetype[field]
    cpu, of_type = extend(domain, "cpu"), read(instancetype, "cpu")
    cpu |= {target: of_type[field] for field, target in _CPU.items() if of_type.get(field) is not None}
    if of_type.get("maxSockets"):
        cpu["maxSockets"] = of_type["maxSockets"]
    cpu |= _topology(of_type.get("guest") or 0, preference)
    _apply_memory(read(instancetype, "memory"), domain)
    if annotations := read(instancetype, "annotations"):
        extend(template, "metadata", "annotations").update(annotations)


def _apply_memory(of_type: Section, domain: Obj) -> None:
    guest = Quantity.parse(of_type.get("guest") or 0)
    memory = extend(domain, "memory")
    if guest:
        memory["guest"] = str(guest)
    memory |= {field: of_type[field] for field in ("hugepages", "maxGuest") if of_type.get(field) is not None}
    if percent := of_type.get("overcommitPercent"):
        # In single precision, as KubeVirt computes it: the request is what its users see.
        request = _single(_single(guest.value()) * _single(1 - _single(percent / 100)))
        extend(domain, "resources", "requests")["memory"] = str(Quantity.of(int(request), guest.format))


def _single(value: float) -> float:
    rounded: float = struct.unpack("f", struct.pack("f", value))[0]
    return rounded


def _topology(vcpus: int, preference: Section) -> dict[str, int]:
    shown = {"cores": 1, "sockets": 1, "threads": 1}
    wanted = topology(preference)
    if vcpus <= 1:
        return shown if vcpus else {}  # a type for memory alone leaves CPUs to the defaults
    if wanted == SPREAD:
        ratio, across = spread(preference)
        first, *_, last = SPREADS[across]
        if len(SPREADS[across]) == len(shown):
            return {"sockets": vcpus // THREADS_PER_CORE // ratio, "cores": ratio, "threads": THREADS_PER_CORE}
        return {**shown, first: vcpus // ratio, last: ratio}
    return {**shown, wanted if wanted in (CORES, THREADS) else "sockets": vcpus}


def _uneven(instancetype: Section, preference: Section) -> str:
    """Why CPUs cannot be spread as the preference wants it, or nothing."""
    if topology(preference) != SPREAD:
        return ""
    vcpus, (ratio, across) = read(instancetype, "cpu").get("guest") or 0, spread(preference)
    of_preference = "Spec.PreferSpreadSocketToCoreRatio or Spec.CPU.PreferSpreadOptions.Ratio of"
    head = f"{vcpus} vCPUs provided by the instance type are not divisible by the"
    if across == "SocketsCores" and vcpus % ratio:
        return f"{head} {of_preference} {ratio} provided by the preference"
    if across == "CoresThreads" and vcpus % ratio:
        return f"{head} number of threads per core {ratio}"
    if across == "SocketsCoresThreads" and vcpus % (THREADS_PER_CORE * ratio):
        return f"{head} number of threads per core {THREADS_PER_CORE} and {of_preference} {ratio}"
    return ""
