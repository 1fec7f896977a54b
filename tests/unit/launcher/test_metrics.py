"""Metrics for the guest, in the form that programs in guests read."""

from __future__ import annotations

import struct
from pathlib import Path

from virtfleet.launcher.vm import metrics
from virtfleet.launcher.vm.metrics import Metric

MEMINFO = """\
MemTotal: 1000 kB
MemFree: 300 kB
Buffers: 50 kB
Cached: 150 kB
SwapCached: 5 kB
SwapTotal: 100 kB
SwapFree: 40 kB
"""


def test_the_document_has_types_contexts_and_units() -> None:
    found = [
        Metric("host", "HostName", "node-a"),
        Metric("vm", "TotalCPUTime", 1.5, "s"),
        Metric("vm", "Used", 7, "KiB"),
    ]
    assert metrics.document(found).decode() == (
        "<metrics>\n"
        '  <metric type="string" context="host">\n    <name>HostName</name>\n    <value>node-a</value>\n  </metric>\n'
        '  <metric type="real64" context="vm" unit="s">\n    <name>TotalCPUTime</name>\n'
        "    <value>1.500000</value>\n  </metric>\n"
        '  <metric type="uint64" context="vm" unit="KiB">\n    <name>Used</name>\n    <value>7</value>\n  </metric>\n'
        "</metrics>"
    )


def test_what_the_node_has_is_read_from_the_kernel(tmp_path: Path) -> None:
    (tmp_path / "meminfo").write_text(MEMINFO)
    (tmp_path / "vmstat").write_text("pswpin 2\npswpout 3\n")
    (tmp_path / "stat").write_text("cpu  100 200 300 9999 0\ncpu0 1 1 1 1\n")
    for cpu, package in ((0, 0), (1, 0), (2, 1)):
        topology = tmp_path / f"devices/system/cpu/cpu{cpu}/topology"
        topology.mkdir(parents=True)
        (topology / "physical_package_id").write_text(f"{package}\n")
    found = {m.name: m.value for m in metrics.of_host(tmp_path, tmp_path)}
    assert found.pop("Time")
    assert found == {
        "NumberOfPhysicalCPUs": 2,
        "TotalCPUTime": 6.0,
        "FreePhysicalMemory": 300,
        "FreeVirtualMemory": 340,
        "MemoryAllocatedToVirtualServers": 500,
        "UsedVirtualMemory": 595,
        "PagedInMemory": 8,
        "PagedOutMemory": 12,
    }


def test_what_the_vm_has_is_in_libvirts_statistics() -> None:
    stats = {
        "vcpu.maximum": 2,
        "vcpu.0.time": 5 * 10**8,
        "vcpu.0.state": 1,
        "vcpu.1.state": 0,
        "balloon.current": 131072,
    }
    assert {m.name: m.value for m in metrics.of_vm(stats)} == {
        "TotalCPUTime": 0.5,
        "ResourceProcessorLimit": 1,
        "PhysicalMemoryAllocatedToVirtualSystem": 131072,
        "ResourceMemoryLimit": 131072,
    }


def test_the_disk_has_a_header_that_fits_its_body(tmp_path: Path) -> None:
    disk = tmp_path / "below" / "vhostmd0"
    metrics.write_disk(str(disk), [Metric("host", "HostName", "a-name-that-is-quite-long")])
    metrics.write_disk(str(disk), [Metric("host", "HostName", "node-a")])
    content = disk.read_bytes()
    signature, busy, checksum, length = struct.unpack_from(">4siii", content)
    body = content[16 : 16 + length]
    assert (signature, busy, checksum) == (b"mvbd", 0, sum(body))
    assert body == metrics.document([Metric("host", "HostName", "node-a")]) + b"\n"
    assert len(content) == 262144
