"""The image store: what containers are made of, by name.

An image is a list of layers (directories, topmost first) and a configuration. Images that stand on the base `host`
have, below their layers, this machine's /usr and VirtFleet's own environment, bound read-only and never copied; see
`hostimage`. Records and layers are written aside and renamed, so a killed writer leaves only rubbish in tmp/.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from urllib.parse import quote

import msgspec

from virtfleet.work.locks import locked

HOST = "host"
_HUB = ("docker.io/library/", "docker.io/", "index.docker.io/library/", "index.docker.io/")


class ImageError(Exception):
    """An image operation failed; the message says what to do."""


class Image(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One image. `origin` is where it came from: a registry reference, or "" when it was made on this machine."""

    name: str
    layers: tuple[str, ...]
    on_host: bool = False
    env: tuple[str, ...] = ()
    entrypoint: tuple[str, ...] = ()
    command: tuple[str, ...] = ()
    user: str = ""
    workdir: str = "/"
    stop_signal: str = ""
    size: int = 0
    digest: str = ""
    origin: str = ""

    @property
    def id(self) -> str:
        """What the image is, whatever it is called."""
        content = msgspec.json.encode(msgspec.structs.replace(self, name="", origin="", digest="", size=0))
        return "sha256:" + hashlib.sha256(content).hexdigest()


def canonical(name: str) -> str:
    """One spelling per image: without Docker Hub's implied parts, with the implied tag."""
    name = name.removeprefix(next((prefix for prefix in _HUB if name.startswith(prefix)), ""))
    if "@" in name or ":" in name.rpartition("/")[2]:
        return name
    return f"{name}:latest"


class ImageStore:
    """Images below one directory. Several processes (the agents, the command line) may use it at once."""

    def __init__(self, directory: Path, underlays: Mapping[str, str] | None = None) -> None:
        self.directory = directory
        self._underlays = dict(underlays or {})  # target in the container -> directory of the machine
        self.layers = directory / "layers"
        self._records = directory / "records"
        self._scratch = directory / "tmp"

    def create(self) -> None:
        """Make the directories that are written to. Reading makes nothing."""
        for path in (self.layers, self._records, self._scratch):
            path.mkdir(parents=True, exist_ok=True)

    def all(self) -> Iterator[Image]:
        for path in sorted(self._records.iterdir()) if self._records.is_dir() else ():
            with suppress(FileNotFoundError):  # removed meanwhile
                yield msgspec.json.decode(path.read_bytes(), type=Image)

    def find(self, name: str) -> Image | None:
        name = canonical(name)
        repository, _, digest = name.partition("@")
        if digest:
            named = (image for image in self.all() if _repository(image.name) == _repository(repository))
            return next((image for image in named if digest in (image.digest, image.id)), None)
        try:
            return msgspec.json.decode(self._record(name).read_bytes(), type=Image)
        except FileNotFoundError:
            return None

    def put(self, image: Image) -> Image:
        """Record an image whose layers are in place."""
        fd, temporary = tempfile.mkstemp(dir=self._scratch)
        with os.fdopen(fd, "wb") as file:
            file.write(msgspec.json.encode(image))
        os.replace(temporary, self._record(image.name))
        return image

    @contextmanager
    def scratch(self) -> Iterator[Path]:
        """A directory on the store's filesystem that is gone afterwards, unless it was renamed away."""
        path = Path(tempfile.mkdtemp(dir=self._scratch))
        try:
            yield path
        finally:
            shutil.rmtree(path, ignore_errors=True)

    def add_layer(self, tree: Path, name: str) -> str:
        """Move a finished tree into place. An existing layer of that name has the same content and stays."""
        try:
            os.rename(tree, self.layers / name)
        except OSError:
            if not (self.layers / name).is_dir():
                raise
        return name

    def derive(self, new: str, old: str, add: Sequence[tuple[Path, str]], env: Mapping[str, str]) -> Image:
        """An image like `old` with more files (source, absolute target) and other environment."""
        base = self._present(old)
        layers = base.layers
        if add:
            with self.scratch() as scratch:
                tree = scratch / "tree"
                tree.mkdir(0o755)
                for source, target in add:
                    _copy(source, tree, self.resolve(base, target))
                layers = (self.add_layer(tree, tree_digest(tree)), *layers)
        merged = dict(entry.partition("=")[::2] for entry in base.env) | dict(env)
        return self.put(
            msgspec.structs.replace(
                base,
                name=canonical(new),
                layers=layers,
                env=tuple(f"{k}={v}" for k, v in merged.items()),
                size=base.size + (_size(self.layers / layers[0]) if add else 0),
                digest="",
                origin="",
            )
        )

    def remove(self, name: str) -> None:
        """Forget an image, and the layers that no other image has."""
        image = self._present(name)
        with locked(self.directory / "lock"):
            kept = {layer for other in self.all() if other.name != image.name for layer in other.layers}
            orphans = [layer for layer in image.layers if layer not in kept]
            mounted = Path("/proc/self/mountinfo").read_text()
            if any(str(self.layers / layer) in mounted for layer in orphans):
                raise ImageError(f"{image.name} is in use by a container; delete the pods that run it first")
            self._record(image.name).unlink(missing_ok=True)
            for layer in orphans:
                shutil.rmtree(self.layers / layer, ignore_errors=True)

    def trees(self, image: Image) -> list[Path]:
        """The directories that make up the image's root, topmost first."""
        return [self.layers / layer for layer in image.layers]

    def underlays(self, image: Image) -> dict[str, list[str]]:
        """The directories of the machine that an image on `host` shows, by their place in the container.

        Each is a stack: above the machine's own are those of the image's layers that add files there.
        """
        trees = self.trees(image)
        return {
            target: [*(str(part) for tree in trees if any((part := tree / target[1:]).glob("*"))), source]
            for target, source in (self._underlays.items() if image.on_host else ())
        }

    def resolve(self, image: Image, path: str) -> str:
        """`path` with the image's own symbolic links in it followed, so that /lib/x lands in /usr/lib/x."""
        if not path.startswith("/"):
            raise ImageError(f"{path}: the target must be an absolute path inside the image")
        pending, done = [part for part in path.split("/") if part not in ("", ".")], ""
        for _ in range(1000):
            if not pending:
                return done or "/"
            part = pending.pop(0)
            if part == "..":
                done = done.rpartition("/")[0]
                continue
            link = next((t for tree in self.trees(image) if os.path.lexists(t := tree / f"{done}/{part}"[1:])), None)
            if link is not None and link.is_symlink() and pending:
                target = os.readlink(link)
                done = "" if target.startswith("/") else done
                pending = [p for p in target.split("/") if p not in ("", ".")] + pending
            else:
                done = f"{done}/{part}"
        raise ImageError(f"{path}: too many symbolic links in {image.name}")

    def _present(self, name: str) -> Image:
        image = self.find(name)
        if image is None:
            raise ImageError(f"there is no image {canonical(name)}; `virtfleet image ls` lists them")
        return image

    def _record(self, name: str) -> Path:
        return self._records / quote(name, safe="")


def tree_digest(tree: Path) -> str:
    """A name for a layer made here, from its files' paths, modes and contents."""
    digest = hashlib.sha256()
    for directory, names, files in os.walk(tree):
        names.sort()
        for name in sorted([*files, *(n for n in names if os.path.islink(os.path.join(directory, n)))]):
            path = Path(directory, name)
            digest.update(f"{path.relative_to(tree)}\0{path.lstat().st_mode:o}\0".encode())
            if path.is_symlink():
                digest.update(os.readlink(path).encode())
            elif path.is_file():
                with open(path, "rb") as file:
                    digest.update(hashlib.file_digest(file, "sha256").digest())
    return digest.hexdigest()[:16]


def _repository(name: str) -> str:
    head, slash, last = name.partition("@")[0].rpartition("/")
    return head + slash + last.partition(":")[0]


def _copy(source: Path, tree: Path, target: str) -> None:
    destination = tree / target[1:]
    destination.parent.mkdir(parents=True, exist_ok=True)
    if source.is_dir():
        shutil.copytree(source, destination, symlinks=True, dirs_exist_ok=True)
    elif source.is_file():
        shutil.copy2(source, destination)
    else:
        raise ImageError(f"{source}: no such file or directory to add to the image")


def _size(tree: Path) -> int:
    return sum(Path(d, f).lstat().st_size for d, _, files in os.walk(tree) for f in files)
