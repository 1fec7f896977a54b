"""What VMs on this node use, for Prometheus, under KubeVirt's names.

Launchers are asked now and then, not when somebody looks: one that does not answer must not keep the others' numbers.
"""

from __future__ import annotations

import asyncio
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import NamedTuple

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from virtfleet.handler.pods.launchers import Presence, Unresponsive
from virtfleet.handler.vms.work import PodWork
from virtfleet.protocol.client import Refused
from virtfleet.protocol.messages import GetStats, MigrationReport

PERIOD = 30.0
_KIB, _NANO = 1024, 1e-9

Values = Mapping[str, int | float | str | bool]


class Known(NamedTuple):
    """A metric: its name, what it tells, the factor to its unit, and whether it only grows."""

    name: str
    text: str
    factor: float = 1
    counts: bool = True


# libvirt's name -> metric; `N` stands for the number of a device or virtual CPU.
METRICS = {
    "cpu.time": Known("cpu_usage_seconds", "CPU time of the VM", _NANO),
    "cpu.user": Known("cpu_user_usage_seconds", "CPU time in user mode", _NANO),
    "cpu.system": Known("cpu_system_usage_seconds", "CPU time in the kernel", _NANO),
    "balloon.rss": Known("memory_resident_bytes", "Resident memory of the hypervisor", _KIB, counts=False),
    "balloon.available": Known("memory_available_bytes", "Memory that the guest has", _KIB, counts=False),
    "balloon.unused": Known("memory_unused_bytes", "Memory that the guest does not use", _KIB, counts=False),
    "balloon.usable": Known("memory_usable_bytes", "Memory that the guest could use", _KIB, counts=False),
    "balloon.maximum": Known("memory_domain_bytes", "Memory of the domain", _KIB, counts=False),
    "balloon.current": Known("memory_actual_balloon_bytes", "Memory that the balloon leaves", _KIB, counts=False),
    "balloon.disk_caches": Known("memory_cached_bytes", "Memory that the guest caches files in", _KIB, counts=False),
    "balloon.swap_in": Known("memory_swap_in_traffic_bytes", "What the guest swapped in", _KIB, counts=False),
    "balloon.swap_out": Known("memory_swap_out_traffic_bytes", "What the guest swapped out", _KIB, counts=False),
    "balloon.major_fault": Known("memory_pgmajfault", "Page faults of the guest that needed a disk"),
    "balloon.minor_fault": Known("memory_pgminfault", "Page faults of the guest that needed none"),
    "vcpu.N.time": Known("vcpu_seconds", "CPU time of a virtual CPU", _NANO),
    "vcpu.N.wait": Known("vcpu_wait_seconds", "Time that a virtual CPU waited for input and output", _NANO),
    "vcpu.N.delay": Known("vcpu_delay_seconds", "Time that a virtual CPU waited for a physical one", _NANO),
    "net.N.rx.bytes": Known("network_receive_bytes", "Bytes that the guest received"),
    "net.N.tx.bytes": Known("network_transmit_bytes", "Bytes that the guest sent"),
    "net.N.rx.pkts": Known("network_receive_packets", "Packets that the guest received"),
    "net.N.tx.pkts": Known("network_transmit_packets", "Packets that the guest sent"),
    "net.N.rx.errs": Known("network_receive_errors", "Packets to the guest that were broken"),
    "net.N.tx.errs": Known("network_transmit_errors", "Packets from the guest that were broken"),
    "net.N.rx.drop": Known("network_receive_packets_dropped", "Packets to the guest that were dropped"),
    "net.N.tx.drop": Known("network_transmit_packets_dropped", "Packets from the guest that were dropped"),
    "block.N.rd.bytes": Known("storage_read_traffic_bytes", "Bytes read"),
    "block.N.wr.bytes": Known("storage_write_traffic_bytes", "Bytes written"),
    "block.N.rd.reqs": Known("storage_iops_read", "Reads"),
    "block.N.wr.reqs": Known("storage_iops_write", "Writes"),
    "block.N.fl.reqs": Known("storage_flush_requests", "Flushes"),
    "block.N.rd.times": Known("storage_read_times_seconds", "Time spent on reads", _NANO),
    "block.N.wr.times": Known("storage_write_times_seconds", "Time spent on writes", _NANO),
    "block.N.fl.times": Known("storage_flush_times_seconds", "Time spent on flushes", _NANO),
}
# Of the report of a VM that leaves -> metric.
TRANSFER: Sequence[tuple[Known, Callable[[MigrationReport], int]]] = (
    (Known("data_bytes", "What has to be sent"), lambda r: r.total_bytes),
    (Known("data_remaining_bytes", "What is still to be sent", counts=False), lambda r: r.left_bytes),
    (Known("data_processed_bytes", "What the target has", counts=False), lambda r: r.total_bytes - r.left_bytes),
    (Known("dirty_memory_rate_bytes", "What the guest writes anew", counts=False), lambda r: r.dirty_rate),
    (Known("memory_transfer_rate_bytes", "What is sent a second", counts=False), lambda r: r.rate),
)
_LABEL = {"vcpu": "id", "net": "interface", "block": "drive"}
_NUMBER = re.compile(r"^(vcpu|net|block)\.(\d+)\.")


def samples(values: Values) -> Iterator[tuple[str, str, float]]:
    """What libvirt tells as libvirt's name with `N`, the device, and the value in the metric's unit."""
    for key, value in values.items():
        match = _NUMBER.match(key)
        name = _NUMBER.sub(r"\1.N.", key)
        known = METRICS.get(name)
        if known is None or isinstance(value, str):
            continue
        device = str(values.get(f"{match[1]}.{match[2]}.name", match[2])) if match else ""
        yield name, device, value * known.factor


class Usage(Collector):
    """`run()` asks the launchers; what they said last is there for whoever looks."""

    def __init__(self, node: str, vms: Callable[[], Iterable[PodWork]]) -> None:
        self._node = node
        self._vms = vms
        self._last: dict[tuple[str, str], Values] = {}

    async def run(self) -> None:
        while True:
            await self.gather()
            await asyncio.sleep(PERIOD)

    async def gather(self) -> None:
        here = [vm for vm in self._vms() if vm.launcher.presence is Presence.HERE]
        answers = await asyncio.gather(*(_ask(vm) for vm in here))
        self._last = {(vm.record.namespace, vm.record.name): v for vm, v in zip(here, answers, strict=True) if v}

    def describe(self) -> Iterable[Metric]:
        return ()  # nothing is to be counted when this is registered

    def collect(self) -> Iterable[Metric]:
        yield from self._of_usage()
        yield from self._of_migrations()

    def _of_usage(self) -> Iterable[Metric]:
        by_metric: dict[str, list[tuple[list[str], float]]] = defaultdict(list)
        for (namespace, name), values in self._last.items():
            for key, device, value in samples(values):
                by_metric[key].append(([self._node, namespace, name, *([device] if device else [])], value))
        for key, entries in by_metric.items():
            of = _LABEL.get(key.partition(".")[0])
            yield _family("kubevirt_vmi_", METRICS[key], [of] if of else [], entries)

    def _of_migrations(self) -> Iterable[Metric]:
        """Of VMs on their way to other nodes. Their launchers tell every second."""
        leaving = [(vm.record, vm.launcher.report(vm.outgoing.uid)) for vm in self._vms() if vm.outgoing]
        under_way = [(record, report) for record, report in leaving if report.total_bytes]
        for known, value in TRANSFER if under_way else ():
            entries = [([self._node, record.namespace, record.name], value(report)) for record, report in under_way]
            yield _family("kubevirt_vmi_migration_", known, [], entries)


def _family(prefix: str, known: Known, more: list[str], entries: Iterable[tuple[list[str], float]]) -> Metric:
    kind = CounterMetricFamily if known.counts else GaugeMetricFamily
    family = kind(prefix + known.name, known.text, labels=["node", "namespace", "name", *more])
    for labels, value in entries:
        family.add_metric(labels, value)
    return family


async def _ask(vm: PodWork) -> Values:
    with suppress(Refused, Unresponsive):
        return (await vm.launcher.call(GetStats())).values
    return {}
