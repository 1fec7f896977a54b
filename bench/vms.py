"""What VMs cost on a cluster: the time until they run and until their guests are up, calls, memory, CPU, handovers.

Everything is real: the operator installs, guests boot, and are emulated where KVM does not work. Figures of processes
are asked of the components and read inside the Pods, so they come about in the same way in any cluster. The references
are KubeVirt's on a machine of the same kind, with a guest of the same size.
"""

from __future__ import annotations

import asyncio
import re
import statistics
import sys
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from bench import handovers
from bench.node import cluster, install
from bench.observer import Observed, has_condition, observing, percentile
from bench.report import Figure
from virtfleet.api import names
from virtfleet.cli import installing
from virtfleet.cli.output import Progress
from virtfleet.cli.vm.access import command_output
from virtfleet.installation import Installation
from virtfleet.kube import config
from virtfleet.kube.client import Client
from virtfleet.kube.component import PORT
from virtfleet.kube.resource import KUBEVIRTS, NODES, PODS, VMIS, Obj

TITLE = "VMs on a cluster, beside KubeVirt's figures"

ONE_BY_ONE, TOGETHER, MOST = 5, 10, 20
REST = 60.0
DEADLINE = 600.0
OFFERED_WITHIN = 15.0  # seconds in which a node tells that it has KVM
KVM = names.DEVICE_PREFIX + "kvm"
NAMESPACE, INSTALLED = "default", "kubevirt"
GUEST = "virtfleet/guest:demo"
# What KubeVirt's take, each.
_RSS = {"virt-api": 178, "virt-controller": 75, "virt-handler": 77, "virt-operator": 230}
_METRICS = (
    "import ssl, urllib.request as r; "
    f"print(r.urlopen('https://127.0.0.1:{PORT}/metrics', context=ssl._create_unverified_context()).read().decode())"
)
# Every process of a container: its name, and what it takes.
_MEMORY = "for p in /proc/[0-9]*; do echo $(cat $p/comm) $(grep -e ^Rss: -e ^Pss: $p/smaps_rollup); done 2>/dev/null"
_OUR_OWN = ("sh", "cat", "grep", "busybox")  # what looks at them
_PROCESS = re.compile(r"^(?P<name>\S.*?) Rss: +(?P<rss>\d+) kB Pss: +(?P<pss>\d+) kB", re.MULTILINE)
Calls = Counter[tuple[str, str]]  # by verb and resource


def vmi(name: str, guest: str, **spec: str) -> Obj:
    """The VMI of examples/vmi.yaml, and what else its spec has."""
    devices = {
        "disks": [{"name": "root", "disk": {"bus": "virtio"}}],
        "interfaces": [{"name": "default", "masquerade": {}}],
    }
    image = {"image": guest, "imagePullPolicy": "IfNotPresent"}
    return {
        "apiVersion": VMIS.api_version,
        "kind": VMIS.kind,
        "metadata": {"name": name, "namespace": NAMESPACE},
        "spec": {
            "domain": {"memory": {"guest": "128Mi"}, "devices": devices},
            "networks": [{"name": "default", "pod": {}}],
            "volumes": [{"name": "root", "containerDisk": image}],
            **spec,
        },
    }


@dataclass
class Usage:
    """What the components have called and used so far, and the memory of each by name."""

    calls: Calls
    cpu: float
    rss: dict[str, list[float]]


class Bench:
    """One cluster, and what is measured on it."""

    def __init__(self, api: Client, watched: Observed, guest: str) -> None:
        self._api, self._watched, self._guest = api, watched, guest
        self._names: list[str] = []
        self._number = 0
        self._created: dict[str, float] = {}

    async def create(self, count: int, **spec: str) -> list[str]:
        names = [f"bench-{self._number + i}" for i in range(count)]
        self._number += count
        self._names += names
        for name in names:
            self._created[name] = time.monotonic()
            await self._api.create(VMIS, vmi(name, self._guest, **spec))
        return names

    async def until(self, mark: str, names: list[str]) -> list[float]:
        """Seconds since their creation."""
        seen = await self._watched.until(mark, names)
        return [at - self._created[name] for name, at in zip(names, seen, strict=True)]

    async def delete_all(self) -> float:
        began, names, self._names = time.monotonic(), self._names, []
        for name in names:
            await self._api.delete(VMIS, name, NAMESPACE)
        await self._watched.until_gone(names)
        return time.monotonic() - began

    # Each measurement.

    async def at_rest(self, what: str, reference: bool) -> list[Figure]:
        """Calls and CPU while nothing happens, and the memory of the components."""
        before = await self.usage()
        await asyncio.sleep(REST)
        after = await self.usage()
        everything = [value for values in after.rss.values() for value in values]
        calls = (after.calls - before.calls).total() * 60 / REST
        cpu = (after.cpu - before.cpu) / REST * 1000
        beside = {True: ("1,346 in twelve pods", "313", "48"), False: ("", "", "")}[reference]
        return [
            *(
                Figure(
                    f"{name}: memory of one, {what}", statistics.mean(after.rss[name]), "MiB RSS", reference=str(rss)
                )
                for name, rss in _RSS.items()
            ),
            Figure(f"{len(everything)} components, {what}", sum(everything), "MiB RSS", reference=beside[0]),
            Figure(f"calls of the components, {what}", calls, "a minute", reference=beside[1]),
            Figure(f"CPU of the components, {what}", cpu, "millicores", reference=beside[2]),
        ]

    async def one_by_one(self) -> list[Figure]:
        running, booted, gone = [], [], []
        calls: Calls = Counter()
        await self._a_first_one()
        for _ in range(ONE_BY_ONE):
            before = await self.usage()
            names = await self.create(1)
            running += await self.until("running", names)
            await asyncio.sleep(0.5)  # for the last events to be written
            calls += (await self.usage()).calls - before.calls
            booted += await self.until("booted", names)
            gone.append(await self.delete_all())
        theirs = (key for key in sorted(calls) if key[0] != "watch" and key[1] not in _PERIODIC)
        per_vmi = {key: calls[key] / ONE_BY_ONE for key in theirs}
        return [
            Figure("one VMI, created to Running, median", statistics.median(running), "s", reference="3.75"),
            Figure("  guest up (agent connected), median", statistics.median(booted), "s"),
            Figure("  deleted to gone, median", statistics.median(gone), "s", reference="3.1 to 3.9"),
            Figure(
                "calls per VMI until Running",
                sum(count for key, count in per_vmi.items() if key != _GATE),
                "calls",
                aim="at most 6",
                reference="13, its readiness gate included",
            ),
            *(
                Figure(
                    f"  {verb} {resource}{' (its readiness gate, once it runs)' if (verb, resource) == _GATE else ''}",
                    count,
                    "calls",
                    reference=_CALLS.get((verb, resource), ""),
                )
                for (verb, resource), count in per_vmi.items()
            ),
        ]

    async def _a_first_one(self) -> None:
        """The first VM of a node makes what the others share."""
        await self.until("running", await self.create(4))
        await self.delete_all()

    async def together(self, count: int, reference: tuple[str, str] = ("", "")) -> list[Figure]:
        names = await self.create(count)
        running, booted = await self.until("running", names), await self.until("booted", names)
        title = f"{count} VMIs at once, created to Running p50"
        return [
            Figure(title, statistics.median(running), "s", reference=reference[0]),
            Figure("  p95", percentile(running, 95), "s", reference=reference[1]),
            Figure("  guest up p50", statistics.median(booted), "s"),
            Figure("  p95", percentile(booted, 95), "s"),
        ]

    async def together_and_waiting(self, count: int) -> list[Figure]:
        """The part of all but the guests: those that boot take the CPUs from those that come later."""
        running = await self.until("running", await self.create(count, startStrategy="Paused"))
        await self.delete_all()
        return [
            Figure(
                f"{count} VMIs at once, none of which boots, created to Running p50", statistics.median(running), "s"
            ),
            Figure("  p95", percentile(running, 95), "s"),
        ]

    async def beside_guests(self) -> list[Figure]:
        """What is in a launcher's Pod beside the hypervisor, seen from inside."""
        rss, pss = [], []
        for pod in await self._api.list(PODS, NAMESPACE, labels="kubevirt.io=virt-launcher"):
            text = await command_output(self._api, NAMESPACE, pod["metadata"]["name"], "compute", "sh", "-c", _MEMORY)
            beside = [p for p in _PROCESS.finditer(text) if not p["name"].startswith(("qemu-system", *_OUR_OWN))]
            rss.append(sum(int(p["rss"]) for p in beside) / 1024)
            pss.append(sum(int(p["pss"]) for p in beside) / 1024)
        return [
            Figure(f"processes beside QEMU, per VM of {len(rss)}", statistics.mean(rss), "MiB RSS", reference="142"),
            Figure("  shared pages divided", statistics.mean(pss), "MiB PSS", reference="109 alone, 53 of ten"),
        ]

    # Looking.

    async def usage(self) -> Usage:
        usage = Usage(Counter(), 0.0, {name: [] for name in _RSS})
        for pod in await self._api.list(PODS, INSTALLED, labels="prometheus.kubevirt.io=true"):
            name = pod["metadata"]["labels"]["kubevirt.io"]
            text = await command_output(
                self._api, INSTALLED, pod["metadata"]["name"], name, "/usr/bin/python3", "-c", _METRICS
            )
            for family in text_string_to_metric_families(text):
                for sample in family.samples:
                    if sample.name == "kubevirt_rest_client_requests_total":
                        usage.calls[sample.labels["verb"], sample.labels["resource"]] += int(sample.value)
                    elif sample.name == "process_cpu_seconds_total":
                        usage.cpu += sample.value
                    elif sample.name == "process_resident_memory_bytes":
                        usage.rss[name].append(sample.value / (1 << 20))
        return usage


# What is called now and then, with or without VMs: leases of elections, signs of life of nodes; and watches end.
_PERIODIC = ("leases.coordination.k8s.io", "nodes")
_GATE = ("patch", "pods/status")
# KubeVirt's calls per VMI until it runs, where its figures name them.
_CALLS = {
    ("patch", "virtualmachineinstances.kubevirt.io"): "6 updates and 1 patch",
    ("create", "pods"): "3 writes of the pod",
    ("create", "events"): "3",
}


async def run(kubeconfig: Path | None = None, registry: str = "", guest: str = GUEST) -> list[Figure]:
    """On the cluster of a kubeconfig, where VirtFleet is installed if it is not there; else on one of its own."""
    if kubeconfig:
        spec = {"imageRegistry": registry} if registry else {}
        async with Client(config.load(kubeconfig)) as api:
            figures = await _installed(api, spec)
            await _can_run(api, ours=bool(figures))
            return [*figures, *await _measure(api, guest)]
    with cluster(["node-a", "node-b"]) as (data, _):
        seconds = install(data)
        async with Client(config.load(data / "kubeconfig")) as api:
            return [_available(seconds), *await _measure(api, guest)]


def _available(seconds: float) -> Figure:
    return Figure("applied to Available", seconds, "s", reference="88")


async def _installed(api: Client, spec: dict[str, str]) -> list[Figure]:
    """How long an installation takes; nothing where there is one already."""
    if await installing.installed(api):
        print("  VirtFleet is installed there already: that is not measured", file=sys.stderr)
        return []
    began = time.monotonic()
    await installing.install(api, None, Progress(), spec, installing.DEFAULT)
    await installing.wait(api, installing.why_not_ready, Progress(), DEADLINE)
    return [_available(time.monotonic() - began)]


async def _can_run(api: Client, *, ours: bool) -> None:
    """Have CPUs emulated where no node has KVM, rather than wait for VMs that no node takes."""
    end = time.monotonic() + OFFERED_WITHIN
    while not any(int(node["status"]["allocatable"].get(KVM, 0)) for node in await api.list(NODES)):
        if time.monotonic() < end:
            await asyncio.sleep(1.0)
            continue
        if not ours and not Installation(await api.get(KUBEVIRTS, "kubevirt", INSTALLED)).emulation:
            raise SystemExit(
                f"no node offers {KVM}, so no VM would run: set spec.configuration.developerConfiguration.useEmulation"
                f" of KubeVirt {INSTALLED}/kubevirt to true"
            )
        emulating = {"spec": {"configuration": {"developerConfiguration": {"useEmulation": True}}}}
        await api.patch(KUBEVIRTS, "kubevirt", emulating, INSTALLED)
        return


async def _measure(api: Client, guest: str) -> list[Figure]:
    marks = {
        "running": lambda vmi: (vmi.get("status") or {}).get("phase") == "Running",
        "booted": lambda vmi: has_condition(vmi, "AgentConnected"),
    }
    await asyncio.sleep(10)  # for the installation to come to rest
    async with observing(api, VMIS, NAMESPACE, DEADLINE, **marks) as watched:
        bench = Bench(api, watched, guest)
        try:
            figures = await bench.at_rest("no VM", reference=True)
            figures += await bench.one_by_one()
            figures += await bench.together(TOGETHER, ("19.5", "28.9"))
            figures += await bench.beside_guests()
            await bench.delete_all()
            figures += await bench.together_and_waiting(TOGETHER)
            figures += await bench.together(MOST)
            figures += await bench.at_rest(f"{MOST} VMs", reference=False)
        finally:
            await bench.delete_all()
    node = min(node["metadata"]["name"] for node in await api.list(NODES))
    return [*figures, *await handovers.measure(api, node, rounds=2)]
