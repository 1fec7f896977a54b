"""Images from elsewhere: registries, OCI archives and layouts, Docker archives. skopeo reads them all."""

from __future__ import annotations

import asyncio
import os
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path

import orjson

from virtfleet.local.node.images import Image, ImageError, ImageStore, canonical
from virtfleet.local.node.runtime import last_word
from virtfleet.work.commands import CommandError, started

_LIMIT = 900.0  # seconds for an image to come, and for one layer to be unpacked

Progress = Callable[[str], None]


async def pull(store: ImageStore, name: str, progress: Progress = lambda _: None) -> Image:
    """Bring an image from its registry. `progress` is told what is being copied."""
    first = name.partition("/")[0]
    qualified = name if "." in first or ":" in first.partition("@")[0] or first == "localhost" else f"docker.io/{name}"
    return await _bring(store, f"docker://{qualified}", name, qualified, progress)


async def load(store: ImageStore, path: Path, name: str, progress: Progress = lambda _: None) -> Image:
    """Import an archive or layout that lies on this machine."""
    return await _bring(store, _transport(path), name, "", progress)


def _transport(path: Path) -> str:
    """skopeo's name for what lies at `path`."""
    if (path / "oci-layout").is_file():
        return f"oci:{path}"
    if not path.is_file():
        raise ImageError(f"{path}: no OCI layout, OCI archive or Docker archive there")
    try:
        with tarfile.open(path) as archive:
            names = {member.name.removeprefix("./") for member in archive}
    except tarfile.TarError as error:
        raise ImageError(f"{path}: not an image archive: {error}") from None
    if "oci-layout" in names:
        return f"oci-archive:{path}"
    if "manifest.json" in names:
        return f"docker-archive:{path}"
    raise ImageError(f"{path}: an archive, but of neither OCI's nor Docker's form")


async def _bring(store: ImageStore, source: str, name: str, origin: str, progress: Progress) -> Image:
    with store.scratch() as scratch:
        blobs = scratch / "blobs"
        await _copy(source, blobs, progress)
        manifest = orjson.loads((blobs / "manifest.json").read_bytes())
        config = orjson.loads(_blob(blobs, manifest["config"]["digest"]).read_bytes()).get("config") or {}
        layers: list[str] = []
        for layer in manifest["layers"]:
            layer_name = layer["digest"].partition(":")[2][:16]
            if not (store.layers / layer_name).is_dir():
                progress(f"unpacking layer {layer_name}")
                tree = scratch / layer_name
                tree.mkdir(0o755)
                await _unpack(_blob(blobs, layer["digest"]), tree)
                store.add_layer(tree, layer_name)
            layers.insert(0, layer_name)
        image = Image(
            name=canonical(name),
            layers=tuple(layers),
            env=tuple(config.get("Env") or ()),
            entrypoint=tuple(config.get("Entrypoint") or ()),
            command=tuple(config.get("Cmd") or ()),
            user=config.get("User") or "",
            workdir=config.get("WorkingDir") or "/",
            stop_signal=config.get("StopSignal") or "",
            size=sum(layer["size"] for layer in manifest["layers"]),
            digest=name.partition("@")[2],
            origin=origin,
        )
        return store.put(image)


def _blob(blobs: Path, digest: str) -> Path:
    return blobs / digest.partition(":")[2]


async def _copy(source: str, blobs: Path, progress: Progress) -> None:
    async def follow(lines: asyncio.StreamReader) -> None:
        async for line in lines:
            progress(line.decode(errors="replace").strip())

    copy = ("skopeo", "--insecure-policy", "copy", "--format", "oci", "--dest-decompress", source, f"dir:{blobs}")
    try:
        async with started(*copy, limit=_LIMIT, stdin=asyncio.subprocess.DEVNULL) as process:
            assert process.stdout is not None and process.stderr is not None
            _, complaint = await asyncio.gather(follow(process.stdout), process.stderr.read())
            code = await process.wait()
    except CommandError as error:
        raise ImageError(str(error)) from None
    if code:
        raise ImageError(last_word(complaint.decode(errors="replace")))


async def _unpack(blob: Path, tree: Path) -> None:
    unpack = (sys.executable, "-m", "virtfleet.local.node.unpack", os.fspath(tree))
    with await asyncio.to_thread(open, blob, "rb") as archive:
        try:
            async with started(*unpack, limit=_LIMIT, stdin=archive) as process:
                _, complaint = await process.communicate()
        except CommandError as error:
            raise ImageError(f"layer {blob.name[:16]} cannot be unpacked: {error}") from None
    if process.returncode:
        raise ImageError(f"layer {blob.name[:16]} cannot be unpacked: {last_word(complaint.decode())}")
