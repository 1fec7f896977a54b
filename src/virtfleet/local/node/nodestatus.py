"""The node as the API server knows it: its Node object, its status, and the Lease that says it is alive."""

from __future__ import annotations

import asyncio
import logging
import os
import platform
import shutil
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from ipaddress import IPv4Network
from pathlib import Path

import msgspec

import virtfleet
from virtfleet.api import conditions, names
from virtfleet.api.times import precise_now, timestamp
from virtfleet.kube.api import KubeApi, Patch
from virtfleet.kube.errors import ApiError, ignoring, is_already_exists, is_not_found
from virtfleet.kube.resource import LEASES, NODES, Obj
from virtfleet.local.node import podstatus
from virtfleet.local.node.network import node_address
from virtfleet.local.node.runtime import boot_id, memory
from virtfleet.local.nodesfile import AGENT, DESCRIBED, NodeSpec

LEASE_NAMESPACE = "kube-node-lease"
_LEASE_SECONDS, _RENEWAL, _REPORT, _RETRY = 40, 10.0, 60.0, 1.0
_PODS = 110
Offers = Mapping[str, tuple[int, int]]  # resource -> how many devices there are, and how many can be used
log = logging.getLogger(__name__)


def labels(spec: NodeSpec) -> dict[str, str]:
    known = {"hostname": spec.name, "os": "linux", "arch": _architecture()}
    described = {f"kubernetes.io/{key}": value for key, value in known.items()}
    # This runtime mounts images, and need not be tried.
    return {**described, names.IMAGE_VOLUMES: "true", **spec.labels}


def _architecture() -> str:
    return names.ARCHITECTURES.get(platform.machine(), platform.machine())


def capacity(data: Path, offers: Offers, *, healthy: bool) -> dict[str, str]:
    """What the machine has, and what plugins offer: all of it, or what of it can be used now."""
    pages = {}
    for path in sorted(Path("/sys/kernel/mm/hugepages").glob("hugepages-*kB")):
        size, count = int(path.name[len("hugepages-") : -len("kB")]), int((path / "nr_hugepages").read_text())
        name = f"{size >> 20}Gi" if size >= 1 << 20 else f"{size >> 10}Mi"
        pages[f"hugepages-{name}"] = f"{count * size >> 10}Mi" if count else "0"
    return {
        "cpu": str(os.cpu_count() or 1),
        "memory": f"{memory() // 1024}Ki",
        "pods": str(_PODS),
        "ephemeral-storage": f"{shutil.disk_usage(data).total // 1024}Ki",
        **pages,
        **{name: str(usable if healthy else total) for name, (total, usable) in sorted(offers.items())},
    }


def _conditions(old: Obj, now: float) -> list[Obj]:
    verdicts = {
        "MemoryPressure": ("False", "KubeletHasSufficientMemory", "kubelet has sufficient memory available"),
        "DiskPressure": ("False", "KubeletHasNoDiskPressure", "kubelet has no disk pressure"),
        "PIDPressure": ("False", "KubeletHasSufficientPID", "kubelet has sufficient PID available"),
        "Ready": ("True", "KubeletReady", "kubelet is posting ready status"),
    }
    listed = old.get("conditions") or []
    for kind, (value, reason, message) in verdicts.items():
        listed = conditions.put(listed, kind, value, now, reason=reason, message=message)
    return [{**c, "lastHeartbeatTime": timestamp(now)} for c in listed if c["type"] in verdicts]


def _read(path: str) -> str:
    with suppress(OSError):
        return Path(path).read_text().strip()
    return ""


class NodeObject:
    """Registers the node and keeps its status and Lease current."""

    def __init__(
        self, api: KubeApi, spec: NodeSpec, addresses: IPv4Network, data: Path, offers: Callable[[], Offers]
    ) -> None:
        self._api, self._spec, self._range, self._data, self._offers = api, spec, addresses, data, offers
        self.changed = asyncio.Event()  # what the node offers has changed, and is to be said now

    def allocatable(self) -> dict[str, str]:
        return capacity(self._data, self._offers(), healthy=True)

    async def register(self) -> None:
        """Make the node known, however long the API server is away."""
        await self._surely(self._register, "the node is not registered yet")

    async def _register(self) -> None:
        described = {DESCRIBED: msgspec.json.encode(self._spec).decode()}
        taints = msgspec.to_builtins(self._spec.taints)
        node: Obj = {
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {"name": self._spec.name, "labels": labels(self._spec), "annotations": described},
            "spec": {"podCIDR": str(self._range), "podCIDRs": [str(self._range)], "taints": taints},
        }
        with ignoring(is_already_exists):
            await self._api.create(NODES, node)
            return
        # It is there: labels and taints of the nodes file where that changed. What people did to the node stays.
        node = await self._api.get(NODES, self._spec.name)
        meta = node["metadata"]
        known = (meta.get("annotations") or {}).get(DESCRIBED)
        if known == described[DESCRIBED]:
            return
        before = msgspec.json.decode(known, type=NodeSpec) if known else NodeSpec(self._spec.name)
        were = msgspec.to_builtins(before.taints)
        others = [taint for taint in node["spec"].get("taints") or () if taint not in were]
        change = {
            "metadata": {
                "resourceVersion": meta["resourceVersion"],  # a list is replaced as a whole
                "annotations": described,
                "labels": dict.fromkeys(before.labels) | labels(self._spec),
            },
            "spec": {"taints": [*others, *taints]},
        }
        await self._api.patch(NODES, self._spec.name, change)

    async def announce(self) -> None:
        """What the API server has of this node and its pods was seen by this process, and by none before it."""
        note = {"metadata": {"annotations": {AGENT: str(os.getpid())}}}
        await self._surely(lambda: self._api.patch(NODES, self._spec.name, note), "the node's agent is not known yet")

    async def _surely(self, action: Callable[[], Awaitable[object]], trouble: str) -> None:
        while True:
            try:
                await action()
                return
            except ApiError as error:
                log.warning("%s: %s", trouble, error.message)
                await asyncio.sleep(_RETRY)

    async def report(self) -> None:
        """Write the status where it is not what it should be, or was not confirmed for a while."""
        self.changed.clear()
        node = await self._api.get(NODES, self._spec.name)
        old: Obj = node.get("status") or {}
        addresses = {"InternalIP": str(node_address(self._range)), "Hostname": self._spec.name}
        wanted: Obj = {
            "capacity": capacity(self._data, self._offers(), healthy=False),
            "allocatable": self.allocatable(),
            "conditions": _conditions(old, time.time()),
            "addresses": [{"type": kind, "address": text} for kind, text in addresses.items()],
            "nodeInfo": {
                "architecture": _architecture(),
                "bootID": boot_id(),
                "containerRuntimeVersion": f"virtfleet://{virtfleet.__version__}",
                "kernelVersion": platform.release(),
                "kubeProxyVersion": "",
                "kubeletVersion": f"v{virtfleet.__version__}-virtfleet",
                "machineID": _read("/etc/machine-id"),
                "operatingSystem": "linux",
                "osImage": platform.freedesktop_os_release()["PRETTY_NAME"],
                "systemUUID": _read("/sys/class/dmi/id/product_uuid"),
            },
        }
        gone = {name: None for name in (old.get("capacity") or {}) if name not in wanted["capacity"]}
        wanted["capacity"] |= gone
        wanted["allocatable"] |= gone
        if not podstatus.is_part_of(wanted, old):
            await self._api.patch(NODES, self._spec.name, {"status": wanted}, how=Patch.STRATEGIC, subresource="status")

    async def reporting(self) -> None:
        while True:
            try:
                await self.report()
                pause = _REPORT
            except ApiError as error:
                log.warning("the node's status is not written: %s", error.message)
                pause = _RETRY
                if is_not_found(error):  # somebody deleted the node under us
                    await self.register()
            with suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await self.changed.wait()

    async def renewing(self) -> None:
        while True:
            try:
                await self.renew()
            except ApiError as error:
                log.warning("the node's lease is not renewed: %s", error.message)
            await asyncio.sleep(_RENEWAL)

    async def renew(self) -> None:
        spec = {"holderIdentity": self._spec.name, "leaseDurationSeconds": _LEASE_SECONDS, "renewTime": precise_now()}
        with ignoring(is_not_found):
            await self._api.patch(LEASES, self._spec.name, {"spec": spec}, LEASE_NAMESPACE)
            return
        lease = {"metadata": {"name": self._spec.name, "namespace": LEASE_NAMESPACE}, "spec": spec}
        await self._api.create(LEASES, {"apiVersion": LEASES.api_version, "kind": LEASES.kind, **lease})
