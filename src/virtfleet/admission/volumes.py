"""Rules for volumes: one source each, and what each source needs."""

from __future__ import annotations

import base64
import binascii

from virtfleet.admission.findings import Findings
from virtfleet.admission.firmware import check_path
from virtfleet.admission.machine import Machine
from virtfleet.admission.names import dns_subdomain_error
from virtfleet.admission.sections import Section, read
from virtfleet.api.quantity import Quantity

SOURCES = (
    "persistentVolumeClaim", "sysprep", "cloudInitNoCloud", "cloudInitConfigDrive", "containerDisk", "ephemeral",
    "emptyDisk", "hostDisk", "dataVolume", "configMap", "secret", "downwardAPI", "serviceAccount", "downwardMetrics",
    "memoryDump", "containerPath",
)  # fmt: skip
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
_STORAGE = ("persistentVolumeClaim", "dataVolume")

# The object is copied to every node's cache, so inline data stays small.
CLOUD_INIT_LIMIT = 2048


def check(m: Machine, found: Findings) -> None:
    base = m.at("volumes")
    first: dict[str, int] = {}
    for i, volume in enumerate(m.volumes):
        name, path = volume.get("name") or "", f"{base}[{i}]"
        if not name:
            found.required(f"{path}.name", "the volume needs a name; disks and file systems refer to it")
        elif name in first:
            found.invalid(f"{path}.name", f"volumes {first[name]} and {i} are both called {name!r}; rename one")
        first.setdefault(name, i)
        sources = [source for source in SOURCES if volume.get(source) is not None]
        if len(sources) != 1:
            has = f"has {' and '.join(sources)}; keep one" if sources else f"has none; add one of {', '.join(SOURCES)}"
            found.invalid(path, f"volume {name!r} needs exactly one source and {has}")
        for source in sources:
            _check_source(m, volume, source, path, found)
    for source in _AT_MOST_ONE:
        if sum(volume.get(source) is not None for volume in m.volumes) > 1:
            found.invalid(base, f"a VM has at most one {source} volume; remove the others")
    _check_filesystems(m, found)
    if m.spec.get("utilityVolumes") is not None:
        found.invalid(m.at("utilityVolumes"), "utility volumes can only be added to a running VM; remove them")


def _check_source(m: Machine, volume: Section, source: str, path: str, found: Findings) -> None:
    body = volume[source]
    if source in _NAMED and not body.get(_NAMED[source]):
        found.invalid(f"{path}.{source}.{_NAMED[source]}", f"name the {source} that the volume shows")
    for field in _NAMES.get(source, ()):
        *parents, last = field.split(".")
        name = read(body, *parents).get(last)
        if name and (why := dns_subdomain_error(name)):
            found.invalid(f"{path}.{source}.{field}", f"{name!r} cannot be the name of an object: {why}")
    match source:
        case "dataVolume":
            if not body.get("name"):
                found.required(f"{path}.name", "name the DataVolume that the volume shows in dataVolume.name")
        case "downwardAPI":
            _check_downward_api(body, f"{path}.downwardAPI", found)
        case "sysprep":
            kinds = [kind for kind in ("secret", "configMap") if read(body, kind).get("name")]
            if len(kinds) != 1:
                found.invalid(f"{path}.sysprep", "answer files come from one secret.name or configMap.name; set one")
        case "emptyDisk":
            _check_capacity(body, f"{path}.emptyDisk.capacity", found)
        case "cloudInitNoCloud" | "cloudInitConfigDrive":
            _check_cloud_init(body, f"{path}.{source}", found)
        case "downwardMetrics":
            if not m.enabled("DownwardMetrics"):
                found.gate_is_off(path, "DownwardMetrics", "a downwardMetrics volume")
        case "hostDisk":
            _check_host_disk(m, body, path, found)
        case "containerDisk":
            if body.get("path"):
                check_path(f"{path}.containerDisk", body["path"], found)


def _check_downward_api(body: Section, path: str, found: Findings) -> None:
    for i, file in enumerate(body.get("fields") or ()):
        name, field = file.get("path") or "", f"{path}.fields[{i}]"
        if not name or name.startswith("/") or ".." in name.split("/"):
            found.invalid(f"{field}.path", f"{name!r} is not a file in the volume; use a relative path without '..'")
        if not 0 <= (file.get("mode") or 0) <= 0o777:
            found.invalid(f"{field}.mode", f"mode {file['mode']} does not exist; use 0 to 0777")
        sources = [
            s for s in (read(file, "fieldRef").get("fieldPath"), read(file, "resourceFieldRef").get("resource")) if s
        ]
        if len(sources) != 1:
            found.invalid(
                field, "a file holds one of fieldRef.fieldPath and resourceFieldRef.resource; set exactly one"
            )


def _check_capacity(body: Section, field: str, found: Findings) -> None:
    size = Quantity.parse(body.get("capacity") or 0)
    if not _SMALLEST_DISK <= size <= _LARGEST_DISK:
        found.invalid(field, f"a disk of {size} bytes cannot be made; use {_SMALLEST_DISK} to {_LARGEST_DISK}")


def _check_cloud_init(body: Section, path: str, found: Findings) -> None:
    used = 0
    # The secret with user data is called secretRef, the one with network data networkDataSecretRef.
    for kind, secret in (("userData", "secretRef"), ("networkData", "networkDataSecretRef")):
        plain, encoded = body.get(kind) or "", "".join((body.get(f"{kind}Base64") or "").splitlines())
        sources = bool(read(body, secret).get("name")) + bool(encoded) + bool(plain)
        used += sources
        size = len(plain.encode())
        if encoded:
            try:
                size = size or len(base64.b64decode(encoded, validate=True))
            except (binascii.Error, ValueError):
                found.invalid(f"{path}.{kind}Base64", f"{kind}Base64 is not base64; put plain text into {kind}")
        if sources > 1:
            found.invalid(path, f"give {kind} in one of {kind}, {kind}Base64 and {secret}, not in {sources} of them")
        if size > CLOUD_INIT_LIMIT:
            found.invalid(
                path, f"{kind} has {size} bytes and may have {CLOUD_INIT_LIMIT}; put it into a Secret and use {secret}"
            )
    if not used:
        found.invalid(path, "cloud-init has no data; set userData, networkData or the name of a Secret")


def _check_host_disk(m: Machine, body: Section, path: str, found: Findings) -> None:
    if not m.enabled("HostDisk"):
        found.gate_is_off(path, "HostDisk", "a hostDisk volume")
    if not body.get("path"):
        found.not_found(f"{path}.hostDisk.path", "hostDisk.path names the file on the node; set it")
    kind = body.get("type")
    if kind not in ("Disk", "DiskOrCreate"):
        found.invalid(f"{path}.hostDisk.type", f"type {kind!r} does not exist; use Disk or DiskOrCreate")
    if kind == "Disk" and Quantity.parse(body.get("capacity") or 0):
        found.invalid(
            f"{path}.hostDisk.capacity", "an existing disk keeps its size; remove capacity or use type DiskOrCreate"
        )


def _check_filesystems(m: Machine, found: Findings) -> None:
    volumes = {v.get("name"): v for v in m.volumes}
    seen: set[str] = set()
    for i, filesystem in enumerate(m.devices.get("filesystems") or ()):
        name = filesystem.get("name")
        volume = volumes.get(name)
        if name in seen:
            field = m.at(f"domain.devices.filesystems[{i}].name")
            found.duplicate(field, f"two file systems are called {name!r}; rename one")
        seen.add(name)
        if volume is None:
            found.invalid(
                m.at(f"domain.devices.filesystems[{i}].name"),
                f"file system {name!r} has no volume; add a volume of that name to {m.at('volumes')}",
            )
            continue
        storage = any(volume.get(source) is not None for source in _STORAGE)
        if storage and not m.enabled("EnableVirtioFsStorageVolumes"):
            found.gate_is_off(
                m.at("domain.devices.filesystems"),
                "EnableVirtioFsStorageVolumes",
                f"file system {name!r} on a persistentVolumeClaim",
            )
