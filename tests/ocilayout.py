"""OCI images for tests, made as build tools make them."""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
from pathlib import Path


def layer(files: dict[str, bytes | None]) -> bytes:
    """A layer's archive; None makes a directory."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.mode = 0o755
            if content is None:
                info.type = tarfile.DIRTYPE
                archive.addfile(info)
            else:
                info.size = len(content)
                archive.addfile(info, io.BytesIO(content))
    return buffer.getvalue()


def oci_layout(path: Path, layers: list[bytes], config: dict[str, object]) -> Path:
    """An OCI image layout on disk, as a build tool writes it."""
    blobs = path / "blobs" / "sha256"
    blobs.mkdir(parents=True)

    def blob(content: bytes, media_type: str) -> dict[str, object]:
        digest = hashlib.sha256(content).hexdigest()
        (blobs / digest).write_bytes(content)
        return {"mediaType": media_type, "digest": f"sha256:{digest}", "size": len(content)}

    prefix = "application/vnd.oci.image"
    diff_ids = [f"sha256:{hashlib.sha256(content).hexdigest()}" for content in layers]
    description = {
        "architecture": "amd64",
        "os": "linux",
        "config": config,
        "rootfs": {"type": "layers", "diff_ids": diff_ids},
    }
    manifest = {
        "schemaVersion": 2,
        "mediaType": f"{prefix}.manifest.v1+json",
        "config": blob(json.dumps(description).encode(), f"{prefix}.config.v1+json"),
        "layers": [blob(content, f"{prefix}.layer.v1.tar") for content in layers],
    }
    index = {"schemaVersion": 2, "manifests": [blob(json.dumps(manifest).encode(), f"{prefix}.manifest.v1+json")]}
    (path / "index.json").write_text(json.dumps(index))
    (path / "oci-layout").write_text('{"imageLayoutVersion": "1.0.0"}')
    return path
