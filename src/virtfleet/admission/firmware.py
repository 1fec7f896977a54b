"""Rules for firmware, boot loader, kernel boot and launch security."""

from __future__ import annotations

from posixpath import normpath

from virtfleet.admission.case import Case
from virtfleet.api.domainspec import ACPI, EFI, Firmware, KernelBoot, LaunchSecurity
from virtfleet.api.meta import is_on
from virtfleet.api.view import given


def check(case: Case) -> None:
    firmware = case.domain.firmware or Firmware()
    if firmware.acpi is not None:
        _check_acpi_tables(case, firmware.acpi)
    efi = firmware.bootloader.efi if firmware.bootloader else None
    if firmware.bootloader and efi is not None and firmware.bootloader.bios is not None:
        case.invalid("domain.firmware.bootloader", "a VM boots with efi or with bios, not both; remove one")
    _check_secure_boot(case, efi)
    if firmware.kernel_boot is not None:
        _check_kernel_boot(case, firmware.kernel_boot)
    if case.domain.launch_security is not None:
        _check_launch_security(case, case.domain.launch_security, efi)


def _smm(case: Case) -> bool:
    return is_on(case.domain.features.smm if case.domain.features else None)


def _check_acpi_tables(case: Case, acpi: ACPI) -> None:
    names = {"slicNameRef": acpi.slic_name_ref, "msdmNameRef": acpi.msdm_name_ref}
    if not any(names.values()):
        case.invalid("acpi", "firmware.acpi names no volume; set slicNameRef or msdmNameRef, or remove acpi")
    for field, name in names.items():
        volume = next((v for v in case.spec.volumes if v.name == name), None)
        if name and volume is None:
            case.invalid(f"acpi.{field}", f"firmware.acpi.{field} names volume {name!r}, which does not exist")
        elif name and volume and volume.secret is None:
            case.invalid(f"acpi.{field}", f"volume {name!r} of firmware.acpi.{field} must be a secret volume")


def _check_secure_boot(case: Case, efi: EFI | None) -> None:
    tdx = case.domain.launch_security is not None and case.domain.launch_security.tdx is not None
    if efi is not None and efi.secure_boot is not False and not _smm(case) and not tdx:
        case.invalid(
            "domain",
            "secure boot is on and needs system management mode; set domain.features.smm: {enabled: true}, or "
            "domain.firmware.bootloader.efi.secureBoot: false",
        )


def _check_kernel_boot(case: Case, boot: KernelBoot) -> None:
    path, container = "domain.firmware.kernelBoot", boot.container
    if container is None:
        if boot.kernel_args:
            case.invalid(f"{path}.kernelArgs", "kernelArgs need a kernel; set kernelBoot.container with kernelPath")
        return
    if not container.image:
        field = f"{path}.container.image"
        case.required(field, f"{case.at(f'{path}.container')} must be defined with an image; set {case.at(field)}")
    if not container.kernel_path and not container.initrd_path:
        what = "must be defined with at least one of the following: kernelPath, initrdPath"
        case.required(f"{path}.container", f"{case.at(f'{path}.container')} {what}")
    for field, file in (("kernelPath", container.kernel_path), ("initrdPath", container.initrd_path)):
        if file:
            check_path(case, f"{path}.container.{field}", file)


def check_path(case: Case, field: str, path: str) -> None:
    """A file inside a container image, which a path with `..` must not leave."""
    if path == "/":
        case.invalid(field, "the path is the root directory; name a file")
    elif normpath("/" + path).replace("//", "/") != path.removesuffix("/"):
        case.invalid(field, f"{path!r} must be an absolute path without '.', '..' or double slashes")


def _check_launch_security(case: Case, security: LaunchSecurity, efi: EFI | None) -> None:
    if case.architecture == "s390x":
        return
    if case.architecture != "amd64":
        case.invalid("architecture", f"there is no launchSecurity on {case.architecture}; remove it")
        return
    field, kinds = "launchSecurity", given(security, ("sev", "snp", "tdx"))
    if len(kinds) != 1:
        case.forbidden(field, "domain.launchSecurity must name exactly one of sev, snp and tdx")
        return
    gate = "WorkloadEncryptionTDX" if security.tdx is not None else "WorkloadEncryptionSEV"
    if not case.needs_gate(field, gate, f"domain.launchSecurity.{kinds[0]}"):
        return
    _check_encrypted_boot(case, kinds[0], efi)
    if security.sev and security.sev.attestation is not None and case.spec.start_strategy != "Paused":
        case.invalid(field, "SEV attestation happens before the guest starts; set spec.startStrategy: Paused")
    for interface in case.devices.interfaces:
        if interface.boot_order is not None:
            case.invalid(field, f"an encrypted VM cannot boot from the network; remove bootOrder of {interface.name}")


def _check_encrypted_boot(case: Case, kind: str, efi: EFI | None) -> None:
    field, what = "launchSecurity", kind.upper()
    if kind == "tdx" and _smm(case):
        case.invalid(field, "TDX does not work with system management mode; remove domain.features.smm")
    if efi is None:
        case.invalid(field, f"{what} needs UEFI; set domain.firmware.bootloader.efi: {{secureBoot: false}}")
        return
    if kind != "tdx" and efi.secure_boot is not False:
        case.invalid(field, f"{what} does not work with secure boot; set efi.secureBoot: false")
    if kind != "sev" and efi.persistent:
        case.invalid(field, f"{what} does not work with persistent EFI variables; remove efi.persistent")
