"""Devices of a QEMU domain other than disks, controllers and host devices; one function for each."""

from __future__ import annotations

from xml.etree.ElementTree import Element

from virtfleet.api import names, traits
from virtfleet.domain import interfaces, paths
from virtfleet.domain.errors import DomainError
from virtfleet.domain.xml import add, on_off
from virtfleet.hypervisors.qemu.draft import Draft

_VIDEO_MEMORY = 16384  # KiB


def network(draft: Draft) -> None:
    for interface, tap in interfaces.attached(draft.vmi, draft.context):
        element = add(draft.devices, "interface")
        model, queues = interface.model or "virtio", interfaces.queues(draft.vmi, interface)
        add(element, "model", type=draft.virtio if model == "virtio" else model)
        if model == "virtio" and (queues or draft.iommu):
            add(element, "driver", name="vhost", queues=queues or None, iommu=draft.iommu)
        if interface.pci_address:
            interfaces.pci_address(element, interface.pci_address, f"interface {interface.name!r}")
        if interface.acpi_index and interface.acpi_index > 0:
            add(element, "acpi", index=interface.acpi_index)
        if interface.mac_address:
            add(element, "mac", address=interface.mac_address)
        if tap:
            element.set("type", "ethernet")
            if interface.boot_order is not None:
                add(element, "boot", order=interface.boot_order)
            # Without a boot order the ROM for network boot would only cost memory.
            if draft.architecture.pci and (interface.boot_order is None or draft.iommu):
                add(element, "rom", enabled="no")
            if interface.state == "down":
                add(element, "link", state="down")
        elif interface.passt_binding:
            interfaces.passt(element, draft.vmi, interface)
        else:
            raise DomainError(f"interface {interface.name!r}: no binding is set")
        draft.alias(element, interface.name)


def serial_console(draft: Draft) -> None:
    """Reached through a socket of the launcher's Pod."""
    if not traits.serial_console(draft.vmi):
        return
    socket = paths.vmi_socket(draft.vmi.metadata.uid, "virt-serial0")
    serial = add(draft.devices, "serial", type="unix")
    add(serial, "target", port=0)
    add(serial, "source", mode="bind", path=socket)
    if traits.console_logged(draft.vmi, draft.context.serial_console_log):
        add(serial, "log", file=f"{socket}-log", append="on")
    add(add(draft.devices, "console", type="pty"), "target", type="serial", port=0)


def channels(draft: Draft) -> None:
    agent = add(draft.devices, "channel", type="unix")
    add(agent, "target", name="org.qemu.guest_agent.0", type="virtio")
    if draft.spec.downward_metrics:
        metrics = add(draft.devices, "channel", type="unix")
        add(metrics, "source", mode="bind", path=paths.DOWNWARD_METRICS_SOCKET)
        add(metrics, "target", name="org.github.vhostmd.1", type="virtio")


def tpm(draft: Draft) -> None:
    wanted = draft.spec.tpm
    if not wanted or wanted.enabled is False:
        return
    element = add(draft.devices, "tpm", model="tpm-crb" if wanted.persistent else "tpm-tis")
    backend = add(element, "backend", type="emulator", version="2.0")
    if wanted.persistent:
        backend.set("persistent_state", "yes")


def vsock(draft: Draft) -> None:
    cid = draft.vmi.status.vsock_cid
    if cid is None:
        return
    # vhost-vsock has no transitional form.
    element = add(draft.devices, "vsock", model="virtio-non-transitional")
    add(element, "cid", auto="no", address=cid)


def rng(draft: Draft) -> None:
    if not draft.spec.rng:
        return
    element = add(draft.devices, "rng", model=draft.virtio)
    add(element, "backend", "/dev/urandom", model="random")
    _iommu(element, draft)


def inputs(draft: Draft) -> None:
    for wanted in draft.spec.inputs:
        bus = wanted.bus or "usb"
        if bus not in ("usb", "virtio") or wanted.type != "tablet":
            raise DomainError(f"input {wanted.name!r}: only a tablet on the usb or virtio bus is possible")
        element = add(draft.devices, "input", type="tablet", bus=bus, model="virtio" if bus == "virtio" else None)
        draft.alias(element, wanted.name)
    if not traits.graphics(draft.vmi):
        return
    if draft.architecture.name == "arm64":  # has no legacy input devices
        if not draft.spec.inputs:
            add(draft.devices, "input", type="tablet", bus="usb")
        add(draft.devices, "input", type="keyboard", bus="usb")
    elif draft.architecture.name == "s390x":
        add(draft.devices, "input", type="keyboard", bus="virtio")


def balloon(draft: Draft) -> None:
    if draft.spec.autoattach_mem_balloon is False:
        add(draft.devices, "memballoon", model="none")
        return
    element = add(draft.devices, "memballoon", model=draft.virtio, freePageReporting=on_off(_reports_free_pages(draft)))
    if draft.context.balloon_period:
        add(element, "stats", period=draft.context.balloon_period)
    _iommu(element, draft)


def _reports_free_pages(draft: Draft) -> bool:
    return (
        draft.context.free_page_reporting
        and not traits.high_performance(draft.vmi)
        and not traits.memory_is_there(draft.vmi)
        and draft.vmi.metadata.annotations.get(names.FREE_PAGE_REPORTING_DISABLED) != "true"
    )


def graphics(draft: Draft) -> None:
    if not traits.graphics(draft.vmi):
        return
    element = add(draft.devices, "graphics", type="vnc")
    add(element, "listen", type="socket", socket=paths.vmi_socket(draft.vmi.metadata.uid, "virt-vnc"))
    model = add(add(draft.devices, "video"), "model", heads=1)
    if draft.spec.video:
        kind = draft.spec.video.type
    elif not draft.architecture.pc:
        kind = "virtio"
    else:
        kind = "bochs" if draft.context.bochs_for_efi and traits.efi(draft.vmi) else "vga"
    model.set("type", kind)
    if draft.spec.video or kind == "vga":
        model.set("vram", str(_VIDEO_MEMORY))


def sound(draft: Draft) -> None:
    wanted = draft.spec.sound
    if not wanted:
        return
    model = wanted.model or "ich9"
    if model not in ("ich9", "ac97"):
        raise DomainError(f"sound {wanted.name!r}: model {model!r} is not ich9 or ac97")
    draft.alias(add(draft.devices, "sound", model=model), wanted.name)


def watchdog(draft: Draft) -> None:
    wanted = draft.spec.watchdog
    if not wanted:
        return
    model = draft.architecture.watchdog
    if not model:
        raise DomainError(f"watchdog {wanted.name!r}: {draft.architecture.name} has no watchdog")
    device = wanted.diag288 if model == "diag288" else wanted.i6300esb
    if not device:
        raise DomainError(f"watchdog {wanted.name!r}: on {draft.architecture.name} it must be {model}")
    draft.alias(add(draft.devices, "watchdog", model=model, action=device.action), wanted.name)


def panic(draft: Draft) -> None:
    for wanted in draft.spec.panic_devices:
        add(draft.devices, "panic", model=wanted.model)


def filesystems(draft: Draft) -> None:
    for wanted in draft.spec.filesystems:
        if not wanted.virtiofs:
            continue
        element = add(draft.devices, "filesystem", type="mount", accessMode="passthrough")
        add(element, "driver", type="virtiofs", queue=1024)
        source = add(element, "source", socket=paths.virtiofs_socket(wanted.name))
        source.set("dir", "")  # libvirt's schema wants the attribute
        add(element, "target", dir=wanted.name)


def usb_redirection(draft: Draft) -> None:
    if not draft.spec.client_passthrough:
        return
    for number in range(paths.USB_REDIRECTIONS):
        element = add(draft.devices, "redirdev", type="unix", bus="usb")
        socket = paths.vmi_socket(draft.vmi.metadata.uid, paths.usb_redirection(number))
        add(element, "source", mode="bind", path=socket)


def _iommu(element: Element, draft: Draft) -> None:
    if draft.iommu:
        add(element, "driver", iommu=draft.iommu)
