"""How a QEMU domain boots: machine type, BIOS or EFI, a kernel directly."""

from __future__ import annotations

from xml.etree.ElementTree import Element

from virtfleet.api import traits
from virtfleet.api.domainspec import ACPI
from virtfleet.domain import common, paths
from virtfleet.domain.errors import DomainError
from virtfleet.domain.xml import add, child, yes_no
from virtfleet.hypervisors import asking
from virtfleet.hypervisors.qemu.draft import Draft

_BOOT_MENU_MS = 10000  # of a VM that starts paused, so that people can reach the firmware's menu


# (kind of confidential VM, secure boot) -> EFI firmware: its code, and the template of its variables unless it keeps
# none. With other variables, code with secure boot runs without it.
_AMD64 = {
    ("", False): ("OVMF_CODE.secboot.fd", "OVMF_VARS.fd"),
    ("", True): ("OVMF_CODE.secboot.fd", "OVMF_VARS.secboot.fd"),
    ("sev", False): ("OVMF_CODE.cc.fd", "OVMF_VARS.fd"),
    ("snp", False): ("OVMF.amdsev.fd", ""),
    ("tdx", False): ("OVMF.inteltdx.fd", ""),
    ("tdx", True): ("OVMF.inteltdx.secboot.fd", ""),
}
_ARM64 = {("", False): ("AAVMF_CODE.fd", "AAVMF_VARS.fd")}


def operating_system(draft: Draft) -> None:
    os = add(draft.root, "os")
    machine = draft.vmi.spec.domain.machine
    kind = add(os, "type", "hvm", arch=draft.architecture.os_type)
    kind.set("machine", (machine.type if machine else "") or draft.architecture.machine)
    _firmware(os, draft)
    if draft.architecture.name != "s390x":
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
    common.kernel(os, draft.vmi)
    if firmware.acpi:
        _acpi_tables(os, draft, firmware.acpi)


def _efi(os: Element, draft: Draft) -> None:
    vmi = draft.vmi
    kind = "tdx" if traits.tdx(vmi) else "snp" if traits.snp(vmi) else "sev" if traits.sev(vmi) else ""
    secure = asking.secure_boot(vmi)
    place = f"{paths.PRIVATE}/libvirt" if traits.non_root(vmi) else "/var/lib/libvirt"
    variables = f"{place}/qemu/nvram/{vmi.metadata.name}_VARS.fd"
    if secure and not kind and draft.context.firmware_autoselection:
        os.set("firmware", "efi")
        selection = add(os, "firmware")
        for feature in ("secure-boot", "enrolled-keys"):
            add(selection, "feature", enabled="yes", name=feature)
        if draft.architecture.name != "arm64":  # keeps its variables elsewhere
            add(os, "nvram", variables, format="raw")
        return
    images = _ARM64 if draft.architecture.name == "arm64" else _AMD64
    if (kind, secure) not in images:
        raise DomainError(f"there is no EFI firmware for secure boot {yes_no(secure)} with {kind or 'a plain VM'}")
    code, template = images[kind, secure]
    directory = draft.context.firmware_dir or draft.architecture.firmware_dir
    # TDX has its keys in the firmware; `secure` would ask for system management mode, which it lacks.
    loader = add(os, "loader", f"{directory}/{code}", readonly="yes", secure=yes_no(secure and kind != "tdx"))
    loader.set("type", "pflash" if template else "rom")
    if template:
        add(os, "nvram", variables, template=f"{directory}/{template}")


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
