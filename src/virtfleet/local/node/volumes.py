"""A pod's volumes on this machine: where each lies, and what a container mounts of it.

A volume is made once per pod, below the node's /var/lib/kubelet/pods/<uid>/volumes as kubelet has it, because other
programs look there. Making one again is harmless: an agent that was killed in between simply starts over.

Of a volume with files from API objects, those of one version lie in a hidden directory; `..data` points to it, and the
visible names point through `..data`. Moving that one link switches all files at once, as programs that watch such
volumes expect.
"""

from __future__ import annotations

import asyncio
import os
import stat
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from virtfleet.api import times
from virtfleet.api.quantity import Quantity
from virtfleet.kube import certificates
from virtfleet.kube.api import KubeApi
from virtfleet.kube.confined import make_dirs_inside, opened
from virtfleet.kube.errors import ApiError
from virtfleet.kube.resource import (
    CONFIG_MAPS,
    PERSISTENT_VOLUME_CLAIMS,
    PERSISTENT_VOLUMES,
    SECRETS,
    SERVICE_ACCOUNTS,
    Obj,
)
from virtfleet.local.node import loops, mounts
from virtfleet.local.node.bundle import Mount
from virtfleet.local.node.environment import Facts, expand, learned, object_of, values_of
from virtfleet.local.node.images import ImageStore
from virtfleet.local.node.layout import Layout
from virtfleet.local.node.registry import Puller
from virtfleet.local.node.security import ConfigError

_DEFAULT_MODE = 0o644
_TOKEN_LIFETIME = 3600
_TOKEN_RENEWAL = 0.8  # of its lifetime
_PROPAGATION = {"None": "rprivate", "HostToContainer": "rslave", "Bidirectional": "rshared"}
_ALWAYS_READ_ONLY = {"configMap", "secret", "projected", "downwardAPI", "image"}
_HOST_PATH_TESTS: dict[str, tuple[Callable[[int], bool], str]] = {
    "Directory": (stat.S_ISDIR, "a directory"),
    "File": (stat.S_ISREG, "a file"),
    "Socket": (stat.S_ISSOCK, "a socket file"),
    "CharDevice": (stat.S_ISCHR, "a character device"),
    "BlockDevice": (stat.S_ISBLK, "a block device"),
}


class File(NamedTuple):
    """One file of a volume."""

    content: bytes
    mode: int


Files = dict[str, File]  # by path in the volume


class VolumeError(Exception):
    """A volume cannot be had yet: FailedMount, tried again."""


class Volumes:
    """The volumes of a node's pods."""

    def __init__(self, layout: Layout, api: KubeApi, store: ImageStore, puller: Puller) -> None:
        self._layout, self._api, self._store, self._puller = layout, api, store, puller
        self._tokens: dict[tuple[str, str, str], tuple[str, float]] = {}  # (pod, volume, path) -> token, when to renew

    async def make(self, pod: Obj, facts: Facts, wake: Callable[[], None]) -> dict[str, Path]:
        """Where each volume of the pod lies, made or brought up to date. `wake` is called when an image has come.

        Raises VolumeError, and ImageUnavailable where a volume waits for its image.
        """
        places: dict[str, Path] = {}
        for volume in pod["spec"].get("volumes") or ():
            try:
                places[volume["name"]] = await self._make_one(pod, volume, facts, wake)
            except (OSError, ApiError, ConfigError) as error:
                raise VolumeError(f'MountVolume.SetUp failed for volume "{volume["name"]}" : {error}') from error
        return places

    async def refresh(self, pod: Obj, facts: Facts) -> None:
        """Bring the files that come from API objects up to date."""
        for volume in pod["spec"].get("volumes") or ():
            if volume.keys() & _PROJECTING.keys():
                await self._make_one(pod, volume, facts, lambda: None)

    def over_limit(self, pod: Obj) -> str:
        """The first emptyDir on disk that holds more than its sizeLimit allows, as Kubernetes words it; "" for none."""
        for volume in pod["spec"].get("volumes") or ():
            empty = volume.get("emptyDir") or {}
            if empty.get("sizeLimit") and not empty.get("medium"):
                path = self._place(pod, "empty-dir", volume["name"])
                if _used(path) > Quantity.parse(empty["sizeLimit"]).value():
                    return f'Usage of EmptyDir volume "{volume["name"]}" exceeds the limit "{empty["sizeLimit"]}". '
        return ""

    async def remove(self, uid: str) -> None:
        await asyncio.to_thread(loops.release, self._layout, uid)
        mounts.remove_tree(self._layout.kubelet / "pods" / uid)
        self._tokens = {key: value for key, value in self._tokens.items() if key[0] != uid}

    async def _make_one(self, pod: Obj, volume: Obj, facts: Facts, wake: Callable[[], None]) -> Path:
        name, kind = volume["name"], next(key for key in volume if key != "name")
        source = volume[kind] or {}
        match kind:
            case "hostPath":
                return _host_path(self._layout.host_path(source["path"]), source.get("type") or "")
            case "persistentVolumeClaim":
                return await self._claim(pod, name, source["claimName"])
            case "emptyDir":
                return self._empty_dir(pod, name, source)
            case "image":
                return self._image(pod, name, source, wake)
        if kind not in _PROJECTING:
            raise ConfigError(f"this node has no volumes of type {kind}")
        place = self._place(pod, _PROJECTING[kind], name)
        if kind in ("secret", "projected"):  # never on disk
            _ensure_tmpfs(place, "mode=755")
        place.mkdir(parents=True, exist_ok=True)
        mode = source["defaultMode"] if source.get("defaultMode") is not None else _DEFAULT_MODE
        write(place, await self._files(pod, name, kind, source, mode, facts), _fs_group(pod))
        return place

    async def _files(self, pod: Obj, volume: str, kind: str, source: Obj, mode: int, facts: Facts) -> Files:
        """What one source puts into a volume."""
        match kind:
            case "configMap" | "secret":
                resource, name = _OBJECTS[kind], source.get("secretName") or source["name"]
                holder = await object_of(self._api, pod, resource, name, source)
                return keyed(holder, source, mode)
            case "downwardAPI":
                return {
                    item["path"]: File(learned(pod, item, "", facts).encode(), mode_of(item, mode))
                    for item in source.get("items") or ()
                }
            case "serviceAccountToken":
                return {source["path"]: File((await self._token(pod, volume, source)).encode(), mode)}
            case "projected":
                files: Files = {}
                for projection in source.get("sources") or ():
                    for part, inner in projection.items():
                        files |= await self._files(pod, volume, part, inner, mode, facts)
                return files
        raise ConfigError(f"projected volumes have no source {kind} on this node")

    async def _token(self, pod: Obj, volume: str, source: Obj) -> str:
        meta = pod["metadata"]
        key = (meta["uid"], volume, source["path"])
        token, renew = self._tokens.get(key, ("", 0.0))
        if time.time() < renew:
            return token
        lifetime = source.get("expirationSeconds") or _TOKEN_LIFETIME
        spec: dict[str, Any] = {
            "expirationSeconds": lifetime,
            "boundObjectRef": {"apiVersion": "v1", "kind": "Pod", "name": meta["name"], "uid": meta["uid"]},
        }
        if source.get("audience"):
            spec["audiences"] = [source["audience"]]
        answer = await self._api.create(
            SERVICE_ACCOUNTS,
            {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec},
            meta["namespace"],
            name=pod["spec"].get("serviceAccountName") or "default",
            subresource="token",
        )
        token, now = str(answer["status"]["token"]), time.time()
        expires = times.seconds(answer["status"]["expirationTimestamp"])
        self._tokens[key] = token, now + _TOKEN_RENEWAL * (expires - now)
        return token

    def _empty_dir(self, pod: Obj, name: str, source: Obj) -> Path:
        place = self._place(pod, "empty-dir", name)
        medium, limit = source.get("medium") or "", source.get("sizeLimit")
        if medium == "Memory":
            size = f",size={Quantity.parse(limit).value()}" if limit else ""
            _ensure_tmpfs(place, f"mode=1777{size}")
        elif medium.startswith("HugePages"):
            pages = medium.partition("-")[2].removesuffix("i")
            if _prepare(place):
                mounts.mount("hugetlbfs", place, "hugetlbfs", data=f"pagesize={pages}" if pages else "")
        else:
            place.mkdir(parents=True, exist_ok=True)
        group = _fs_group(pod)
        place.chmod(0o2777 if group is not None else 0o777)
        if group is not None:
            os.chown(place, -1, group)
        return place

    def _image(self, pod: Obj, name: str, source: Obj, wake: Callable[[], None]) -> Path:
        place = self._place(pod, "image", name)
        if _prepare(place):
            image = self._puller.obtain(source["reference"], source.get("pullPolicy") or "", wake)
            mounts.overlay(self._store.trees(image), place)
        return place

    async def _claim(self, pod: Obj, name: str, claim_name: str) -> Path:
        """The directory of a claim's volume, or the device of one in block mode."""
        claim = await self._api.get(PERSISTENT_VOLUME_CLAIMS, claim_name, pod["metadata"]["namespace"])
        if not claim["spec"].get("volumeName") or (claim.get("status") or {}).get("phase") != "Bound":
            raise ConfigError(f'PersistentVolumeClaim "{claim_name}" is not bound')
        volume = await self._api.get(PERSISTENT_VOLUMES, claim["spec"]["volumeName"])
        spec = volume["spec"]
        source = spec.get("hostPath") or spec.get("local")
        if not source:
            raise ConfigError(f'PersistentVolume "{volume["metadata"]["name"]}" is neither hostPath nor local')
        path = _host_path(self._layout.host_path(source["path"]), source.get("type") or "")
        if (spec.get("volumeMode") or "Filesystem") != "Block":
            _own(path, _fs_group(pod))
            return path
        if stat.S_ISBLK(os.stat(path).st_mode):
            return path
        return await asyncio.to_thread(loops.attach, self._layout, pod["metadata"]["uid"], name, path)

    def _place(self, pod: Obj, plugin: str, name: str) -> Path:
        volumes = Path(self._layout.kubelet, "pods", pod["metadata"]["uid"], "volumes")
        return volumes / f"kubernetes.io~{plugin}" / name


_OBJECTS = {"configMap": CONFIG_MAPS, "secret": SECRETS}
_PROJECTING = {"configMap": "configmap", "secret": "secret", "projected": "projected", "downwardAPI": "downward-api"}


def _host_path(path: Path, kind: str) -> Path:
    if kind in ("", "DirectoryOrCreate") and not path.exists():
        path.mkdir(parents=True, mode=0o755)
    if kind == "FileOrCreate" and not path.exists():
        path.touch(0o644)
    if not path.exists():
        raise ConfigError(f"hostPath type check failed: {path} does not exist")
    test, wanted = _HOST_PATH_TESTS.get(kind.removesuffix("OrCreate"), (bool, "anything"))
    if not test(path.stat().st_mode):
        raise ConfigError(f"hostPath type check failed: {path} is not {wanted}")
    return path


def _prepare(place: Path) -> bool:
    """The directory for a mount; False when the mount is there already."""
    place.mkdir(parents=True, exist_ok=True)
    return not os.path.ismount(place)


def _ensure_tmpfs(place: Path, options: str) -> None:
    if _prepare(place):
        mounts.mount("tmpfs", place, "tmpfs", mounts.NOSUID | mounts.NODEV, options)


def _used(directory: Path) -> int:
    """Bytes that a tree takes on the disk. No link is followed, whatever the pod does there meanwhile."""
    blocks = 0
    with suppress(FileNotFoundError):
        for _, _, files, at in os.fwalk(directory):
            for file in files:
                with suppress(FileNotFoundError):
                    blocks += os.stat(file, dir_fd=at, follow_symlinks=False).st_blocks
    return blocks * 512


def _fs_group(pod: Obj) -> int | None:
    group = (pod["spec"].get("securityContext") or {}).get("fsGroup")
    return None if group is None else int(group)


def _own(path: Path, group: int | None) -> None:
    """Hand a volume's root to the pod's group, once; what is below it takes the group over from now on."""
    if group is None or not path.is_dir() or path.stat().st_gid == group:
        return
    os.chown(path, -1, group)
    path.chmod(path.stat().st_mode | 0o2070)


def keyed(obj: Obj, source: Obj, default_mode: int) -> Files:
    """The files of a configMap or secret source: all keys, or the items it names."""
    values = values_of(obj)
    items = source.get("items")
    if not items:
        return {key: File(value, default_mode) for key, value in values.items()}
    files: Files = {}
    for item in items:
        if item["key"] in values:
            files[item["path"]] = File(values[item["key"]], mode_of(item, default_mode))
        elif not source.get("optional"):
            raise ConfigError(f"references non-existent config key: {item['key']}")
    return files


def mode_of(item: Obj, default: int) -> int:
    return int(item["mode"]) if item.get("mode") is not None else default


def write(directory: Path, files: Mapping[str, File], group: int | None = None) -> None:
    """Make `directory` hold exactly `files`."""
    if _holds(directory / "..data", files):
        return
    version = Path(tempfile.mkdtemp(prefix="..", dir=directory))
    version.chmod(0o755)
    for name, file in files.items():
        path = version / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(file.content)
        path.chmod(file.mode | (0o040 if group is not None else 0))
        if group is not None:
            os.chown(path, -1, group)
    wanted = {name.partition("/")[0] for name in files}
    certificates.show(directory, version, wanted)
    for entry in list(directory.iterdir()):
        if not entry.name.startswith("..") and entry.name not in wanted:
            entry.unlink()


def _holds(version: Path, files: Mapping[str, File]) -> bool:
    if not version.is_dir():
        return False
    there = {str(path.relative_to(version)) for path in version.rglob("*") if path.is_file()}
    return there == set(files) and all((version / name).read_bytes() == file.content for name, file in files.items())


def volume_mounts(
    layout: Layout, pod: Obj, container: Obj, places: Mapping[str, Path], variables: Mapping[str, str]
) -> list[Mount]:
    """Sorted by depth, so that a mount inside another one's directory comes after it."""
    sources = {volume["name"]: volume for volume in pod["spec"].get("volumes") or ()}
    result = []
    for number, wanted in enumerate(container.get("volumeMounts") or ()):
        name, place = wanted["name"], places[wanted["name"]]
        sub_path = expand(wanted["subPathExpr"], variables) if "subPathExpr" in wanted else wanted.get("subPath")
        if sub_path:
            place = _sub_path(layout, pod, container, place, sub_path, f"{name}/{number}")
        result.append(
            Mount(
                str(place),
                os.path.normpath(wanted["mountPath"]),
                readonly=bool(wanted.get("readOnly")) or bool(_ALWAYS_READ_ONLY & sources[name].keys()),
                propagation=_PROPAGATION[wanted.get("mountPropagation") or "None"],
            )
        )
    return sorted(result, key=lambda mount: mount.destination.count("/"))


def _sub_path(layout: Layout, pod: Obj, container: Obj, volume: Path, path: str, slot: str) -> Path:
    """A part of a volume, pinned by a mount of its own: a container that swaps in a link afterwards gains nothing."""
    if path.startswith("/") or ".." in path.split("/"):
        raise ConfigError(f"subPath {path!r} must be relative and stay inside the volume")
    pin: Path = layout.kubelet / "pods" / pod["metadata"]["uid"] / "volume-subpaths" / container["name"] / slot
    mounts.unmount_below(pin)
    pin.parent.mkdir(parents=True, exist_ok=True)
    make_dirs_inside(volume, path, stat.S_IMODE(os.stat(volume).st_mode))  # as a kubelet does; what is there stays
    with opened(volume, path, os.O_PATH) as fd:
        if stat.S_ISDIR(os.fstat(fd).st_mode):
            pin.mkdir(exist_ok=True)
        else:
            pin.touch()
        mounts.bind(Path(f"/proc/self/fd/{fd}"), pin)
    return pin
