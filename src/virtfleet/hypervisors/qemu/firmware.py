"""How a QEMU domain boots: machine type, BIOS or EFI, a kernel directly."""

from __future__ import annotations

from typing import NamedTuple
from xml.etree.ElementTree import Element

from virtfleet.api import traits
from virtfleet.api.domainspec import ACPI
from virtfleet.domain import paths
from virtfleet.domain.errors import DomainError
from virtfleet.domain.xml import add, child, yes_no
from virtfleet.hypervisors.qemu.draft import Draft

_BOOT_MENU_MS = 10000  # of a VM that starts paused, so that people can reach the firmware's menu


class Image(NamedTuple):
    """EFI firmware: its code, and the template of its variables unless it keeps none."""

    code: str
    variables: str = ""


# (kind of confidential VM, secure boot) -> firmware. With other variables, code with secure boot runs without it.
_AMD64 = {
    ("", False): Image("OVMF_CODE.secboot.fd", "OVMF_VARS.fd"),
    ("", True): Image("OVMF_CODE.secboot.fd", "OVMF_VARS.secboot.fd"),
    ("sev", False): Image("OVMF_CODE.cc.fd", "OVMF_VARS.fd"),
    ("snp", False): Image("OVMF.amdsev.fd"),
    ("tdx", False): Image("OVMF.inteltdx.fd"),
    ("tdx", True): Image("OVMF.inteltdx.secboot.fd"),
}
_ARM64 = {("", False): Image("AAVMF_CODE.fd", "AAVMF_VARS.fd")}


def operating_system(draft: Draft) -> None:
    os = add(draft.root, "os")
    machine = draft.vmi.spec.domain.machine
    kind = add(os, "type", "hvm", arch=draft.architecture.os_type)
    kind.set("machine", (machine.type if machine else "") or draft.architecture.machine)
    _firmware(os, draft)
    if draft.architecture.smbios:
        add(os, "smbios", mode="sysinfo")
    if traits.starts_paused(draft.vmi):
        add(os, "bootmenu", enable="yes", timeout=_BOOT_MENU_MS)


def _firmware(os: Element, draft: Draft) -> None:
    firmware = draft.vmi.spec.domain.firmware
    if not firmware:
        return
    if traits.efi(draft.vmi):
        _efi(os, draft)
    bios = firmware.bootloader.bios if firmware.bootloader else None
    if bios and bios.use_serial:
        add(os, "bios", useserial="yes")
    if boot := firmware.kernel_boot:
        if boot.container and boot.container.kernel_path:
            add(os, "kernel", paths.kernel_boot(boot.container.kernel_path))
        if boot.container and boot.container.initrd_path:
            add(os, "initrd", paths.kernel_boot(boot.container.initrd_path))
        if boot.kernel_args:
            add(os, "cmdline", boot.kernel_args)
    if firmware.acpi:
        _acpi_tables(os, draft, firmware.acpi)


def _efi(os: Element, draft: Draft) -> None:
    vmi = draft.vmi
    kind = "tdx" if traits.tdx(vmi) else "snp" if traits.snp(vmi) else "sev" if traits.sev(vmi) else ""
    secure = _secure_boot(draft)
    variables = f"{_variables_dir(draft)}/{vmi.metadata.name}_VARS.fd"
    if secure and not kind and draft.context.firmware_autoselection:
        os.set("firmware", "efi")
        selection = add(os, "firmware")
        for feature in ("secure-boot", "enrolled-keys"):
            add(selection, "feature", enabled="yes", name=feature)
        if draft.architecture.name != "arm64":  # keeps its variables elsewhere
            add(os, "nvram", variables, format="raw")
        return
    images = _ARM64 if draft.architecture.name == "arm64" else _AMD64
    image = images.get((kind, secure))
    if image is None:
        raise DomainError(f"there is no EFI firmware for secure boot {yes_no(secure)} with {kind or 'a plain VM'}")
    directory = draft.context.firmware_dir or draft.architecture.firmware_dir
    # TDX has its keys in the firmware; `secure` would ask for system management mode, which it lacks.
    loader = add(os, "loader", f"{directory}/{image.code}", readonly="yes", secure=yes_no(secure and kind != "tdx"))
    loader.set("type", "pflash" if image.variables else "rom")
    if image.variables:
        add(os, "nvram", variables, template=f"{directory}/{image.variables}")


def _secure_boot(draft: Draft) -> bool:
    firmware = draft.vmi.spec.domain.firmware
    efi = firmware.bootloader.efi if firmware and firmware.bootloader else None
    return efi is not None and efi.secure_boot is not False


def _variables_dir(draft: Draft) -> str:
    return f"{paths.PRIVATE}/libvirt/qemu/nvram" if traits.non_root(draft.vmi) else "/var/lib/libvirt/qemu/nvram"


def _acpi_tables(os: Element, draft: Draft, acpi: ACPI) -> None:
    if not acpi.slic_name_ref and not acpi.msdm_name_ref:
        raise DomainError("spec.domain.firmware.acpi: no ACPI tables were set, expecting at least one")
    for kind, name in (("slic", acpi.slic_name_ref), ("msdm", acpi.msdm_name_ref)):
        if not name:
            continue
        volume = next((v for v in draft.vmi.spec.volumes if v.name == name), None)
        if not volume or not volume.secret:
            raise DomainError(
                f"spec.domain.firmware.acpi: the {kind} table must come from a Secret volume named {name!r}"
            )
        add(child(os, "acpi"), "table", f"{paths.SECRETS}/{name}/{kind}.bin", type=kind)
