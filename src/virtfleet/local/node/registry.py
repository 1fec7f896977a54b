"""Images from elsewhere: registries, OCI archives and layouts, Docker archives. skopeo reads them all.

For containers, what is here is used, what is not is pulled in the background, and failures are paced. There nothing
waits: a pod whose image is on its way must still be deletable, so its worker is told to come back.
"""

from __future__ import annotations

import asyncio
import os
import re
import sys
import tarfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import orjson

from virtfleet.local.node.images import Image, ImageError, ImageStore, canonical
from virtfleet.local.node.lifecycle import FIRST_BACKOFF, LAST_BACKOFF
from virtfleet.local.node.runtime import last_word
from virtfleet.work.commands import CommandError, started
from virtfleet.work.tasks import start

_NAME = re.compile(r"[a-z0-9]+([._:/-]+[a-zA-Z0-9_]+)*(@sha256:[0-9a-f]{64})?")
_FRESH = 60.0  # seconds for which a finished pull serves a pod that asked with the policy Always
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


class ImageUnavailable(Exception):
    """The container must wait. `until` is when to ask again; None: the asker is woken."""

    def __init__(self, image: str, reason: str, message: str = "", until: float | None = None) -> None:
        super().__init__(message)
        self.image, self.reason, self.message, self.until = image, reason, message, until


@dataclass(slots=True)
class _Trouble:
    pause: float
    until: float
    message: str
    published: bool = False  # some container's status has it


class Puller:
    """The images of one node."""

    def __init__(self, store: ImageStore) -> None:
        self._store = store
        self._pulls: dict[str, asyncio.Task[None]] = {}
        self._wakers: dict[str, set[Callable[[], None]]] = {}
        self._pulled: dict[str, float] = {}
        self._trouble: dict[str, _Trouble] = {}

    def obtain(self, name: str, policy: str, wake: Callable[[], None]) -> Image:
        """The image, or ImageUnavailable with the reason that the container's status gets."""
        if not _NAME.fullmatch(name):
            text = f'Failed to apply default image tag "{name}": invalid reference'
            raise ImageUnavailable(name, "InvalidImageName", text)
        image = self._store.find(name)
        if policy == "Never" and image is None:
            text = f'Container image "{name}" is not present with pull policy of Never'
            raise ImageUnavailable(name, "ErrImageNeverPull", text)
        # An image that was made on this machine has no registry to be asked again.
        key = canonical(name)
        fresh = time.time() - self._pulled.get(key, 0) < _FRESH
        if image is not None and (policy != "Always" or not image.origin or fresh):
            return image
        trouble = self._trouble.get(key)
        if trouble is not None and not trouble.published:
            trouble.published = True
            raise ImageUnavailable(name, "ErrImagePull", trouble.message, time.time() + 1)
        backing_off = f'Back-off pulling image "{name}": ErrImagePull: {trouble.message}' if trouble else ""
        if trouble is not None and 0 < trouble.until - time.time() <= trouble.pause:  # or the clock was set
            raise ImageUnavailable(name, "ImagePullBackOff", backing_off, trouble.until)
        self._wakers.setdefault(key, set()).add(wake)
        if key not in self._pulls:
            self._pulls[key] = start(self._pull(name), f"pull: {name}")
        # Until this attempt is over, the last one is what is known.
        raise ImageUnavailable(name, "ImagePullBackOff" if trouble else "ContainerCreating", backing_off)

    async def _pull(self, name: str) -> None:
        key = canonical(name)
        try:
            await pull(self._store, name)
        except (ImageError, OSError, ValueError, KeyError) as error:  # of the registry, and of what it sent
            before = self._trouble.get(key)
            pause = min(2 * before.pause, LAST_BACKOFF) if before else FIRST_BACKOFF
            self._trouble[key] = _Trouble(pause, time.time() + pause, f'failed to pull image "{name}": {error}')
        else:
            self._trouble.pop(key, None)
            self._pulled[key] = time.time()
        finally:
            del self._pulls[key]
            for wake in self._wakers.pop(key, ()):
                wake()
