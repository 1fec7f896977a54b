"""Makes one run of one container: brings together image, sandbox, volumes, environment and devices, and starts it."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from virtfleet.kube.api import KubeApi
from virtfleet.kube.confined import read_inside
from virtfleet.kube.resource import Obj
from virtfleet.local.node import bundle, environment, lifecycle, machine, resizing
from virtfleet.local.node.bundle import HostFacts, Mount, Parts
from virtfleet.local.node.containers import GRACE, Container
from virtfleet.local.node.devices import Devices
from virtfleet.local.node.environment import Facts
from virtfleet.local.node.images import Image, ImageStore
from virtfleet.local.node.layout import Layout
from virtfleet.local.node.pulling import Puller
from virtfleet.local.node.runtime import Runtime
from virtfleet.local.node.sandbox import Sandbox, Sandboxes
from virtfleet.local.node.secondary import SecondaryNetworks
from virtfleet.local.node.security import ConfigError, is_privileged, resolve_user, setting
from virtfleet.local.node.volumemounts import block_devices, device_node, volume_mounts
from virtfleet.local.node.volumes import Volumes

_MESSAGE_PATH = "/dev/termination-log"


@dataclass(frozen=True, slots=True)
class NodeParts:
    """All that the workers of a node's pods share."""

    layout: Layout
    api: KubeApi
    store: ImageStore
    puller: Puller
    runtime: Runtime
    sandboxes: Sandboxes
    networks: SecondaryNetworks
    volumes: Volumes
    devices: Devices
    addresses: tuple[str, ...]
    allocatable: Callable[[], Mapping[str, str]]
    pods: Callable[[], Sequence[Obj]]  # all pods of the node
    api_server: str  # as containers reach it: the cluster address of `kubernetes`
    turns: asyncio.Semaphore  # for making new pods

    def facts(self, sandbox: Sandbox | None) -> Facts:
        pod_ips = sandbox.addresses if sandbox and sandbox.addresses else list(self.addresses) if sandbox else []
        return Facts(pod_ips, self.addresses, self.allocatable())


@dataclass(frozen=True, slots=True)
class Ground:
    """What a pod's containers stand on."""

    sandbox: Sandbox
    places: Mapping[str, Path]


async def make(
    node: NodeParts, pod: Obj, container: Obj, image: Image, ground: Ground, run: Container, processes: str = ""
) -> None:
    """Create the container of `run`, up to the point before its program starts.

    `processes` names the namespace of another container's processes, for one that is to see them.
    """
    here = machine.inspect(with_devices=is_privileged(container))
    rootfs = node.runtime.prepare(run, node.store.trees(image))
    given, facts = _service_variables(node.api_server), node.facts(ground.sandbox)
    variables = await environment.declared(pod, container, node.api, facts, given)
    container = _expanded(container, variables)
    allotted = node.devices.of(pod["metadata"]["uid"], container["name"])
    asked = [
        *volume_mounts(node.layout, pod, container, ground.places, variables),
        *(Mount(str(node.layout.host_path(h)), c, r) for a in allotted for h, c, r in a.mounts),
    ]
    taken = {mount.destination for mount in asked}
    parts = Parts(
        image=image,
        user=resolve_user(pod, container, image.user, _account_file(rootfs, "passwd"), _account_file(rootfs, "group")),
        env=bundle.environment(image, variables, ground.sandbox.hostname, _merged(a.envs for a in allotted)),
        mounts=[
            *(mount for mount in node.sandboxes.files(ground.sandbox, pod) if mount.destination not in taken),
            _termination_file(node.layout, container, run),
            *asked,
        ],
        namespaces=_namespaces(pod, ground, here, processes),
        cgroup=run.cgroup,
        rootfs=str(rootfs),
        underlays=node.store.underlays(image),
        devices=[*block_devices(container, ground.places), *(device_node(*d) for a in allotted for d in a.devices)],
        seccomp=_local_profile(node.layout, pod, container),
        annotations={
            "io.kubernetes.pod.namespace": pod["metadata"]["namespace"],
            "io.kubernetes.pod.name": pod["metadata"]["name"],
            "io.kubernetes.container.name": container["name"],
            **_merged(a.annotations for a in allotted),
        },
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
        resources=resizing.amounts(container),
        backoff=lifecycle.next_backoff(before),
    )


def grace_of(pod: Obj) -> float:
    seconds = pod["spec"].get("terminationGracePeriodSeconds")
    return GRACE if seconds is None else float(seconds)


def _service_variables(api_server: str) -> dict[str, str]:
    return {
        "KUBERNETES_SERVICE_HOST": api_server,
        "KUBERNETES_SERVICE_PORT": "443",
        "KUBERNETES_SERVICE_PORT_HTTPS": "443",
        "KUBERNETES_PORT": f"tcp://{api_server}:443",
    }


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


def _merged(parts: Iterable[Mapping[str, str]]) -> dict[str, str]:
    return {key: value for part in parts for key, value in part.items()}


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
