"""Metrics of the node and of the VM, for programs in the guest that ask for them as `vhostmd` tells them.

Two ways lead into the guest: a small disk that is written anew every few seconds, and a serial port on which the guest
asks. The names are those that such programs know. Of the node only its name has to be told; the rest is in /proc.
"""

from __future__ import annotations

import asyncio
import logging
import os
import struct
import time
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import NamedTuple
from xml.etree import ElementTree as ET

from virtfleet.domain import paths
from virtfleet.launcher.failure import Failure

logger = logging.getLogger(__name__)

DISK_SIZE = 1 << 18
_HEADER = struct.Struct(">4siii")  # signature, whether it is being written, sum of the body's bytes, its length
_SIGNATURE = b"mvbd"
_PERIOD = 5.0
_REQUEST = b"GET /metrics/XML"
_END = b"\n\n"
_PAUSE = 1.0  # between answers, and between attempts to connect
_OFFLINE = 0  # a virtual CPU's state in libvirt's statistics
_KIB = 1024


class Metric(NamedTuple):
    """One number or word about the host or the VM."""

    context: str
    name: str
    value: int | float | str
    unit: str = ""

    @property
    def type(self) -> str:
        return {int: "uint64" if self.unit == "KiB" else "int64", float: "real64", str: "string"}[type(self.value)]


Report = Callable[[], Awaitable[list[Metric]]]


def of_vm(stats: Mapping[str, int | float | str | bool]) -> list[Metric]:
    """From libvirt's statistics of the domain."""
    numbers = range(int(stats.get("vcpu.maximum", 0)))
    used = sum(int(stats.get(f"vcpu.{n}.time", 0)) for n in numbers)
    online = sum(stats.get(f"vcpu.{n}.state", _OFFLINE) != _OFFLINE for n in numbers)
    memory = int(stats.get("balloon.current", 0))
    return [
        Metric("vm", "TotalCPUTime", used / 1e9, "s"),
        Metric("vm", "ResourceProcessorLimit", online),
        Metric("vm", "PhysicalMemoryAllocatedToVirtualSystem", memory, "KiB"),
        Metric("vm", "ResourceMemoryLimit", memory, "KiB"),
    ]


def of_host(proc: Path = Path("/proc"), sys: Path = Path("/sys")) -> list[Metric]:
    """What the kernel tells of the node; a container sees it as well."""
    memory = _numbers(proc / "meminfo")
    paged = _numbers(proc / "vmstat")
    ticks = [int(word) for word in (proc / "stat").read_text().split("\n", 1)[0].split()[1:4]]  # user, nice, system
    packages = {p.read_text() for p in sys.glob("devices/system/cpu/cpu[0-9]*/topology/physical_package_id")}
    page, total, free = os.sysconf("SC_PAGE_SIZE") // _KIB, memory["MemTotal"], memory["MemFree"]
    swap, swap_free = memory["SwapTotal"], memory["SwapFree"]
    files = memory["Buffers"] + memory["Cached"]
    return [
        Metric("host", "NumberOfPhysicalCPUs", len(packages)),
        Metric("host", "TotalCPUTime", sum(ticks) / os.sysconf("SC_CLK_TCK"), "s"),
        Metric("host", "FreePhysicalMemory", free, "KiB"),
        Metric("host", "FreeVirtualMemory", free + swap_free, "KiB"),
        Metric("host", "MemoryAllocatedToVirtualServers", total - free - files, "KiB"),
        Metric("host", "UsedVirtualMemory", total + swap - free - files - memory["SwapCached"], "KiB"),
        Metric("host", "PagedInMemory", paged["pswpin"] * page, "KiB"),
        Metric("host", "PagedOutMemory", paged["pswpout"] * page, "KiB"),
        Metric("host", "Time", int(time.time()), "s"),
    ]


def _numbers(file: Path) -> dict[str, int]:
    """Name and first number of each line."""
    words = [line.replace(":", " ").split() for line in file.read_text().splitlines()]
    return {line[0]: int(line[1]) for line in words if len(line) > 1}


def document(measured: list[Metric]) -> bytes:
    root = ET.Element("metrics")
    for metric in measured:
        element = ET.SubElement(root, "metric", type=metric.type, context=metric.context)
        if metric.unit:
            element.set("unit", metric.unit)
        ET.SubElement(element, "name").text = metric.name
        value = metric.value
        ET.SubElement(element, "value").text = f"{value:.6f}" if isinstance(value, float) else str(value)
    ET.indent(root)
    return ET.tostring(root, short_empty_elements=False)


def write_disk(path: str, measured: list[Metric]) -> None:
    """Write the disk, which a guest may read at any moment: one that is being written says so."""
    body = document(measured) + b"\n"
    checksum, length = sum(body), len(body)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        os.truncate(file, DISK_SIZE)
        os.pwrite(file, _HEADER.pack(_SIGNATURE, 1, checksum, length), 0)
        os.pwrite(file, body, _HEADER.size)
        os.pwrite(file, _HEADER.pack(_SIGNATURE, 0, checksum, length), 0)
    finally:
        os.close(file)


async def keep_disk(report: Report) -> None:
    """Write the disk again and again, for as long as the VM lives."""
    while True:
        try:
            write_disk(paths.DOWNWARD_METRICS_DISK, await report())
        except (Failure, OSError) as error:
            logger.warning("no metrics for the guest: %s", error)
        await asyncio.sleep(_PERIOD)


async def serve_channel(report: Report, socket: str = paths.DOWNWARD_METRICS_SOCKET) -> None:
    """Answer the guest on its serial port, which the hypervisor has as a socket, for as long as the VM lives."""
    while True:
        try:
            reader, writer = await asyncio.open_unix_connection(socket)
        except OSError as error:
            logger.warning("the guest's port for metrics cannot be reached: %s", error)
        else:
            try:
                await _converse(reader, writer, report)
            except (OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError) as error:
                logger.info("the guest's port for metrics was closed: %s", error)
            finally:
                writer.close()
        await asyncio.sleep(_PAUSE)


async def _converse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, report: Report) -> None:
    while True:
        request = await reader.readuntil(_END)
        answer = b"INVALID REQUEST"
        if request.strip() == _REQUEST:
            try:
                answer = document(await report())
            except Failure as error:
                logger.warning("no metrics for the guest: %s", error)
                answer = document([])
        writer.write(answer + _END)
        await writer.drain()
        await asyncio.sleep(_PAUSE)  # a guest that asks all the time gets one answer at a time
