"""What guests of an architecture can have. Checked for VMIs, whose architecture is settled."""

from __future__ import annotations

from virtfleet.admission.findings import Findings
from virtfleet.admission.machine import Machine
from virtfleet.admission.sections import read

_VIDEO = {"amd64": ("vga", "cirrus", "virtio", "ramfb", "bochs"), "arm64": ("virtio", "ramfb"), "s390x": ("virtio",)}
_WATCHDOG = {"amd64": "i6300esb", "s390x": "diag288"}


def check(m: Machine, found: Findings) -> None:
    if m.architecture not in _VIDEO:
        known = ", ".join(_VIDEO)
        found.invalid(m.at("architecture"), f"architecture {m.architecture!r} is not known; use one of {known}")
        return
    video = m.devices.get("video")
    if video is not None and video.get("type") not in _VIDEO[m.architecture]:
        found.unsupported(
            m.at("domain.devices.video.type"),
            f"there is no video device {video.get('type')!r} on {m.architecture}; use one of "
            f"{', '.join(_VIDEO[m.architecture])}",
        )
    watchdog = m.devices.get("watchdog")
    if watchdog is not None and m.architecture in _WATCHDOG:
        device = _WATCHDOG[m.architecture]
        if [kind for kind in _WATCHDOG.values() if watchdog.get(kind) is not None] != [device]:
            found.unsupported(
                m.at("domain.devices.watchdog"), f"the watchdog of {m.architecture} is {device}; use that"
            )
    if m.architecture == "arm64":
        _check_arm64(m, found)


def _check_arm64(m: Machine, found: Findings) -> None:
    if read(m.domain, "firmware", "bootloader").get("bios") is not None:
        found.unsupported(m.at("domain.firmware.bootloader.bios"), "arm64 has no BIOS; use bootloader.efi")
    model = m.cpu.get("model")
    if model and model != "host-passthrough":
        found.unsupported(m.at("domain.cpu.model"), f"arm64 has no CPU model {model!r}; use host-passthrough")
    for i, disk in enumerate(m.disks):
        for target in ("disk", "cdrom", "lun"):
            bus = read(disk, target).get("bus") or ""
            if bus not in ("", "virtio", "scsi"):
                found.unsupported(
                    m.at(f"domain.devices.disks[{i}].{target}.bus"), f"arm64 has no {bus} bus; use virtio or scsi"
                )
    if m.devices.get("watchdog") is not None:
        found.unsupported(m.at("domain.devices.watchdog"), "arm64 has no watchdog; remove it")
    if m.devices.get("sound") is not None:
        found.unsupported(m.at("domain.devices.sound"), "arm64 has no sound device; remove it")
