"""What a container mounts of its pod's volumes: subPath, read-only, propagation; and block devices."""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from pathlib import Path

from virtfleet.kube.confined import make_dirs_inside, opened
from virtfleet.kube.resource import Obj
from virtfleet.local.node import mounts
from virtfleet.local.node.bundle import Device, Mount
from virtfleet.local.node.environment import expand
from virtfleet.local.node.layout import Layout
from virtfleet.local.node.security import ConfigError

_PROPAGATION = {"None": "rprivate", "HostToContainer": "rslave", "Bidirectional": "rshared"}
_ALWAYS_READ_ONLY = {"configMap", "secret", "projected", "downwardAPI", "image"}


def volume_mounts(
    layout: Layout, pod: Obj, container: Obj, places: Mapping[str, Path], variables: Mapping[str, str]
) -> list[Mount]:
    """Sorted by depth, so that a mount inside another one's directory comes after it."""
    sources = {volume["name"]: volume for volume in pod["spec"].get("volumes") or ()}
    result = []
    for number, wanted in enumerate(container.get("volumeMounts") or ()):
        name = wanted["name"]
        if name not in places:
            raise ConfigError(f'volumeMounts[{number}]: the pod has no volume "{name}"')
        place = places[name]
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
    try:
        with opened(volume, path, os.O_PATH) as fd:
            is_directory = stat.S_ISDIR(os.fstat(fd).st_mode)
    except FileNotFoundError:
        make_dirs_inside(volume, path, stat.S_IMODE(os.stat(volume).st_mode))  # as a kubelet does
        is_directory = True
    pin: Path = layout.kubelet / "pods" / pod["metadata"]["uid"] / "volume-subpaths" / container["name"] / slot
    mounts.unmount_below(pin)
    pin.parent.mkdir(parents=True, exist_ok=True)
    if is_directory:
        pin.mkdir(exist_ok=True)
    else:
        pin.touch()
    with opened(volume, path, os.O_PATH) as fd:
        mounts.bind(Path(f"/proc/self/fd/{fd}"), pin)
    return pin


def block_devices(container: Obj, places: Mapping[str, Path]) -> list[Device]:
    return [
        device_node(str(places[wanted["name"]]), wanted["devicePath"])
        for wanted in container.get("volumeDevices") or ()
    ]


def device_node(path: str, target: str, access: str = "rwm") -> Device:
    """A device node of this machine as a container gets it at `target`."""
    try:
        info = os.stat(path)
    except OSError as error:
        raise ConfigError(f"device {path}: {error.strerror}") from None
    if not (stat.S_ISBLK(info.st_mode) or stat.S_ISCHR(info.st_mode)):
        raise ConfigError(f"{path} is not a device node")
    return Device.of(target, info, access)
