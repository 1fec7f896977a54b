"""The domain document of a VMI that QEMU runs, part by part."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final
from xml.etree.ElementTree import Element

from virtfleet.api import names
from virtfleet.api.vmi import VirtualMachineInstance as VMI
from virtfleet.domain import common, hostdevices, paths
from virtfleet.domain.context import Context
from virtfleet.domain.xml import add
from virtfleet.hypervisors.qemu import adapt, controllers, devices, firmware, machine
from virtfleet.hypervisors.qemu.disks import disks
from virtfleet.hypervisors.qemu.draft import Draft
from virtfleet.hypervisors.qemu.iothreads import threads
from virtfleet.hypervisors.qemu.pinning import pinning

_PRETEND_DEVICE = "edu"  # QEMU's PCI device for teaching, 1234:11e8: it does next to nothing, but guests see it
_FIRMWARE_LOG = f"{paths.PRIVATE}/QEMUSeaBiosDebugPipe"


def build(vmi: VMI, context: Context, domain_type: str) -> Element:
    """The document. Parts are independent of each other, but for the last ones, which refine what is there."""
    draft = Draft(vmi, context, domain_type)
    for part in _PARTS:
        part(draft)
    return draft.root


def _common(draft: Draft) -> None:
    common.clock(draft.root, draft.vmi)
    common.smbios(draft.root, draft.vmi, draft.context.smbios)
    common.reboot_policy(draft.root, draft.vmi)
    hostdevices.host_devices(draft.devices, draft.vmi, draft.context)


def _io_threads(draft: Draft) -> None:
    if total := threads(draft.vmi).total:
        add(draft.root, "iothreads", total)


def _command_line(draft: Draft) -> None:
    """Arguments for what libvirt has no element for."""
    arguments: list[str] = []
    metadata = draft.vmi.metadata
    if "ignition" in metadata.annotations.get(names.IGNITION, ""):
        file = paths.ignition(metadata.namespace, metadata.name)
        arguments += ["-fw_cfg", f"name=opt/com.coreos/config,file={file}"]
    if draft.context.verbose and draft.architecture.pc:
        arguments += ["-chardev", f"file,id=firmwarelog,path={_FIRMWARE_LOG}"]
        arguments += ["-device", "isa-debugcon,iobase=0x402,chardev=firmwarelog"]
    for alias in hostdevices.emulated(draft.vmi, draft.context):
        # As JSON, like libvirt's own: QEMU would put it first otherwise, on a slot that libvirt chose for another one.
        arguments += ["-device", f'{{"driver":"{_PRETEND_DEVICE}","id":"{alias}"}}']
    adapt.pass_on(draft.root, *arguments)


_PARTS: Final[tuple[Callable[[Draft], None], ...]] = (
    machine.memory,
    machine.memory_backing,
    machine.cpu,
    machine.features,
    machine.launch_security,
    firmware.operating_system,
    _common,
    _io_threads,
    devices.network,
    devices.serial_console,
    devices.channels,
    devices.tpm,
    devices.vsock,
    devices.rng,
    devices.inputs,
    devices.balloon,
    devices.graphics,
    devices.sound,
    devices.watchdog,
    devices.panic,
    devices.filesystems,
    disks,
    devices.usb_redirection,
    controllers.controllers,
    _command_line,
    pinning,
    controllers.place_on_root_complex,
)
