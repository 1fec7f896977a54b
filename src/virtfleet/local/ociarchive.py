"""Writes container images as an OCI archive, which every container tool can load."""

from __future__ import annotations

import hashlib
import io
import json
import os
import platform
import stat
import tarfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, NamedTuple

from virtfleet.api.names import ARCHITECTURES

_MEDIA = "application/vnd.oci.image"
_TYPES = {stat.S_IFDIR: tarfile.DIRTYPE, stat.S_IFLNK: tarfile.SYMTYPE, stat.S_IFREG: tarfile.REGTYPE}


class Entry(NamedTuple):
    """A file, directory or symbolic link of the image; the content of a link is where it leads."""

    path: str
    mode: int
    content: bytes = b""
    owner: int = 0


@dataclass(frozen=True)
class Image:
    """An image: its full name, its layers from the lowest up, and what a container of it starts with."""

    name: str
    layers: tuple[bytes, ...]
    config: dict[str, Any] = field(default_factory=dict)


def layer(entries: Iterable[Entry]) -> bytes:
    """The same entries give the same bytes."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for entry in entries:
            _add(archive, entry)
    return buffer.getvalue()


def entries_of(tree: Path) -> Iterator[Entry]:
    """Everything in a directory, owned by root, in the order of names."""
    for directory, directories, files in os.walk(tree):
        directories.sort()
        for name in sorted((*directories, *files)):
            path = Path(directory, name)
            mode = path.lstat().st_mode
            content = os.readlink(path).encode() if stat.S_ISLNK(mode) else b""
            yield Entry(str(path.relative_to(tree)), mode, path.read_bytes() if stat.S_ISREG(mode) else content)


def write_archive(file: IO[bytes], name: str, entries: Iterable[Entry]) -> None:
    """An image of one layer."""
    write_images(file, [Image(name, (layer(entries),))])


def write_images(file: IO[bytes], images: Iterable[Image]) -> dict[str, str]:
    """All images in one archive, layers that they share only once. The answer is each name with its digest."""
    blobs: dict[str, bytes] = {}
    references = []
    for image in images:
        config = {
            "architecture": ARCHITECTURES.get(platform.machine(), platform.machine()),
            "os": "linux",
            "config": image.config,
            "rootfs": {"type": "layers", "diff_ids": [_digest(content) for content in image.layers]},
        }
        manifest = {
            "schemaVersion": 2,
            "mediaType": f"{_MEDIA}.manifest.v1+json",
            "config": _descriptor(f"{_MEDIA}.config.v1+json", _json(config), blobs),
            "layers": [_descriptor(f"{_MEDIA}.layer.v1.tar", content, blobs) for content in image.layers],
        }
        reference = _descriptor(f"{_MEDIA}.manifest.v1+json", _json(manifest), blobs)
        # skopeo and containerd look for the name in different places, and the kubelet for the whole of it.
        names = {"org.opencontainers.image.ref.name": image.name, "io.containerd.image.name": full_name(image.name)}
        references.append(reference | {"annotations": names})
    with tarfile.open(fileobj=file, mode="w") as archive:
        index = {"schemaVersion": 2, "manifests": references}
        _add(archive, Entry("oci-layout", stat.S_IFREG | 0o644, b'{"imageLayoutVersion": "1.0.0"}'))
        _add(archive, Entry("index.json", stat.S_IFREG | 0o644, _json(index)))
        for digest, blob in blobs.items():
            _add(archive, Entry(f"blobs/{digest.replace(':', '/')}", stat.S_IFREG | 0o644, blob))
    return {r["annotations"]["io.containerd.image.name"]: r["digest"] for r in references}


def full_name(name: str) -> str:
    """The name with the registry that it leaves out: without a host before its first slash it is Docker's."""
    registry, slash, _ = name.partition("/")
    if slash and ("." in registry or ":" in registry or registry == "localhost"):
        return name
    return f"docker.io/{name}" if slash else f"docker.io/library/{name}"


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


def _descriptor(media_type: str, blob: bytes, blobs: dict[str, bytes]) -> dict[str, Any]:
    digest = _digest(blob)
    blobs[digest] = blob
    return {"mediaType": media_type, "digest": digest, "size": len(blob)}


def _json(value: Any) -> bytes:
    return json.dumps(value, sort_keys=True).encode()


def _digest(blob: bytes) -> str:
    return "sha256:" + hashlib.sha256(blob).hexdigest()
