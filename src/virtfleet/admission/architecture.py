"""What guests of an architecture can have. Checked for VMIs, whose architecture is settled."""

from __future__ import annotations

from virtfleet.admission.case import Case
from virtfleet.api.disks import TARGETS
from virtfleet.api.view import given, part

_VIDEO = {"amd64": ("vga", "cirrus", "virtio", "ramfb", "bochs"), "arm64": ("virtio", "ramfb"), "s390x": ("virtio",)}
_WATCHDOG = {"amd64": "i6300esb", "s390x": "diag288"}


def check(case: Case) -> None:
    architecture, video, watchdog = case.architecture, case.devices.video, case.devices.watchdog
    if architecture not in _VIDEO:
        known = ", ".join(_VIDEO)
        case.invalid("architecture", f"architecture {architecture!r} is not known; use one of {known}")
        return
    if video is not None and video.type not in _VIDEO[architecture]:
        known = ", ".join(_VIDEO[architecture])
        message = f"there is no video device {video.type!r} on {architecture}; use one of {known}"
        case.unsupported("domain.devices.video.type", message)
    device = _WATCHDOG.get(architecture)
    if watchdog is not None and device and given(watchdog, _WATCHDOG.values()) != [device]:
        case.unsupported("domain.devices.watchdog", f"the watchdog of {architecture} is {device}; use that")
    if architecture == "arm64":
        _check_arm64(case)


def _check_arm64(case: Case) -> None:
    firmware, model = case.domain.firmware, case.cpu.model
    if firmware and firmware.bootloader and firmware.bootloader.bios is not None:
        case.unsupported("domain.firmware.bootloader.bios", "arm64 has no BIOS; use bootloader.efi")
    if model and model != "host-passthrough":
        case.unsupported("domain.cpu.model", f"arm64 has no CPU model {model!r}; use host-passthrough")
    for i, disk in enumerate(case.devices.disks):
        for target in TARGETS:
            bus = part(disk, f"{target}.bus")
            if bus not in (None, "", "virtio", "scsi"):
                case.unsupported(
                    f"domain.devices.disks[{i}].{target}.bus", f"arm64 has no {bus} bus; use virtio or scsi"
                )
    if case.devices.watchdog is not None:
        case.unsupported("domain.devices.watchdog", "arm64 has no watchdog; remove it")
    if case.devices.sound is not None:
        case.unsupported("domain.devices.sound", "arm64 has no sound device; remove it")
