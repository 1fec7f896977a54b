"""Changes of a running domain, carried out one device after the other: what fails of one is none of the others."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from xml.etree import ElementTree as ET

import libvirt

from virtfleet.domain.xml import text
from virtfleet.hypervisors.base import own_alias
from virtfleet.launcher.failure import Failure
from virtfleet.launcher.vm.live import Changes

_LIVE = libvirt.VIR_DOMAIN_AFFECT_LIVE
# What libvirt says of a device that the guest has not let go of yet, or just has.
_BEING_REMOVED = (libvirt.VIR_ERR_OPERATION_FAILED, libvirt.VIR_ERR_DEVICE_MISSING)


def carry_out(domain: libvirt.virDomain, change: Changes, grow: Callable[[], object]) -> None:
    """Remove, add and change devices, then let the guest grow. Of several failures the first one is told."""
    steps: list[Callable[[], object]] = [
        *(partial(_detach, domain, device) for device in change.detach),
        *(partial(_attach, domain, device) for device in change.attach),
        *(partial(domain.updateDeviceFlags, text(device), _LIVE) for device in change.update),
        grow,
    ]
    failures = [failure for step in steps if (failure := _failure(step))]
    if failures:
        raise failures[0]


def _failure(step: Callable[[], object]) -> Exception | None:
    try:
        step()
    except (libvirt.libvirtError, Failure) as error:
        return error
    return None


def _attach(domain: libvirt.virDomain, device: ET.Element) -> None:
    try:
        domain.attachDeviceFlags(text(device), _LIVE)
    except libvirt.libvirtError as error:
        if device.get("device") != "lun":
            raise
        what = f"volume {own_alias(device)} cannot be a lun, which takes a block claim of a SCSI device on the node"
        raise Failure(f"{what}: remove it and add it as a disk ({error})") from None


def _detach(domain: libvirt.virDomain, device: ET.Element) -> None:
    """Ask the guest to let go of a device, and do not wait for it: an event tells when it has."""
    alias = device.find("alias")
    try:
        try:
            domain.detachDeviceAlias(alias.get("name", "") if alias is not None else "", _LIVE)
        except libvirt.libvirtError as error:
            if error.get_error_code() != libvirt.VIR_ERR_NO_SUPPORT:
                raise
            domain.detachDeviceFlags(text(device), _LIVE)
    except libvirt.libvirtError as error:
        if error.get_error_code() not in _BEING_REMOVED:
            raise
