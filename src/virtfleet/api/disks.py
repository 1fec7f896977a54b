"""Disks of a VM, and the volumes that they show."""

from __future__ import annotations

from typing import Annotated, Final

from msgspec import field

from virtfleet.api.meta import FeatureState, LocalObjectReference
from virtfleet.api.quantity import Amount
from virtfleet.api.view import Empty, OneOf, Raw, Required, View

TARGETS: Final = ("disk", "lun", "cdrom")
"""What a disk can be: exactly one of these is set."""


class Disk(View):
    """A disk, LUN or CD-ROM drive."""

    name: Required[str] = ""
    """The volume that it shows."""
    disk: DiskTarget | None = None
    """An ordinary disk."""
    lun: LunTarget | None = None
    """A SCSI LUN that is passed through."""
    cdrom: CDRomTarget | None = None
    """A CD-ROM drive; without a volume of its name it is empty."""
    boot_order: int | None = None
    """Position among the devices that are booted from, 1 first."""
    serial: str = ""
    """Serial number that the guest reads."""
    cache: str = ""
    """none, writethrough or writeback."""
    io: str = ""
    """native, threads or io_uring."""
    error_policy: str = ""
    """What an I/O error does: stop, ignore, report or enospace."""
    block_size: BlockSize | None = None
    """Sector sizes that the guest sees."""
    shareable: bool | None = None
    """Whether several VMs may use it at once."""
    dedicated_io_thread: bool | None = field(name="dedicatedIOThread", default=None)
    """Give it an I/O thread of its own."""
    tag: str = ""
    """Name that cloud-init shows to the guest."""
    changed_block_tracking: bool | None = None
    """Whether changed blocks are recorded for backups."""


class DiskTarget(View):
    """An ordinary disk."""

    bus: str = ""
    """virtio, sata, scsi or usb."""
    readonly: bool | None = None
    """Whether the guest can only read."""
    pci_address: str = ""
    """Address in the guest, for example 0000:81:01.0."""


class LunTarget(View):
    """A LUN."""

    bus: str = ""
    """virtio, sata or scsi."""
    readonly: bool | None = None
    """Whether the guest can only read."""
    reservation: bool | None = None
    """Let the guest use SCSI persistent reservations."""


class CDRomTarget(View):
    """A CD-ROM drive."""

    bus: str = ""
    """sata or scsi."""
    readonly: bool | None = None
    """True where not set."""
    tray: str = ""
    """open or closed."""


class BlockSize(View):
    """Sector sizes."""

    custom: CustomBlockSize | None = None
    """Sizes by number."""
    match_volume: FeatureState | None = None
    """Sizes of the volume below."""


class CustomBlockSize(View):
    """Sector sizes by number."""

    logical: int | None = None
    """Smallest unit that can be addressed."""
    physical: int | None = None
    """Unit that the device really writes."""
    discard_granularity: int | None = None
    """Unit in which space is given back."""


class Volume(View):
    """Data for the VM; exactly one source is set."""

    name: Required[str] = ""
    """Name that a disk or file system refers to."""
    persistent_volume_claim: ClaimSource | None = None
    """A claim in the same namespace."""
    sysprep: SysprepSource | None = None
    """Answer files for Windows' setup."""
    cloud_init_no_cloud: CloudInitSource | None = None
    """cloud-init data, shown as a disk labelled cidata."""
    cloud_init_config_drive: CloudInitSource | None = None
    """cloud-init data, shown as a config drive."""
    container_disk: ContainerDiskSource | None = None
    """A disk image inside a container image; changes are lost when the VM ends."""
    ephemeral: EphemeralVolumeSource | None = None
    """A claim that is read only; changes are lost when the VM ends."""
    empty_disk: EmptyDiskSource | None = None
    """An empty disk that lives as long as the VM."""
    host_disk: HostDisk | None = None
    """A disk image on the node."""
    data_volume: DataVolumeSource | None = None
    """A claim that CDI fills."""
    config_map: ConfigMapVolumeSource | None = None
    """A ConfigMap as a disk or file system."""
    secret: SecretVolumeSource | None = None
    """A Secret as a disk or file system."""
    downward_api: DownwardAPIVolumeSource | None = field(name="downwardAPI", default=None)
    """Fields of the VM's own object."""
    service_account: ServiceAccountVolumeSource | None = None
    """The token of a service account."""
    downward_metrics: Empty | None = None
    """Metrics of the node, in vhostmd's format."""
    memory_dump: ClaimSource | None = None
    """A claim that memory dumps are written to."""
    container_path: ContainerPathVolumeSource | None = None
    """A path of the launcher's container."""


SOURCES: Final = Volume.__struct_encode_fields__[1:]
"""What a volume can come from, as the API calls it."""


class ContainerDiskSource(View):
    """A disk image inside a container image."""

    image: Required[str] = ""
    """The container image."""
    path: str = ""
    """Path of the disk image in it; the first file under /disk where empty."""
    image_pull_policy: Annotated[str, OneOf("Always", "IfNotPresent", "Never")] = ""
    """When the image is pulled."""
    image_pull_secret: str = ""
    """Secret for the registry."""


class ClaimSource(View):
    """A claim."""

    claim_name: Required[str] = ""
    """Name of the claim."""
    read_only: bool | None = None
    """Whether it is attached for reading only."""
    hotpluggable: bool | None = None
    """Whether it can be detached while the VM runs."""


class DataVolumeSource(View):
    """A claim that CDI fills."""

    name: Required[str] = ""
    """Name of the DataVolume and of the claim."""
    hotpluggable: bool | None = None
    """Whether it can be detached while the VM runs."""


class EphemeralVolumeSource(View):
    """A layer that is thrown away, over a claim."""

    persistent_volume_claim: ClaimSource | None = None
    """The claim below."""


class EmptyDiskSource(View):
    """An empty disk."""

    capacity: Required[Amount] | None = None
    """Its size."""


class HostDisk(View):
    """A disk image on the node."""

    path: Required[str] = ""
    """Path on the node."""
    type: Required[str] = ""
    """Disk: it exists; DiskOrCreate: it is made where missing."""
    capacity: Amount | None = None
    """Size of a new image."""
    shared: bool | None = None
    """Whether VMs share it."""


class CloudInitSource(View):
    """Data for cloud-init."""

    user_data: str = ""
    """User data as text."""
    user_data_base64: str = ""
    """User data, base64."""
    secret_ref: LocalObjectReference | None = None
    """Secret with user data."""
    network_data: str = ""
    """Network data as text."""
    network_data_base64: str = ""
    """Network data, base64."""
    network_data_secret_ref: LocalObjectReference | None = None
    """Secret with network data."""


class ConfigMapVolumeSource(View):
    """A ConfigMap."""

    name: str = ""
    """Name of the ConfigMap."""
    optional: bool | None = None
    """Whether it may be missing."""
    volume_label: str = ""
    """Label of the disk."""


class SecretVolumeSource(View):
    """A Secret."""

    secret_name: str = ""
    """Name of the Secret."""
    optional: bool | None = None
    """Whether it may be missing."""
    volume_label: str = ""
    """Label of the disk."""


class ServiceAccountVolumeSource(View):
    """The token of a service account."""

    service_account_name: str = ""
    """Name of the service account."""


class DownwardAPIVolumeSource(View):
    """Fields of the VM's own object."""

    fields: list[Raw] = []
    """The files and what they hold."""
    volume_label: str = ""
    """Label of the disk."""


class SysprepSource(View):
    """Answer files for Windows' setup."""

    config_map: LocalObjectReference | None = None
    """ConfigMap with the files."""
    secret: LocalObjectReference | None = None
    """Secret with the files."""


class ContainerPathVolumeSource(View):
    """A path of the launcher's container."""

    path: Required[str] = ""
    """The path."""
    read_only: bool | None = None
    """Whether the guest can only read."""
