"""A preference: what a guest likes, applied where its VM says nothing. Pure.

It never takes back what the VM says, and applying it twice is applying it once; the expansion of VMs relies on both.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from virtfleet.admission.sections import Obj, Section, copy_of, default, extend, read
from virtfleet.api.disks import TARGETS

_AUTOATTACHED = ("GraphicsDevice", "MemBalloon", "PodInterface", "SerialConsole", "InputDevice")
_FEATURES = ("acpi", "apic", "kvm", "pvspinlock", "smm")
# What goes from a field of the preference to a field of the VM's spec as it is.
_PLAIN = {
    "preferredSubdomain": "subdomain",
    "preferredTerminationGracePeriodSeconds": "terminationGracePeriodSeconds",
    "preferredArchitecture": "architecture",
    "preferredLaunchSecurity": "domain.launchSecurity",
    "machine.preferredMachineType": "domain.machine.type",
    "clock.preferredTimer": "domain.clock.timer",
    **{f"features.preferred{name.capitalize()}": f"domain.features.{name}" for name in _FEATURES},
    **{f"devices.preferredAutoattach{name}": f"domain.devices.autoattach{name}" for name in _AUTOATTACHED},
    "devices.preferredUseVirtioTransitional": "domain.devices.useVirtioTransitional",
    "devices.preferredBlockMultiQueue": "domain.devices.blockMultiQueue",
    "devices.preferredNetworkInterfaceMultiQueue": "domain.devices.networkInterfaceMultiqueue",
    "devices.preferredDisableHotplug": "domain.devices.disableHotplug",
    "devices.preferredRng": "domain.devices.rng",
    "devices.preferredTPM": "domain.devices.tpm",
    "devices.preferredVideoType": "domain.devices.video.type",
}
# The same for devices of which there may be several, or none, by the list that they are in.
_OF_DEVICES = {
    "inputs": {"preferredInputBus": "bus", "preferredInputType": "type"},
    "interfaces": {"preferredInterfaceModel": "model"},
    "panicDevices": {"preferredPanicDeviceModel": "model"},
    "gpus": {"preferredVirtualGPUOptions": "virtualGPUOptions"},
}
_OF_DISKS = {
    "preferredDiskBlockSize": "blockSize",
    "preferredDiskCache": "cache",
    "preferredDiskIO": "io",
    "preferredDiskDedicatedIoThread": "dedicatedIOThread",
}
_BINDINGS = ("masquerade", "bridge", "slirp", "sriov", "macvtap", "passt", "passtBinding", "binding")


def prefer(template: Obj, preference: Section) -> None:
    """Add to a template what the preference says and the template does not."""
    preference = copy_of(preference)
    spec = extend(template, "spec")
    domain = extend(spec, "domain")
    for source, target in _PLAIN.items():
        if (value := _at(preference, source)) not in (None, ""):
            *parents, last = target.split(".")
            default(extend(spec, *parents), last, value)
    _prefer_cpu_features(domain, preference)
    _prefer_hyperv(domain, read(preference, "features").get("preferredHyperv"))
    _prefer_clock(domain, read(preference, "clock").get("preferredClockOffset"))
    _prefer_firmware(domain, read(preference, "firmware"))
    _prefer_devices(spec, read(preference, "devices"))
    for name, value in read(preference, "annotations").items():
        extend(template, "metadata", "annotations").setdefault(name, value)


def _at(section: Section, path: str) -> Any:
    *parents, last = path.split(".")
    return read(section, *parents).get(last)


def _prefer_cpu_features(domain: Obj, preference: Section) -> None:
    wanted = read(preference, "cpu").get("preferredCPUFeatures") or ()
    known = {feature.get("name") for feature in read(domain, "cpu").get("features") or ()}
    if missing := [feature for feature in wanted if feature.get("name") not in known]:
        cpu = extend(domain, "cpu")
        cpu["features"] = [*(cpu.get("features") or ()), *missing]


def _prefer_hyperv(domain: Obj, preferred: Section | None) -> None:
    if preferred is not None:
        hyperv = extend(domain, "features", "hyperv")
        for name, value in preferred.items():
            default(hyperv, name, value)


def _prefer_clock(domain: Obj, preferred: Section | None) -> None:
    """Half of the VM's offset and half of another would be neither."""
    if preferred and not any(read(domain, "clock").get(field) is not None for field in ("utc", "timezone")):
        extend(domain, "clock").update(preferred)


def _prefer_firmware(domain: Obj, preferred: Section) -> None:
    """A VM boots with one of both, and the one that it names itself counts."""
    loader = read(domain, "firmware", "bootloader")
    neither = loader.get("bios") is None and loader.get("efi") is None
    if neither and preferred.get("preferredUseBios"):
        extend(domain, "firmware", "bootloader")["bios"] = {}
    elif neither and preferred.get("preferredEfi") is not None:
        extend(domain, "firmware", "bootloader")["efi"] = preferred["preferredEfi"]
    elif neither and preferred.get("preferredUseEfi"):
        extend(domain, "firmware", "bootloader")["efi"] = {}
    loader = read(domain, "firmware", "bootloader")
    parts = [("bios", "useSerial", "preferredUseBiosSerial")]
    if preferred.get("preferredEfi") is None:  # which says this, too
        parts.append(("efi", "secureBoot", "preferredUseSecureBoot"))
    for kind, field, name in parts:
        if loader.get(kind) is not None and preferred.get(name) is not None:
            default(extend(domain, "firmware", "bootloader", kind), field, preferred[name])


def _prefer_devices(spec: Obj, preferred: Section) -> None:
    if not preferred:
        return
    devices = extend(spec, "domain", "devices")
    if preferred.get("preferredPanicDeviceModel") and not devices.get("panicDevices"):
        devices["panicDevices"] = [{}]
    for kind, fields in _OF_DEVICES.items():
        for device in devices.get(kind) or ():
            _fill(device, preferred, fields)
    if devices.get("sound") is not None:
        _fill(devices["sound"], preferred, {"preferredSoundModel": "model"})
    for disk in devices.get("disks") or ():
        _prefer_disk(disk, preferred)
    if preferred.get("preferredInterfaceMasquerade") is not None:
        for interface in _unbound(spec):
            interface["masquerade"] = {}


def _fill(device: Obj, preferred: Section, fields: dict[str, str]) -> None:
    for source, target in fields.items():
        if preferred.get(source) not in (None, ""):
            default(device, target, preferred[source])


def _prefer_disk(disk: Obj, preferred: Section) -> None:
    target = next((kind for kind in TARGETS if disk.get(kind) is not None), "disk")
    _fill(extend(disk, target), preferred, {f"preferred{target.capitalize()}Bus": "bus"})
    if target == "disk":
        threaded = disk["disk"].get("bus") == "virtio"  # no other bus has threads
        _fill(disk, preferred, {k: v for k, v in _OF_DISKS.items() if threaded or v != "dedicatedIOThread"})


def _unbound(spec: Section) -> Iterator[Obj]:
    """Interfaces of the pod network that say nothing of how they are bound to it."""
    pod = {network.get("name") for network in spec.get("networks") or () if network.get("pod") is not None}
    for interface in read(spec, "domain", "devices").get("interfaces") or ():
        if interface.get("name") in pod and not any(interface.get(binding) is not None for binding in _BINDINGS):
            yield interface
