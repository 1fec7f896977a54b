"""The libvirt and firmware that are really here, for fitting domain documents to them."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from xml.etree import ElementTree as ET

import libvirt

from virtfleet.hypervisors.base import Host

_FIRMWARE_ROOT = Path("/usr/share")


def inspect(connection: libvirt.virConnect, taps: Mapping[str, str]) -> Host:
    """What is here. Machine types are those of the guests that libvirt says it can run."""
    capabilities = ET.fromstring(connection.getCapabilities())
    return Host(
        libvirt_version=connection.getLibVersion(),
        firmware=frozenset(
            str(path) for pattern in ("*/*_CODE*.fd", "*/*_VARS*.fd") for path in _FIRMWARE_ROOT.glob(pattern)
        ),
        machines=frozenset(machine.text or "" for machine in capabilities.iterfind("guest/arch/machine")),
        taps=dict(taps),
        vhost_net=os.access("/dev/vhost-net", os.R_OK | os.W_OK),
    )
