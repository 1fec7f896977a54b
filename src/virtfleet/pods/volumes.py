"""Volumes of a launcher Pod, and where its compute container sees them.

What a VMI names reaches the Pod by the cluster's own means (image volumes, claims, Secrets, ConfigMaps), so that no
component needs to read Secrets. Volumes that are added while the VM runs come through other Pods and are left out.
"""

from __future__ import annotations

import posixpath
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any

from virtfleet.api import hotplug
from virtfleet.api.disks import CloudInitSource, ContainerDiskSource, Volume
from virtfleet.api.domainspec import KernelBootContainer
from virtfleet.api.vmi import VirtualMachineInstance as VMI
from virtfleet.domain import paths
from virtfleet.domain.volumes import config_kind
from virtfleet.hypervisors.base import Descriptor
from virtfleet.pods import vmstate

# Directories that live as long as the Pod; the handler mounts into those that it fills.
_DIRECTORIES = {
    "private": paths.PRIVATE,
    "public": paths.SHARE,
    "sockets": paths.SOCKETS,
    "ephemeral-disks": paths.EPHEMERAL_DISKS,
    "container-disks": paths.CONTAINER_DISKS,
    "hotplug-disks": paths.HOTPLUG_DISKS,
    "libvirt-runtime": paths.LIBVIRT,
}
_FILLED_BY_HANDLER = ("container-disks", "hotplug-disks")
KERNEL_BOOT = "kernel-boot"


@dataclass(frozen=True, slots=True)
class HeldImage:
    """An image that a container holds for the launcher, which finds it at `path`."""

    reference: str
    pull_policy: str
    path: str


@dataclass(slots=True)
class Mounted:
    """The volumes of a Pod and how its compute container uses them."""

    volumes: list[dict[str, Any]] = field(default_factory=list)
    mounts: list[dict[str, Any]] = field(default_factory=list)
    devices: list[dict[str, str]] = field(default_factory=list)
    pull_secrets: list[str] = field(default_factory=list)
    service_account: str = ""
    images: bool = False
    """Whether images are among the volumes."""
    held: list[HeldImage] = field(default_factory=list)
    sidecars: int = 0
    """Hook sidecars that the launcher is to wait for."""

    def add(self, name: str, source: dict[str, Any], path: str, *, read_only: bool = False) -> None:
        self.volumes.append({"name": name, **source})
        self.mounts.append({"name": name, "mountPath": path, **({"readOnly": True} if read_only else {})})

    def add_claim(
        self, name: str, claim: str, places: tuple[str, str], *, block: bool, read_only: bool = False
    ) -> None:
        """At one of two places: as a directory, or as a device."""
        source = {"persistentVolumeClaim": {"claimName": claim, **({"readOnly": True} if read_only else {})}}
        if block:
            self.volumes.append({"name": name, **source})
            self.devices.append({"name": name, "devicePath": places[1]})
        else:
            self.add(name, source, places[0], read_only=read_only)

    def add_image(self, name: str, wanted: ContainerDiskSource | KernelBootContainer, path: str, *, hold: bool) -> None:
        """An image as a volume, or as something that virt-handler mounts over an empty one."""
        image = HeldImage(wanted.image, wanted.image_pull_policy, path)
        policy = {"pullPolicy": image.pull_policy} if image.pull_policy else {}
        volume = {"emptyDir": {}} if hold else {"image": {"reference": image.reference, **policy}}
        self.add(name, volume, image.path, read_only=True)
        self.images = True
        self.held += [image] if hold else []
        self.pull_secrets += [wanted.image_pull_secret] if wanted.image_pull_secret else []

    def mount_of(self, volume: str) -> dict[str, Any] | None:
        return next((mount for mount in self.mounts if mount["name"] == volume), None)


def mounted(vmi: VMI, block_volumes: Collection[str], *, hold_images: bool = False, state_claim: str = "") -> Mounted:
    """Everything that the compute container mounts. `block_volumes` are those whose claims are block devices."""
    into = Mounted()
    for name, path in _DIRECTORIES.items():
        into.add(name, {"emptyDir": {}}, path)
        if name in _FILLED_BY_HANDLER:
            into.mounts[-1]["mountPropagation"] = "HostToContainer"
    if vmi.spec.domain.memory and vmi.spec.domain.memory.hugepages:
        into.add("hugepages", {"emptyDir": {"medium": "HugePages"}}, "/dev/hugepages")
    if vmstate.kept(vmi):
        claim = state_claim or vmstate.claim_name(vmi.metadata.name)
        into.add(vmstate.VOLUME, {"persistentVolumeClaim": {"claimName": claim}}, paths.VM_STATE)
    firmware = vmi.spec.domain.firmware
    if firmware and firmware.kernel_boot and (kernel := firmware.kernel_boot.container):
        into.add_image(KERNEL_BOOT, kernel, paths.kernel_boot_image(), hold=hold_images)
    added = {status.name for status in vmi.status.volume_status if status.hotplug_volume}
    for index, volume in enumerate(vmi.spec.volumes):
        if volume.name not in added and not hotplug.claim(volume):
            _volume(into, volume, index, block_volumes, hold_images)
    for number, secret in enumerate(dict.fromkeys(_credentials(vmi))):
        path = paths.access_credential(secret)
        into.add(f"access-cred-{number}", {"secret": {"secretName": secret}}, path, read_only=True)
    return into


def add_node_paths(into: Mounted, hypervisor: Descriptor) -> None:
    """What launchers of a hypervisor cannot do without of the node."""
    for number, (inside, path) in enumerate(hypervisor.node_paths.items()):
        into.add(f"node-path-{number}", {"hostPath": {"path": path}}, inside)
    if hypervisor.outliving:
        source = {"hostPath": {"path": paths.OUTLIVING, "type": "DirectoryOrCreate"}}
        into.add("outliving", source, paths.OUTLIVING)


def clash(into: Mounted) -> str:
    """A name that two volumes of the Pod have, because one of the VMI's is called like one of the Pod's own."""
    counts = Counter(volume["name"] for volume in into.volumes)
    return next((name for name, count in counts.items() if count > 1), "")


def _volume(into: Mounted, volume: Volume, index: int, block_volumes: Collection[str], hold: bool) -> None:
    name = volume.name
    if disk := volume.container_disk:
        into.add_image(name, disk, paths.image_volume(index), hold=hold)
    elif claim := volume.persistent_volume_claim:
        _claim(into, name, claim.claim_name, block_volumes, read_only=bool(claim.read_only))
    elif volume.data_volume:
        _claim(into, name, volume.data_volume.name, block_volumes)
    elif volume.ephemeral and volume.ephemeral.persistent_volume_claim:
        _claim(into, name, volume.ephemeral.persistent_volume_claim.claim_name, block_volumes, read_only=True)
    elif host := volume.host_disk:
        kind = "DirectoryOrCreate" if host.type == "DiskOrCreate" else "Directory"
        source = {"hostPath": {"path": posixpath.dirname(host.path), "type": kind}}
        into.add(name, source, paths.claim_dir(name))
    elif cloud_init := volume.cloud_init_no_cloud or volume.cloud_init_config_drive:
        _cloud_init(into, name, cloud_init)
    elif volume.service_account:
        into.service_account = volume.service_account.service_account_name
    elif kind := config_kind(volume):
        into.add(name, _configuration(volume), paths.config_dir(kind, name), read_only=True)


def _claim(into: Mounted, name: str, claim: str, block_volumes: Collection[str], *, read_only: bool = False) -> None:
    places = (paths.claim_dir(name), paths.claim_device(name))
    into.add_claim(name, claim, places, block=name in block_volumes, read_only=read_only)


def _cloud_init(into: Mounted, name: str, source: CloudInitSource) -> None:
    for part, secret in (("userdata", source.secret_ref), ("networkdata", source.network_data_secret_ref)):
        if secret and secret.name:
            path = paths.cloud_init_secret(name, part)
            into.add(f"{name}-{part}", {"secret": {"secretName": secret.name}}, path, read_only=True)


def _configuration(volume: Volume) -> dict[str, Any]:
    if source := volume.config_map:
        return {"configMap": {"name": source.name, **_optional(source.optional)}}
    if secret := volume.secret:
        return {"secret": {"secretName": secret.secret_name, **_optional(secret.optional)}}
    if volume.downward_api:
        return {"downwardAPI": {"items": volume.downward_api.fields}}
    sysprep = volume.sysprep
    if sysprep and sysprep.secret:
        return {"secret": {"secretName": sysprep.secret.name}}
    return {"configMap": {"name": sysprep.config_map.name if sysprep and sysprep.config_map else ""}}


def _optional(optional: bool | None) -> dict[str, bool]:
    return {} if optional is None else {"optional": optional}


def _credentials(vmi: VMI) -> list[str]:
    credentials = [c.ssh_public_key or c.user_password for c in vmi.spec.access_credentials]
    sources = [c.source.secret for c in credentials if c and c.source]
    return [secret.secret_name for secret in sources if secret]
