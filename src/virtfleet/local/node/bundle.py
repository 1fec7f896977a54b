"""The OCI runtime's config.json for one container of a Pod. A pure function of what it is given.

Everything that must be looked up (users of the image, environment values, where volumes lie on this machine, what
device plugins allotted) is looked up by the caller and comes in as data.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import starmap
from typing import Any

import msgspec

from virtfleet.kube import seccomp
from virtfleet.kube.resource import Obj
from virtfleet.local.node import cgroups
from virtfleet.local.node.images import Image
from virtfleet.local.node.security import ConfigError, User, capabilities, is_privileged, masks, setting

_CONFINED = "nosuid,noexec,nodev"
_SYSTEM = {  # place -> file system, options
    "/proc": ("proc", _CONFINED),
    "/dev": ("tmpfs", "nosuid,strictatime,mode=755,size=65536k"),
    "/dev/pts": ("devpts", "nosuid,noexec,newinstance,ptmxmode=0666,mode=0620,gid=5"),
    "/dev/mqueue": ("mqueue", _CONFINED),
    "/sys": ("sysfs", _CONFINED),
    "/sys/fs/cgroup": ("cgroup", _CONFINED),
}
_DEFAULT_PATH = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


@dataclass(frozen=True, slots=True)
class Mount:
    """A volume, or a file of the sandbox, as the container sees it."""

    source: str
    destination: str
    readonly: bool = False
    propagation: str = "rprivate"


class Device(msgspec.Struct, frozen=True):
    """A device node as the runtime is told of it, and what its container may do with it."""

    path: str  # where the container gets it
    type: str  # c or b
    major: int
    minor: int
    mode: int = msgspec.field(name="fileMode", default=0o666)
    uid: int = 0
    gid: int = 0
    access: str = "rwm"


@dataclass(frozen=True, slots=True)
class HostFacts:
    """What of this machine decides a container's configuration."""

    architecture: str  # as uname says
    capabilities: Sequence[str]  # those that can be handed out
    memory: int
    oom_score: int  # the lowest that can be set; a process without CAP_SYS_RESOURCE can only raise it
    devices: Sequence[Device]  # every device node, for privileged containers
    unified: bool  # cgroup v2


@dataclass(frozen=True, slots=True)
class Parts:
    """What was looked up for one container."""

    image: Image
    user: User
    env: Sequence[str]
    mounts: Sequence[Mount]
    namespaces: Mapping[str, str]  # type -> path; an empty path asks for a new one; the machine's are left out
    cgroup: str
    rootfs: str
    underlays: Mapping[str, Sequence[str]] = field(default_factory=dict)
    devices: Sequence[Device] = ()
    seccomp: dict[str, Any] | None = None  # a Localhost profile


def config(pod: Obj, container: Obj, parts: Parts, host: HostFacts) -> dict[str, Any]:
    privileged = is_privileged(container)
    granted = capabilities(container, host.capabilities)
    # Each place once: what was given to the container lies over what the machine has there.
    devices = {device.path: device for device in (*(host.devices if privileged else ()), *parts.devices)}.values()
    joined = [{"type": kind, **({"path": path} if path else {})} for kind, path in parts.namespaces.items()]
    linux: dict[str, Any] = {
        "namespaces": [{"type": "mount"}, *joined],
        "cgroupsPath": parts.cgroup,
        "resources": {**cgroups.resources(container), "devices": _device_rules(privileged, devices)},
        "devices": [msgspec.to_builtins(device) for device in devices],
        **masks(container),
    }
    if sysctls := (pod["spec"].get("securityContext") or {}).get("sysctls"):
        linux["sysctl"] = {s["name"]: s["value"] for s in sysctls}
    if profile := _seccomp(pod, container, parts, granted, host):
        linux["seccomp"] = profile
    # The root must pass on at least what its most open volume does.
    wanted = {mount.propagation for mount in parts.mounts}
    if propagation := next((kind for kind in ("rshared", "rslave") if kind in wanted), ""):
        linux["rootfsPropagation"] = propagation
    return {
        "ociVersion": "1.0.2",
        "root": {
            "path": parts.rootfs,
            "readonly": bool((container.get("securityContext") or {}).get("readOnlyRootFilesystem")),
        },
        "process": _process(pod, container, parts, granted, host),
        "mounts": [*_system(privileged), *starmap(_underlay, parts.underlays.items()), *map(_bind, parts.mounts)],
        "linux": linux,
    }


def _process(pod: Obj, container: Obj, parts: Parts, granted: Sequence[str], host: HostFacts) -> dict[str, Any]:
    # A container's command replaces the image's entrypoint and, with it, the image's arguments.
    entrypoint, arguments = container.get("command"), container.get("args")
    if arguments is None:
        arguments = [] if entrypoint else parts.image.command
    args = [*(entrypoint or parts.image.entrypoint), *arguments]
    if not args:
        raise ConfigError(f"no command specified: neither container {container['name']} nor its image has one")
    escalation = (container.get("securityContext") or {}).get("allowPrivilegeEscalation")
    tty = bool(container.get("tty"))
    return {
        "terminal": tty,
        "user": {"uid": parts.user.uid, "gid": parts.user.gid, "additionalGids": list(parts.user.groups)},
        "args": args,
        "env": [*parts.env, *(["TERM=xterm"] if tty else [])],
        "cwd": container.get("workingDir") or parts.image.workdir,
        "capabilities": {kind: list(granted) for kind in ("bounding", "effective", "permitted")},
        "noNewPrivileges": escalation is False,
        "oomScoreAdj": max(cgroups.oom_score(pod, container, host.memory), host.oom_score),
    }


def environment(image: Image, declared: Mapping[str, str], hostname: str, more: Mapping[str, str]) -> list[str]:
    """The image's variables, those that device plugins add, and the container's, in that order of precedence."""
    merged = dict(entry.partition("=")[::2] for entry in (_DEFAULT_PATH, f"HOSTNAME={hostname}", *image.env))
    return [f"{name}={value}" for name, value in {**merged, **more, **declared}.items()]


def _seccomp(pod: Obj, container: Obj, parts: Parts, granted: Sequence[str], host: HostFacts) -> dict[str, Any] | None:
    wanted = (setting(pod, container, "seccompProfile") or {}).get("type")
    if is_privileged(container) or wanted not in ("RuntimeDefault", "Localhost"):
        return None
    return seccomp.profile(granted, host.architecture) if wanted == "RuntimeDefault" else parts.seccomp


def _system(privileged: bool) -> Iterator[dict[str, Any]]:
    access = ["rw" if privileged else "ro"]
    for place, (kind, options) in _SYSTEM.items():
        yield _mount(place, kind, kind, options.split(",") + (access if place.startswith("/sys") else []))


def _underlay(target: str, sources: Sequence[str]) -> dict[str, Any]:
    if len(sources) == 1:
        return _bind(Mount(sources[0], target, readonly=True))
    return _mount(target, "overlay", "overlay", ["ro", "lowerdir=" + ":".join(sources)])


def _bind(mount: Mount) -> dict[str, Any]:
    options = ["rbind", "ro" if mount.readonly else "rw", mount.propagation]
    return _mount(mount.destination, "bind", mount.source, options)


def _mount(destination: str, kind: str, source: str, options: list[str]) -> dict[str, Any]:
    return {"destination": destination, "type": kind, "source": source, "options": options}


def _device_rules(privileged: bool, devices: Iterable[Device]) -> list[dict[str, Any]]:
    """Nothing but what is named; the runtime itself adds null, zero, full, random, urandom, tty and the terminals."""
    if privileged:
        return [{"allow": True, "access": "rwm"}]
    given = ({"type": d.type, "major": d.major, "minor": d.minor, "access": d.access} for d in devices)
    return [{"allow": False, "access": "rwm"}, *({"allow": True, **rule} for rule in given)]
