"""Rules for volumes: one source each, and what each source needs."""

from __future__ import annotations

import base64
import binascii

from virtfleet.admission.case import Case
from virtfleet.admission.firmware import check_path
from virtfleet.admission.names import dns_subdomain_error
from virtfleet.api.disks import (
    SOURCES,
    CloudInitSource,
    ContainerDiskSource,
    DataVolumeSource,
    DownwardAPIVolumeSource,
    EmptyDiskSource,
    HostDisk,
    SysprepSource,
)
from virtfleet.api.kubernetes import DownwardFile
from virtfleet.api.quantity import Quantity
from virtfleet.api.view import View, given, part, read

_AT_MOST_ONE = ("serviceAccount", "downwardMetrics", "memoryDump")
# source -> field that names the object it reads
_NAMED = {"configMap": "name", "secret": "secretName", "serviceAccount": "serviceAccountName"}
# source -> fields that name objects
_NAMES = {
    **{source: (field,) for source, field in _NAMED.items()},
    "persistentVolumeClaim": ("claimName",),
    "ephemeral": ("persistentVolumeClaim.claimName",),
    "dataVolume": ("name",),
    "memoryDump": ("claimName",),
    "containerDisk": ("imagePullSecret",),
    "sysprep": ("secret.name", "configMap.name"),
    **dict.fromkeys(("cloudInitNoCloud", "cloudInitConfigDrive"), ("secretRef.name", "networkDataSecretRef.name")),
}
_SMALLEST_DISK, _LARGEST_DISK = Quantity.parse("512"), Quantity.parse("1Pi")

_LONGEST_TAG = 36  # of virtiofs
# The object is copied to every node's cache, so inline data stays small.
CLOUD_INIT_LIMIT = 2048


def check(case: Case) -> None:
    first: dict[str, int] = {}
    for i, volume in enumerate(case.spec.volumes):
        name, path = volume.name, f"volumes[{i}]"
        if not name:
            case.required(f"{path}.name", "the volume needs a name; disks and file systems refer to it")
        elif name in first:
            case.invalid(f"{path}.name", f"volumes {first[name]} and {i} are both called {name!r}; rename one")
        first.setdefault(name, i)
        sources = given(volume, SOURCES)
        if len(sources) != 1:
            has = f"has {' and '.join(sources)}; keep one" if sources else f"has none; add one of {', '.join(SOURCES)}"
            case.invalid(path, f"volume {name!r} needs exactly one source and {has}")
        for source in sources:
            body: View = part(volume, source)
            _check_names(case, body, source, f"{path}.{source}")
            _check_source(case, body, source, path)
    for source in _AT_MOST_ONE:
        if sum(part(volume, source) is not None for volume in case.spec.volumes) > 1:
            case.invalid("volumes", f"a VM has at most one {source} volume; remove the others")
    _check_filesystems(case)
    if case.says("utilityVolumes"):
        case.invalid("utilityVolumes", "utility volumes can only be added to a running VM; remove them")


def _check_names(case: Case, body: View, source: str, path: str) -> None:
    if source in _NAMED and not part(body, _NAMED[source]):
        case.invalid(f"{path}.{_NAMED[source]}", f"name the {source} that the volume shows")
    for field in _NAMES.get(source, ()):
        name = part(body, field)
        if not name or not (why := dns_subdomain_error(name)):
            continue
        if source == "persistentVolumeClaim" and not dns_subdomain_error(name.lower()):  # KubeVirt waits for it, too
            case.warn(f"{case.at(path)}.{field}: no claim can be called {name!r}, and the VM waits for it: {why}")
        else:
            case.invalid(f"{path}.{field}", f"{name!r} cannot be the name of an object: {why}")


def _check_source(case: Case, body: View, source: str, path: str) -> None:
    if source == "downwardMetrics":
        case.needs_gate(path, "DownwardMetrics", "a downwardMetrics volume")
    elif isinstance(body, DataVolumeSource) and not body.name:
        case.required(f"{path}.name", "name the DataVolume that the volume shows in dataVolume.name")
    elif isinstance(body, DownwardAPIVolumeSource):
        _check_downward_api(case, body, f"{path}.downwardAPI")
    elif isinstance(body, SysprepSource) and bool(part(body, "secret.name")) == bool(part(body, "configMap.name")):
        case.invalid(f"{path}.sysprep", "answer files come from one secret.name or configMap.name; set one")
    elif isinstance(body, EmptyDiskSource):
        size = Quantity.parse(body.capacity or 0)
        if not _SMALLEST_DISK <= size <= _LARGEST_DISK:
            limits = f"{_SMALLEST_DISK} to {_LARGEST_DISK}"
            case.invalid(f"{path}.emptyDisk.capacity", f"a disk of {size} bytes cannot be made; use {limits}")
    elif isinstance(body, CloudInitSource):
        _check_cloud_init(case, body, f"{path}.{source}")
    elif isinstance(body, HostDisk):
        _check_host_disk(case, body, path)
    elif isinstance(body, ContainerDiskSource) and body.path:
        check_path(case, f"{path}.containerDisk", body.path)


def _check_downward_api(case: Case, body: DownwardAPIVolumeSource, path: str) -> None:
    for i, file in enumerate(read(list[DownwardFile], body.fields)):
        name, field = file.path, f"{path}.fields[{i}]"
        if not name or name.startswith("/") or ".." in name.split("/"):
            case.invalid(f"{field}.path", f"{name!r} is not a file in the volume; use a relative path without '..'")
        if not 0 <= (file.mode or 0) <= 0o777:
            case.invalid(f"{field}.mode", f"mode {file.mode} does not exist; use 0 to 0777")
        if bool(part(file, "fieldRef.fieldPath")) == bool(part(file, "resourceFieldRef.resource")):
            case.invalid(field, "a file holds one of fieldRef.fieldPath and resourceFieldRef.resource; set exactly one")


def _check_cloud_init(case: Case, body: CloudInitSource, path: str) -> None:
    used = 0
    # The secret with user data is called secretRef, the one with network data networkDataSecretRef.
    for kind, secret in (("userData", "secretRef"), ("networkData", "networkDataSecretRef")):
        plain, encoded = part(body, kind), "".join(part(body, f"{kind}Base64").splitlines())
        sources = bool(part(body, f"{secret}.name")) + bool(encoded) + bool(plain)
        used += sources
        size = len(plain.encode())
        if encoded:
            try:
                size = size or len(base64.b64decode(encoded, validate=True))
            except (binascii.Error, ValueError):
                case.invalid(f"{path}.{kind}Base64", f"{kind}Base64 is not base64; put plain text into {kind}")
        if sources > 1:
            case.invalid(path, f"give {kind} in one of {kind}, {kind}Base64 and {secret}, not in {sources} of them")
        if size > CLOUD_INIT_LIMIT:
            case.invalid(
                path, f"{kind} has {size} bytes and may have {CLOUD_INIT_LIMIT}; put it into a Secret and use {secret}"
            )
    if not used:
        case.invalid(path, "cloud-init has no data; set userData, networkData or the name of a Secret")


def _check_host_disk(case: Case, body: HostDisk, path: str) -> None:
    case.needs_gate(path, "HostDisk", "a hostDisk volume")
    if not body.path:
        case.not_found(f"{path}.hostDisk.path", "hostDisk.path names the file on the node; set it")
    elif not body.path.startswith("/") or {".", ".."} & {*body.path.split("/")} or body.path.endswith("/"):
        message = f"{body.path!r} is not the path of a file: begin it with /, end it with a name, and have no .. in it"
        case.invalid(f"{path}.hostDisk.path", message)
    if body.type not in ("Disk", "DiskOrCreate"):
        case.invalid(f"{path}.hostDisk.type", f"type {body.type!r} does not exist; use Disk or DiskOrCreate")
    if body.type == "Disk" and Quantity.parse(body.capacity or 0):
        case.invalid(
            f"{path}.hostDisk.capacity", "an existing disk keeps its size; remove capacity or use type DiskOrCreate"
        )


def _check_filesystems(case: Case) -> None:
    volumes = {volume.name: volume for volume in case.spec.volumes}
    seen: set[str] = set()
    for i, filesystem in enumerate(case.devices.filesystems):
        name, field = filesystem.name, f"domain.devices.filesystems[{i}].name"
        volume = volumes.get(name)
        if name in seen:
            case.duplicate(field, f"two file systems are called {name!r}; rename one")
        seen.add(name)
        if volume is None:
            place = case.at("volumes")
            case.invalid(field, f"file system {name!r} has no volume; add a volume of that name to {place}")
            continue
        if len(name) > _LONGEST_TAG:
            case.invalid(
                field, f"the guest knows a file system by its name, of up to {_LONGEST_TAG} letters; shorten it"
            )
        if volume.persistent_volume_claim is not None or volume.data_volume is not None:
            what = f"file system {name!r} on a persistentVolumeClaim"
            case.needs_gate("domain.devices.filesystems", "EnableVirtioFsStorageVolumes", what)
