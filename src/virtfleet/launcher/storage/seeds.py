"""The files of a cloud-init disk, in the layout of its data source. Reads Secrets from where the Pod mounts them."""

from __future__ import annotations

import base64
import binascii
import uuid
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from virtfleet.api import names, traits
from virtfleet.api.disks import CloudInitSource, Volume
from virtfleet.api.vmi import VirtualMachineInstance as VMI
from virtfleet.domain import paths
from virtfleet.launcher.failure import Failure

_FIRMWARE_NAMESPACE = uuid.UUID("6a1a24a1-4061-4607-8bf4-a3963d0c5895")

Files = dict[str, bytes]


class Layout(NamedTuple):
    """Where the files of a data source are, and what hook sidecars know it by."""

    name: str
    label: str
    """Of the disk, by which cloud-init finds it."""
    user: str
    network: str
    metadata: str
    metadata_field: str


NO_CLOUD = Layout("noCloud", "cidata", "user-data", "network-config", "meta-data", "NoCloudMetaData")
_LATEST = "openstack/latest"
CONFIG_DRIVE = Layout(
    "configDrive",
    "config-2",
    f"{_LATEST}/user_data",
    f"{_LATEST}/network_data.json",
    f"{_LATEST}/meta_data.json",
    "ConfigDriveMetaData",
)


def layout(volume: Volume) -> Layout:
    return NO_CLOUD if volume.cloud_init_no_cloud else CONFIG_DRIVE


def files(vmi: VMI, volume: Volume) -> Files:
    """The files of a volume's data source."""
    metadata: dict[str, Any]
    if source := volume.cloud_init_no_cloud:
        metadata = {
            "instance-type": _instance_type(vmi),
            "instance-id": _identity(vmi),
            "local-hostname": traits.hostname(vmi),
            "public-keys": _ssh_keys(vmi, "no_cloud"),
        }
    else:
        source = volume.cloud_init_config_drive
        metadata = {
            "instance_type": _instance_type(vmi),
            "instance_id": f"{vmi.metadata.name}.{vmi.metadata.namespace}",
            "hostname": traits.hostname(vmi),
            "uuid": _identity(vmi),
            "devices": _tagged(vmi),
            "public_keys": _ssh_keys(vmi, "config_drive"),
        }
    assert source is not None
    user, network = _data(volume.name, source)
    document = msgspec.json.encode({key: value for key, value in metadata.items() if value})
    place = layout(volume)
    return {place.user: user, place.metadata: document, **({place.network: network} if network else {})}


def _tagged(vmi: VMI) -> list[dict[str, Any]]:
    """Devices that have a name for the guest, as far as it is known where they are: libvirt places the others later."""
    devices = vmi.spec.domain.devices
    tagged = [("nic", i.pci_address, {"mac": i.mac_address}, i.tag) for i in devices.interfaces]
    tagged += [("disk", d.disk.pci_address, {"serial": d.serial}, d.tag) for d in devices.disks if d.disk]
    return [
        {"type": kind, "bus": "pci", "address": address, **{k: v for k, v in more.items() if v}, "tags": [tag]}
        for kind, address, more, tag in tagged
        if tag and address
    ]


def _data(volume: str, source: CloudInitSource) -> tuple[bytes, bytes]:
    user = _text(volume, "userData", source.user_data, source.user_data_base64)
    if source.secret_ref:
        user = _secret(volume, "userdata", ("userdata", "userData")) or user
    network = _text(volume, "networkData", source.network_data, source.network_data_base64)
    if source.network_data_secret_ref:
        network = _secret(volume, "networkdata", ("networkdata", "networkData")) or network
    if not user and not network:
        raise Failure(f"volume {volume!r}: cloud-init needs user data or network data, and there is neither")
    return user, network


def _text(volume: str, field: str, plain: str, encoded: str) -> bytes:
    if plain:
        return plain.encode()
    try:
        return base64.b64decode(encoded, validate=True)
    except binascii.Error as error:
        raise Failure(f"volume {volume!r}: {field}Base64 is not base64: {error}") from None


def _secret(volume: str, part: str, keys: tuple[str, ...]) -> bytes:
    files = [Path(paths.cloud_init_secret(volume, part), key) for key in keys]
    if existing := next((file for file in files if file.is_file()), None):
        return existing.read_bytes()
    raise Failure(f"volume {volume!r}: its Secret has no key {keys[0]}")


def _ssh_keys(vmi: VMI, method: str) -> dict[str, str]:
    keys: list[str] = []
    for credential in vmi.spec.access_credentials:
        wanted = credential.ssh_public_key
        if not wanted or not wanted.propagation_method or getattr(wanted.propagation_method, method) is None:
            continue
        secret = wanted.source.secret if wanted.source else None
        if secret:
            files = sorted(Path(paths.access_credential(secret.secret_name)).glob("[!.]*"))
            keys += [line for file in files for line in file.read_text().splitlines() if line]
    return {str(number): key for number, key in enumerate(keys)}


def _identity(vmi: VMI) -> str:
    """Stays the same over restarts of a VM of this name, so that cloud-init runs its first-boot modules only once."""
    firmware = vmi.spec.domain.firmware
    if firmware and firmware.uuid:
        return firmware.uuid
    return str(uuid.uuid5(_FIRMWARE_NAMESPACE, vmi.metadata.name))


def _instance_type(vmi: VMI) -> str:
    notes = vmi.metadata.annotations
    return next((notes[name] for name in reversed(names.INSTANCETYPES) if name in notes), "")
