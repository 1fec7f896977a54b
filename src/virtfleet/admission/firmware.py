"""Rules for firmware, boot loader, kernel boot and launch security."""

from __future__ import annotations

from posixpath import normpath

from virtfleet.admission.findings import Findings
from virtfleet.admission.machine import Machine, is_on
from virtfleet.admission.sections import Section, read


def check(m: Machine, found: Findings) -> None:
    firmware = read(m.domain, "firmware")
    _check_acpi_tables(m, firmware.get("acpi"), found)
    _check_bootloader(m, read(firmware, "bootloader"), found)
    _check_kernel_boot(m, firmware.get("kernelBoot"), found)
    security = m.domain.get("launchSecurity")
    if security is not None:
        _check_launch_security(m, security, found)


def _check_acpi_tables(m: Machine, acpi: Section | None, found: Findings) -> None:
    if acpi is None:
        return
    names = {field: acpi.get(field) for field in ("slicNameRef", "msdmNameRef")}
    if not any(names.values()):
        found.invalid(m.at("acpi"), "firmware.acpi names no volume; set slicNameRef or msdmNameRef, or remove acpi")
    for field, name in names.items():
        if not name:
            continue
        volume = next((v for v in m.volumes if v.get("name") == name), None)
        if volume is None:
            found.invalid(m.at(f"acpi.{field}"), f"firmware.acpi.{field} names volume {name!r}, which does not exist")
        elif volume.get("secret") is None:
            found.invalid(m.at(f"acpi.{field}"), f"volume {name!r} of firmware.acpi.{field} must be a secret volume")


def _check_bootloader(m: Machine, bootloader: Section, found: Findings) -> None:
    efi = bootloader.get("efi")
    if efi is not None and bootloader.get("bios") is not None:
        found.invalid(m.at("domain.firmware.bootloader"), "a VM boots with efi or with bios, not both; remove one")
    tdx = read(m.domain, "launchSecurity").get("tdx") is not None
    secure = efi is not None and efi.get("secureBoot") is not False
    if secure and not is_on(read(m.domain, "features"), "smm") and not tdx:
        found.invalid(
            m.at("domain"),
            "secure boot is on and needs system management mode; set domain.features.smm: {enabled: true}, or "
            "domain.firmware.bootloader.efi.secureBoot: false",
        )


def _check_kernel_boot(m: Machine, boot: Section | None, found: Findings) -> None:
    if boot is None:
        return
    path = m.at("domain.firmware.kernelBoot")
    container = boot.get("container")
    if container is None:
        if boot.get("kernelArgs"):
            found.invalid(f"{path}.kernelArgs", "kernelArgs need a kernel; set kernelBoot.container with kernelPath")
        return
    if not container.get("image"):
        found.required(f"{path}.container.image", "the kernel comes from a container image; set container.image")
    if not container.get("kernelPath") and not container.get("initrdPath"):
        found.required(f"{path}.container", "name what to boot in the image; set kernelPath, initrdPath or both")
    for field in ("kernelPath", "initrdPath"):
        if container.get(field):
            check_path(f"{path}.container.{field}", container[field], found)


def check_path(field: str, path: str, found: Findings) -> None:
    """A file inside a container image, which a path with `..` must not leave."""
    if path == "/":
        found.invalid(field, "the path is the root directory; name a file")
    elif normpath("/" + path).replace("//", "/") != path.removesuffix("/"):
        found.invalid(field, f"{path!r} must be an absolute path without '.', '..' or double slashes")


def _check_launch_security(m: Machine, security: Section, found: Findings) -> None:
    if m.architecture == "s390x":
        return
    if m.architecture != "amd64":
        found.invalid(m.at("architecture"), f"there is no launchSecurity on {m.architecture}; remove it")
        return
    field = m.at("launchSecurity")
    kinds = [kind for kind in ("sev", "snp", "tdx") if security.get(kind) is not None]
    if len(kinds) != 1:
        found.forbidden(field, "domain.launchSecurity must name exactly one of sev, snp and tdx")
        return
    kind = kinds[0]
    gate = "WorkloadEncryptionTDX" if kind == "tdx" else "WorkloadEncryptionSEV"
    if not m.enabled(gate):
        found.gate_is_off(field, gate, f"domain.launchSecurity.{kind}")
        return
    _check_encrypted_boot(m, kind, field, found)
    attested = kind == "sev" and security["sev"].get("attestation") is not None
    if attested and m.spec.get("startStrategy") != "Paused":
        found.invalid(field, "SEV attestation happens before the guest starts; set spec.startStrategy: Paused")
    for interface in m.interfaces:
        if interface.get("bootOrder") is not None:
            found.invalid(
                field, f"an encrypted VM cannot boot from the network; remove bootOrder of {interface['name']}"
            )


def _check_encrypted_boot(m: Machine, kind: str, field: str, found: Findings) -> None:
    if kind == "tdx" and is_on(read(m.domain, "features"), "smm"):
        found.invalid(field, "TDX does not work with system management mode; remove domain.features.smm")
    efi = read(m.domain, "firmware", "bootloader").get("efi")
    if efi is None:
        found.invalid(field, f"{kind.upper()} needs UEFI; set domain.firmware.bootloader.efi: {{secureBoot: false}}")
        return
    if kind != "tdx" and efi.get("secureBoot") is not False:
        found.invalid(field, f"{kind.upper()} does not work with secure boot; set efi.secureBoot: false")
    if kind != "sev" and efi.get("persistent"):
        found.invalid(field, f"{kind.upper()} does not work with persistent EFI variables; remove efi.persistent")
