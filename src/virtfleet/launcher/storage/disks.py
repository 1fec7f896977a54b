"""Prepares what the domain's disks lie on, before the domain is defined.

Each kind of volume has its own way from what the Pod mounts to what the hypervisor opens. Everything here can be done
again: a launcher that is asked twice finds what it made the first time.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Iterator, Sequence, Set
from pathlib import Path
from typing import Any
from xml.etree.ElementTree import Element

import msgspec

from virtfleet.api import names
from virtfleet.api.disks import Volume
from virtfleet.api.quantity import Quantity
from virtfleet.api.vmi import VirtualMachineInstance as VMI
from virtfleet.domain import paths, volumes
from virtfleet.domain.context import Context
from virtfleet.domain.xml import attribute
from virtfleet.launcher.failure import Failure
from virtfleet.launcher.storage import imagefiles, mapped, seeds
from virtfleet.launcher.storage.iso import Image
from virtfleet.launcher.vm import metrics
from virtfleet.work import commands
from virtfleet.work.tasks import all_of

Seeded = Callable[[Volume, seeds.Files], Awaitable[seeds.Files]]

_FORMATS = ("raw", "qcow2")
_LIMIT = 900.0  # seconds: a large disk is copied and checked as fast as its storage allows
_LEAKS = 3  # how `qemu-img check` ends where space is lost, but no data


async def formats(vmi: VMI) -> dict[str, str]:
    """Find the disks in container images; the answer is their formats, by volume."""
    roots = {filesystem.name for filesystem in vmi.spec.domain.devices.filesystems}
    images = {
        volume.name: _container_disk(index, volume)
        for index, volume in enumerate(vmi.spec.volumes)
        if volume.container_disk and volume.name not in roots
    }
    checked = await all_of(*(_checked_format(name, path) for name, path in images.items()))
    return dict(zip(images, checked, strict=True))


async def prepare(vmi: VMI, context: Context, domain: Element, seeded: Seeded) -> None:
    """Make everything that the domain's document names: disks, images of configuration, boot files.

    `seeded` has the last word about the files of cloud-init.
    """
    named = {value for element in domain.iter() for value in element.attrib.values()}
    _boot_files(vmi)
    _ignition(vmi)
    images = []
    for volume in vmi.spec.volumes:
        for image in _configuration(vmi, volume):
            if image.output in named:
                images.append(image)
                if volumes.seed(volume):
                    image.contents = await seeded(volume, image.contents)
    await all_of(
        _write_images(images),
        *(_prepare(vmi, index, volume, context, named, domain) for index, volume in enumerate(vmi.spec.volumes)),
    )


def fill_plugged(vmi: VMI, context: Context, domain: Element) -> None:
    """Make the images of claims that are new to a domain which runs, where they have none."""
    named = {value for element in domain.iter() for value in element.attrib.values()}
    for volume in vmi.spec.volumes:
        if paths.hotplug_image(volume.name) in named:
            _fill_claim(vmi, volume, context, _plugged_image(volume.name))


async def _prepare(vmi: VMI, index: int, volume: Volume, context: Context, named: Set[str], domain: Element) -> None:
    """Make what one volume needs beside images of configuration."""
    overlay, raw, root = (of(volume.name) for of in (paths.ephemeral_disk, paths.raw_disk, paths.container_root))
    if overlay in named:  # over a disk that is never written to; what the guest writes is gone when the Pod is
        below, form = _below(index, volume, context)
        await _made(overlay, "qemu-img", "create", "-q", "-f", "qcow2", "-b", below, "-F", form, "{}")
    elif raw in named and not volume.empty_disk:  # the same for hypervisors that read plain disks only
        below, form = _below(index, volume, context)
        await _made(raw, "qemu-img", "convert", "-f", form, "-O", "raw", below, "{}")
    elif root in named:
        await asyncio.to_thread(mapped.copy, paths.image_volume(index), root, _first_id(domain))
    elif paths.mapped_dir(volume.name) in named:
        await asyncio.to_thread(_map_claim, volume.name, _first_id(domain))
    elif volume.empty_disk:
        await _empty(volume, raw in named)
    elif volume.host_disk and volume.host_disk.type == "DiskOrCreate":
        _allocate(paths.host_disk(volume.name, volume.host_disk.path), _size(volume.host_disk.capacity))
    elif paths.virtiofs_socket(volume.name) in named:
        return  # a directory, shared as it is
    elif volume.persistent_volume_claim or volume.data_volume:
        plugged = paths.hotplug_image(volume.name) in named
        image = _plugged_image(volume.name) if plugged else paths.claim_image(volume.name)
        _fill_claim(vmi, volume, context, image)
    elif volume.downward_metrics:
        metrics.write_disk(paths.DOWNWARD_METRICS_DISK, [])
    else:
        _seed_directory(vmi, volume, named)


async def _write_images(images: list[Image]) -> None:
    if images:
        await _command(*commands.python("virtfleet.launcher.storage.iso"), feed=msgspec.json.encode(images))


def _below(index: int, volume: Volume, context: Context) -> tuple[str, str]:
    """What a disk that is thrown away lies on, and its format."""
    if volume.container_disk:
        return paths.container_disk(index), context.disk_formats[volume.name]
    block = volume.name in context.block_volumes
    return paths.claim_device(volume.name) if block else paths.claim_image(volume.name), "raw"


def _boot_files(vmi: VMI) -> None:
    """Kernel and initrd, from the image that the Pod mounts to where the domain expects them."""
    firmware = vmi.spec.domain.firmware
    container = firmware.kernel_boot.container if firmware and firmware.kernel_boot else None
    if not container:
        return
    image = Path(paths.kernel_boot_image())
    for artifact in filter(None, (container.kernel_path, container.initrd_path)):
        _link(paths.kernel_boot(artifact), imagefiles.inside(image, artifact, "the boot image"))


def _ignition(vmi: VMI) -> None:
    """The configuration that Ignition reads in the guest, which its owner wrote into an annotation."""
    if text := vmi.metadata.annotations.get(names.IGNITION):
        file = Path(paths.ignition(vmi.metadata.namespace, vmi.metadata.name))
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)


def _container_disk(index: int, volume: Volume) -> str:
    """The disk in a container image."""
    assert volume.container_disk is not None
    disk, image = paths.container_disk(index), Path(paths.image_volume(index))
    what = f"volume {volume.name!r}: the image"
    if not os.path.lexists(disk):
        of = volume.container_disk
        _link(disk, imagefiles.inside(image, of.path, what) if of.path else imagefiles.disk(image, what, of.image))
    return disk


def _link(link: str, target: Path) -> None:
    Path(link).parent.mkdir(parents=True, exist_ok=True)
    if not os.path.lexists(link):
        os.symlink(target, link)


async def _checked_format(name: str, path: str) -> str:
    """The format of somebody else's image. One that refers to other files could read what its owner must not."""
    try:
        described = await _command("qemu-img", "info", "--output=json", "--force-share", path)
        info: dict[str, Any] = msgspec.json.decode(described)
        if info["format"] == "qcow2":
            await _command("qemu-img", "check", "--force-share", "-f", "qcow2", path, accept=(0, _LEAKS))
    except Failure as error:
        raise Failure(f"volume {name!r}: the image is damaged, replace it: {error}") from None
    if info["format"] not in _FORMATS:
        raise Failure(f"volume {name!r}: an image of format {info['format']}; it must be one of {', '.join(_FORMATS)}")
    if "backing-filename" in info or "data-file" in info.get("format-specific", {}).get("data", {}):
        raise Failure(f"volume {name!r}: the image refers to another file, which is not allowed")
    return str(info["format"])


async def _empty(volume: Volume, raw: bool) -> None:
    assert volume.empty_disk is not None
    target = paths.raw_disk(volume.name) if raw else paths.empty_disk(volume.name)
    size = _size(volume.empty_disk.capacity)
    size = size >> 20 << 20 or size  # whole MiB, as KubeVirt has it
    if size <= 0:  # and never an option of the command
        raise Failure(f"volume {volume.name!r}: no disk of {size} bytes can be made; set emptyDisk.capacity")
    await _made(target, "qemu-img", "create", "-q", "-f", "raw" if raw else "qcow2", "{}", str(size))


def _first_id(domain: Element) -> int:
    """Who the guest's root is on the node, where the guest is a container."""
    return int(attribute(domain, "idmap/uid", "target"))


def _map_claim(volume: str, first: int) -> None:
    try:
        mapped.mount(paths.claim_dir(volume), paths.mapped_dir(volume), first)
    except OSError as error:
        raise Failure(
            f"volume {volume!r}: its file system cannot be shown to a container, whose users have other numbers on the "
            f"node: {error.strerror}; use a claim of another storage class, with volumeMode Filesystem"
        ) from None


def choose_cache(domain: Element) -> None:
    """Keep claims out of the node's cache where nobody chose and their storage allows it, as KubeVirt does.

    What only lies in a node's cache cannot move to another node with the VM.
    """
    for disk in domain.iterfind("devices/disk"):
        if disk.get("device") == "cdrom":  # only read, and of a drive that runs nothing but the medium can change
            continue
        driver = disk.find("driver")
        path = attribute(disk, "source", "file") or attribute(disk, "source", "dev")
        of_claim = path.startswith((f"{paths.HOTPLUG_DISKS}/", f"{paths.CLAIMS}/", "/dev/"))
        if driver is not None and not driver.get("cache") and of_claim:
            driver.set("cache", "none" if _is_direct(path) else "writethrough")


def _is_direct(path: str) -> bool:
    try:
        os.close(os.open(path, os.O_RDONLY | os.O_DIRECT | os.O_NONBLOCK | os.O_CLOEXEC))
    except OSError:
        return False
    return True


def _plugged_image(volume: str) -> str:
    """The image of a claim that was plugged in, reached by the name that the domain has for it."""
    image = f"{paths.hotplug_place(volume)}/disk.img"
    if os.path.isdir(os.path.dirname(image)):
        _link(paths.hotplug_image(volume), Path(image))
    return image


def _fill_claim(vmi: VMI, volume: Volume, context: Context, path: str) -> None:
    """A claim with an empty file system gets a disk image that fills it."""
    image = Path(path)
    if volume.name in context.block_volumes or image.exists() or not image.parent.is_dir():
        return
    status = next((s for s in vmi.status.volume_status if s.name == volume.name), None)
    other = next((v.destination_pvc_info for v in vmi.status.migrated_volumes if v.volume_name == volume.name), None)
    info = other or (status.persistent_volume_claim_info if status else None)
    if not info:
        raise Failure(f"volume {volume.name!r}: the claim holds no disk.img, and its size is not known")
    amounts = [_size(q) for q in (info.capacity.get("storage"), info.requests.get("storage")) if q is not None]
    size = int(min(amounts, default=0) * (1 - float(info.filesystem_overhead or 0)))
    try:
        _allocate(str(image), size >> 20 << 20)
    except OSError as error:
        raise Failure(
            f"volume {volume.name!r}: the claim holds no disk.img, and user {os.getuid()} cannot make one there "
            f"({error.strerror}); make the volume's directory writable for that user, or put a disk.img there"
        ) from None


def _allocate(path: str, size: int) -> None:
    if os.path.exists(path):
        return
    if size <= 0:
        raise Failure(f"{path} does not exist, and no capacity is set to make it with")
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    with open(f"{path}.new", "wb") as file:
        file.truncate(size)
    os.replace(f"{path}.new", path)


def _configuration(vmi: VMI, volume: Volume) -> Iterator[Image]:
    """The ISO image of a volume that is made from configuration."""
    namespace, name = vmi.metadata.namespace, vmi.metadata.name
    if volumes.seed(volume):
        output = paths.cloud_init(namespace, name, not volume.cloud_init_no_cloud)
        yield Image(output, seeds.layout(volume).label, seeds.files(vmi, volume))
    elif volume.service_account:
        yield Image(paths.SERVICE_ACCOUNT_DISK, "cfgdata", sources=_files_below(Path(paths.SERVICE_ACCOUNT)))
    elif kind := volumes.config_kind(volume):
        source = volume.config_map or volume.secret or volume.downward_api
        label = (source.volume_label if source else "unattend") or "cfgdata"
        directory = Path(paths.config_dir(kind, volume.name))
        yield Image(paths.config_disk(kind, volume.name), label, sources=_files_below(directory))


def _seed_directory(vmi: VMI, volume: Volume, named: Set[str]) -> None:
    """cloud-init's files as a directory, for guests that are containers."""
    directory = paths.cloud_init_seed(vmi.metadata.namespace, vmi.metadata.name)
    if directory not in named or not volumes.seed(volume):
        return
    for name, content in seeds.files(vmi, volume).items():
        file = Path(directory, name)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content)


def _files_below(directory: Path) -> dict[str, str]:
    """Files as the guest shall see them; the kubelet's own `..data` links are left out."""
    if not directory.is_dir():
        raise Failure(f"{directory} is not mounted in this Pod")
    return {path.name: str(path) for path in sorted(directory.iterdir()) if not path.name.startswith("..")}


def _size(amount: object) -> int:
    return Quantity.parse(amount).value() if isinstance(amount, str | int | float) else 0


async def _made(target: str, *command: str) -> None:
    """Run a command that makes a file, unless it was made before; `{}` stands for the file."""
    if _to_be_made(target):
        await _command(*(f"{target}.new" if word == "{}" else word for word in command))
        os.replace(f"{target}.new", target)


def _to_be_made(target: str) -> bool:
    os.makedirs(os.path.dirname(target), exist_ok=True)
    return not os.path.exists(target)


async def _command(*command: str, feed: bytes | None = None, accept: Sequence[int] = (0,)) -> str:
    try:
        return await commands.run(*command, feed=feed, limit=_LIMIT, accept=accept)
    except commands.CommandError as error:
        raise Failure(str(error)) from None
