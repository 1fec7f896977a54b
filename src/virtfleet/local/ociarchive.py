"""Writes a container image as an OCI archive, which every container tool can load."""

from __future__ import annotations

import hashlib
import io
import json
import stat
import tarfile
from collections.abc import Iterable
from typing import IO, Any, NamedTuple

_MEDIA = "application/vnd.oci.image"
_TYPES = {stat.S_IFDIR: tarfile.DIRTYPE, stat.S_IFLNK: tarfile.SYMTYPE, stat.S_IFREG: tarfile.REGTYPE}


class Entry(NamedTuple):
    """A file, directory or symbolic link of the image; the content of a link is where it leads."""

    path: str
    mode: int
    content: bytes = b""
    owner: int = 0


def write_archive(file: IO[bytes], name: str, entries: Iterable[Entry]) -> None:
    """An image of one layer. The same entries give the same bytes."""
    layer = _layer(entries)
    config = {
        "architecture": "amd64",
        "os": "linux",
        "config": {},
        "rootfs": {"type": "layers", "diff_ids": [_digest(layer)]},
    }
    config_blob = json.dumps(config).encode()
    manifest = {
        "schemaVersion": 2,
        "mediaType": f"{_MEDIA}.manifest.v1+json",
        "config": _descriptor(f"{_MEDIA}.config.v1+json", config_blob),
        "layers": [_descriptor(f"{_MEDIA}.layer.v1.tar", layer)],
    }
    manifest_blob = json.dumps(manifest).encode()
    reference = _descriptor(f"{_MEDIA}.manifest.v1+json", manifest_blob)
    reference["annotations"] = {"org.opencontainers.image.ref.name": name}
    index = {"schemaVersion": 2, "manifests": [reference]}
    with tarfile.open(fileobj=file, mode="w") as archive:
        _add(archive, Entry("oci-layout", stat.S_IFREG | 0o644, b'{"imageLayoutVersion": "1.0.0"}'))
        _add(archive, Entry("index.json", stat.S_IFREG | 0o644, json.dumps(index).encode()))
        for blob in (config_blob, manifest_blob, layer):
            _add(archive, Entry(f"blobs/{_digest(blob).replace(':', '/')}", stat.S_IFREG | 0o644, blob))


def _layer(entries: Iterable[Entry]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for entry in entries:
            _add(archive, entry)
    return buffer.getvalue()


def _add(archive: tarfile.TarFile, entry: Entry) -> None:
    member = tarfile.TarInfo(entry.path)
    member.mode = stat.S_IMODE(entry.mode)
    member.type = _TYPES[stat.S_IFMT(entry.mode)]
    member.uid = member.gid = entry.owner
    if member.issym():
        member.linkname = entry.content.decode()
        archive.addfile(member)
    else:
        member.size = len(entry.content)
        archive.addfile(member, io.BytesIO(entry.content))


def _descriptor(media_type: str, blob: bytes) -> dict[str, Any]:
    return {"mediaType": media_type, "digest": _digest(blob), "size": len(blob)}


def _digest(blob: bytes) -> str:
    return "sha256:" + hashlib.sha256(blob).hexdigest()
