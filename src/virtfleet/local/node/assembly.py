"""Makes one run of one container: brings together image, sandbox, volumes, environment and devices, and starts it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import platform
import secrets
import stat
from collections.abc import Mapping
from ipaddress import IPv4Network
from itertools import starmap
from pathlib import Path
from typing import Any, NamedTuple

import orjson

from virtfleet.kube.api import KubeApi
from virtfleet.kube.cache import Cache
from virtfleet.kube.confined import read_inside
from virtfleet.kube.events import Recorder
from virtfleet.kube.resource import PODS, Obj
from virtfleet.local.node import bundle, environment, hostimage, lifecycle
from virtfleet.local.node.bundle import Device, HostFacts, Mount, Parts
from virtfleet.local.node.cgroups import ROOT
from virtfleet.local.node.containers import GRACE, Container
from virtfleet.local.node.devices import Devices
from virtfleet.local.node.environment import Facts
from virtfleet.local.node.images import Image
from virtfleet.local.node.layout import Layout
from virtfleet.local.node.network import ClusterNetwork, node_address
from virtfleet.local.node.nodestatus import NodeObject
from virtfleet.local.node.registry import Puller
from virtfleet.local.node.runtime import Ended, Runtime, memory
from virtfleet.local.node.sandbox import Sandbox, Sandboxes
from virtfleet.local.node.secondary import SecondaryNetworks
from virtfleet.local.node.security import ConfigError, bounding_set, is_privileged, resolve_user, setting
from virtfleet.local.node.volumes import Volumes, volume_mounts
from virtfleet.local.nodesfile import NodeSpec

# Of /dev, not devices but mounts and links, which every container has of its own.
_NOT_NODES = {"/dev/pts", "/dev/shm", "/dev/mqueue", "/dev/console", "/dev/fd"}
_MESSAGE_PATH = "/dev/termination-log"


class NodeParts:
    """All that the workers of a node's pods share. `ended` is called with containers, as by the runtime."""

    def __init__(
        self, layout: Layout, api: KubeApi, net: ClusterNetwork, addresses: IPv4Network, spec: NodeSpec, ended: Ended
    ) -> None:
        self.layout, self.api = layout, api
        self.pods: Cache[Obj] = Cache(api, PODS, fields=f"spec.nodeName={spec.name}", decode=orjson.loads)
        self.recorder = Recorder(api, "kubelet", spec.name)
        self.store = hostimage.open_store(layout.images)
        self.puller = Puller(self.store)
        self.runtime = Runtime(layout, ended)
        self.sandboxes = Sandboxes(layout, net, addresses)
        self.networks = SecondaryNetworks(layout, net, api)
        self.volumes = Volumes(layout, api, self.store, self.puller)
        self.devices = Devices(layout.kubelet / "device-plugins", lambda: self.object.changed.set())
        self.object = NodeObject(api, spec, addresses, layout.data, self.devices.offers)
        self.addresses = (str(node_address(addresses)),)
        self.api_server = {  # variables by which containers find it
            "KUBERNETES_SERVICE_HOST": str(net.services[1]),
            "KUBERNETES_SERVICE_PORT": "443",
            "KUBERNETES_SERVICE_PORT_HTTPS": "443",
            "KUBERNETES_PORT": f"tcp://{net.services[1]}:443",
        }
        # Making pods is bound by the processors: of many at once, a few at a time, so that the first soon run.
        self.turns = asyncio.Semaphore(2 * (os.cpu_count() or 1))

    def facts(self, sandbox: Sandbox) -> Facts:
        return Facts(sandbox.addresses or self.addresses, self.addresses, self.object.allocatable())


class Ground(NamedTuple):
    """What a pod's containers stand on."""

    sandbox: Sandbox
    places: Mapping[str, Path]


async def make(
    node: NodeParts, pod: Obj, container: Obj, image: Image, ground: Ground, run: Container, processes: str = ""
) -> None:
    """Create the container of `run`, up to the point before its program starts.

    `processes` names the namespace of another container's processes, for one that is to see them.
    """
    here = _machine(with_devices=is_privileged(container))
    rootfs = node.runtime.prepare(run, node.store.trees(image))
    variables = await environment.declared(pod, container, node.api, node.facts(ground.sandbox), node.api_server)
    container = _expanded(container, variables)
    allotted = node.devices.of(pod["metadata"]["uid"], container["name"])
    asked = [
        *volume_mounts(node.layout, pod, container, ground.places, variables),
        *(Mount(str(node.layout.host_path(h)), c, r) for a in allotted for h, c, r in a.mounts),
    ]
    taken = {mount.destination for mount in asked}
    blocks = [(str(ground.places[v["name"]]), v["devicePath"]) for v in container.get("volumeDevices") or ()]
    of_plugins = {name: value for a in allotted for name, value in a.envs.items()}
    parts = Parts(
        image=image,
        user=resolve_user(pod, container, image.user, _account_file(rootfs, "passwd"), _account_file(rootfs, "group")),
        env=bundle.environment(image, variables, ground.sandbox.hostname, of_plugins),
        mounts=[
            *(mount for mount in node.sandboxes.files(ground.sandbox, pod) if mount.destination not in taken),
            _termination_file(node.layout, container, run),
            *asked,
        ],
        namespaces=_namespaces(pod, ground, here, processes),
        cgroup=run.cgroup,
        rootfs=str(rootfs),
        underlays=node.store.underlays(image),
        devices=list(starmap(_device_node, [*blocks, *(d for a in allotted for d in a.devices)])),
        seccomp=_local_profile(node.layout, pod, container),
    )
    await node.runtime.create(run, bundle.config(pod, container, parts, here), _inlet(container))


def _inlet(container: Obj) -> list[str]:
    """An input for those who attach to the container; it ends with the first of them only where that is asked for."""
    if not container.get("stdin"):
        return []
    return ["--stdin", *([] if container.get("stdinOnce") else ["--leave-stdin-open"])]


def _expanded(container: Obj, variables: Mapping[str, str]) -> Obj:
    """The container with $(NAME) in its command line replaced."""
    lines = {key: container[key] for key in ("command", "args") if container.get(key) is not None}
    return {**container, **{key: [environment.expand(w, variables) for w in words] for key, words in lines.items()}}


def new_run(layout: Layout, pod: Obj, container: Obj, image: Image, before: Container | None) -> Container:
    meta, attempt = pod["metadata"], before.attempt + 1 if before else 0
    identity = secrets.token_hex(16)
    return Container(
        id=identity,
        pod=meta["uid"],
        name=container["name"],
        attempt=attempt,
        version=container["image"],
        image=image.name,
        image_id=image.id,
        log=str(layout.pod_logs(pod) / container["name"] / f"{attempt}.log"),
        stop_signal=image.stop_signal,
        grace=grace_of(pod),
        cgroup=f"{layout.cgroup}/{meta['uid']}/{identity}",
        resources=lifecycle.amounts(container),
        backoff=lifecycle.next_backoff(before),
    )


def grace_of(pod: Obj) -> float:
    seconds = pod["spec"].get("terminationGracePeriodSeconds")
    return GRACE if seconds is None else float(seconds)


def _namespaces(pod: Obj, ground: Ground, here: HostFacts, processes: str) -> dict[str, str]:
    namespaces = dict(ground.sandbox.namespaces)
    if not pod["spec"].get("hostPID"):
        namespaces["pid"] = processes
    if here.unified:
        namespaces["cgroup"] = ""
    return namespaces


def _account_file(rootfs: Path, name: str) -> str:
    with contextlib.suppress(OSError):
        return read_inside(rootfs, f"/etc/{name}").decode(errors="replace")
    return ""


def _local_profile(layout: Layout, pod: Obj, container: Obj) -> dict[str, Any] | None:
    """A seccomp profile that somebody put on the node, as KubeVirt's handler does."""
    wanted = setting(pod, container, "seccompProfile") or {}
    if wanted.get("type") != "Localhost":
        return None
    path = layout.kubelet / "seccomp" / wanted["localhostProfile"]
    try:
        profile: dict[str, Any] = orjson.loads(path.read_bytes())
    except (OSError, orjson.JSONDecodeError) as error:
        raise ConfigError(f"cannot load seccomp profile {wanted['localhostProfile']!r}: {error}") from None
    return profile


def _termination_file(layout: Layout, container: Obj, run: Container) -> Mount:
    path = termination_path(layout, run)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()
    path.chmod(0o666)
    return Mount(str(path), container.get("terminationMessagePath") or _MESSAGE_PATH)


def termination_path(layout: Layout, run: Container) -> Path:
    return layout.kubelet / "pods" / run.pod / "containers" / run.name / run.id[:12]


def _machine(*, with_devices: bool) -> HostFacts:
    """Only privileged containers get all devices, and there are many to look at."""
    capabilities = bounding_set(Path("/proc/self/status").read_text())
    own_score = int(Path("/proc/self/oom_score_adj").read_text())
    return HostFacts(
        architecture=platform.machine(),
        capabilities=capabilities,
        memory=memory(),
        oom_score=-1000 if "CAP_SYS_RESOURCE" in capabilities else own_score,
        devices=_devices() if with_devices else (),
        unified=(ROOT / "cgroup.controllers").exists(),
    )


def _device_node(path: str, target: str, access: str = "rwm") -> Device:
    """A device node of this machine as a container gets it at `target`."""
    try:
        info = os.stat(path)
    except OSError as error:
        raise ConfigError(f"device {path}: {error.strerror}") from None
    if not (stat.S_ISBLK(info.st_mode) or stat.S_ISCHR(info.st_mode)):
        raise ConfigError(f"{path} is not a device node")
    kind, major, minor = "b" if stat.S_ISBLK(info.st_mode) else "c", os.major(info.st_rdev), os.minor(info.st_rdev)
    return Device(target, kind, major, minor, stat.S_IMODE(info.st_mode), info.st_uid, info.st_gid, access)


def _devices() -> list[Device]:
    devices = []
    for directory, names, files in os.walk("/dev"):
        names[:] = [name for name in names if os.path.join(directory, name) not in _NOT_NODES]
        for path in sorted({os.path.join(directory, name) for name in files} - _NOT_NODES):
            if not os.path.islink(path):
                with contextlib.suppress(ConfigError):  # a socket, say
                    devices.append(_device_node(path, path))
    return devices
