"""What QEMU's Pod asks its node for: devices, and memory for what a machine has beside CPUs and memory."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from virtfleet.api import traits
from virtfleet.api.vmi import VirtualMachineInstance as VMI

_MI: Final = 1024 * 1024
IO_THREADS: Final = 8 * _MI
VIDEO: Final = 32 * _MI
TPM: Final = 53 * _MI
ARM64_FIRMWARE: Final = 128 * _MI
ENCRYPTED_MEMORY: Final = 256 * _MI


def devices(vmi: VMI, *, emulated: bool) -> Iterator[str]:
    """Devices under devices.kubevirt.io, beside the accelerator's and taps."""
    spec = vmi.spec.domain.devices
    if not emulated and any((i.model or "virtio") == "virtio" for i in traits.taps(vmi)):
        yield "vhost-net"
    if spec.autoattach_vsock:
        yield "vhost-vsock"
    if traits.sev(vmi):
        yield "sev"
    if traits.tdx(vmi):
        yield "tdx"
    if any(d.lun and d.lun.reservation for d in spec.disks):
        yield "pr-helper"


def memory(vmi: VMI) -> int:
    """Bytes for devices and firmware."""
    spec = vmi.spec.domain
    amount = IO_THREADS if spec.io_threads_policy or any(d.dedicated_io_thread for d in spec.devices.disks) else 0
    amount += VIDEO if traits.graphics(vmi) else 0
    amount += TPM if spec.devices.tpm and spec.devices.tpm.enabled is not False else 0
    amount += ARM64_FIRMWARE if vmi.spec.architecture == "arm64" else 0
    return amount + ENCRYPTED_MEMORY if traits.sev(vmi) else amount
