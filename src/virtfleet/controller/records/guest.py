"""Records of what a VM's template and a VMI have in common: volumes, networks, devices."""

from __future__ import annotations

from typing import Any

import msgspec

from virtfleet.api.devices import TPMDevice
from virtfleet.api.disks import ClaimSource, DataVolumeSource, EphemeralVolumeSource
from virtfleet.api.domainspec import Bootloader
from virtfleet.api.networks import MultusNetwork
from virtfleet.controller.records.kept import Record


class Volume(Record):
    name: str = ""
    persistent_volume_claim: ClaimSource | None = None
    data_volume: DataVolumeSource | None = None
    ephemeral: EphemeralVolumeSource | None = None

    @property
    def claim(self) -> str:
        """The name of the claim behind the volume, if there is one."""
        if self.data_volume:
            return self.data_volume.name
        source = self.persistent_volume_claim or (self.ephemeral and self.ephemeral.persistent_volume_claim)
        return source.claim_name if source else ""

    @property
    def plugged(self) -> bool:
        """Whether the claim comes to the VM through a Pod of its own."""
        source = self.data_volume or self.persistent_volume_claim
        return bool(source and source.hotpluggable)


class Volumes(Record):
    volumes: list[Volume] = []

    @property
    def claims(self) -> dict[str, str]:
        """Claims by the names of their volumes."""
        return {volume.name: volume.claim for volume in self.volumes if volume.claim}

    @property
    def plugged(self) -> dict[str, str]:
        """The same of those that are plugged in."""
        return {volume.name: volume.claim for volume in self.volumes if volume.plugged}


class Network(Record):
    name: str = ""
    multus: MultusNetwork | None = None


class Interface(Record):
    name: str = ""
    state: str = ""


class Firmware(Record):
    bootloader: Bootloader | None = None


class Devices(Record):
    tpm: TPMDevice | None = None
    gpus: list[dict[str, Any]] = []
    host_devices: list[dict[str, Any]] = []
    interfaces: list[Interface] = []
    autoattach_vsock: bool | None = msgspec.field(default=None, name="autoattachVSOCK")


class Domain(Record):
    devices: Devices = msgspec.field(default_factory=Devices)
    firmware: Firmware | None = None


class GuestSpec(Volumes):
    """What a VMI, or a template, is given."""

    networks: list[Network] = []
    domain: Domain = msgspec.field(default_factory=Domain)

    @property
    def secondary(self) -> bool:
        """Whether it is on a network beside the cluster's."""
        return any(network.multus and not network.multus.default for network in self.networks)

    @property
    def keeps_state(self) -> bool:
        """Whether its firmware or TPM remembers things from one run to the next."""
        tpm, loader = self.domain.devices.tpm, self.domain.firmware and self.domain.firmware.bootloader
        return bool(
            (tpm and tpm.persistent and tpm.enabled is not False) or (loader and loader.efi and loader.efi.persistent)
        )

    @property
    def connections(self) -> dict[str, tuple[str, str]]:
        """Definition of the network and state of each interface."""
        definitions = {n.name: n.multus.network_name for n in self.networks if n.multus}
        return {i.name: (definitions.get(i.name, ""), i.state) for i in self.domain.devices.interfaces}
