"""The serial console, reached through a socket of the launcher's Pod."""

from __future__ import annotations

from xml.etree.ElementTree import Element

from virtfleet.api import traits
from virtfleet.api.vmi import VirtualMachineInstance as VMI
from virtfleet.domain import paths
from virtfleet.domain.context import Context
from virtfleet.domain.xml import add


def serial_console(devices: Element, vmi: VMI, context: Context) -> None:
    if not traits.serial_console(vmi):
        return
    socket = paths.vmi_socket(vmi.metadata.uid, "virt-serial0")
    serial = add(devices, "serial", type="unix")
    add(serial, "target", port=0)
    add(serial, "source", mode="bind", path=socket)
    logged = vmi.spec.domain.devices.log_serial_console
    if context.serial_console_log if logged is None else logged:
        add(serial, "log", file=f"{socket}-log", append="on")
    console = add(devices, "console", type="pty")
    add(console, "target", type="serial", port=0)
