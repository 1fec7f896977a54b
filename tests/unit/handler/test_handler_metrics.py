"""What libvirt tells of a VM, as metrics."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from prometheus_client import CollectorRegistry, generate_latest

from virtfleet.handler.metrics import Usage, samples
from virtfleet.handler.pods.launchers import Presence, Unresponsive
from virtfleet.handler.vms.records import VmRecord
from virtfleet.protocol.messages import Stats

VALUES = {
    "state.state": 1,
    "cpu.time": 2_500_000_000,
    "balloon.rss": 1024,
    "vcpu.0.time": 1_000_000_000,
    "net.0.name": "tap0",
    "net.0.rx.bytes": 42,
    "block.0.name": "vda",
    "block.0.rd.reqs": 7,
}


def vm(name: str, stats: dict[str, Any] | None) -> Any:
    async def call(_: object) -> Stats:
        if stats is None:
            raise Unresponsive("it hangs")
        return Stats(values=stats)

    record = VmRecord(namespace="default", name=name, uid=name, pod=name)
    return SimpleNamespace(record=record, launcher=SimpleNamespace(presence=Presence.HERE, call=call), outgoing=None)


def test_values_get_their_units_and_devices_their_names() -> None:
    assert set(samples(VALUES)) == {
        ("cpu.time", "", 2.5),
        ("balloon.rss", "", 1024.0 * 1024),
        ("vcpu.N.time", "0", 1.0),
        ("net.N.rx.bytes", "tap0", 42),
        ("block.N.rd.reqs", "vda", 7),
    }


async def test_a_launcher_that_hangs_does_not_hide_the_others() -> None:
    usage = Usage("n1", lambda: [vm("a", VALUES), vm("b", None)])
    registry = CollectorRegistry()
    registry.register(usage)
    await usage.gather()
    text = generate_latest(registry).decode()
    assert 'kubevirt_vmi_cpu_usage_seconds_total{name="a",namespace="default",node="n1"} 2.5' in text
    assert 'kubevirt_vmi_memory_resident_bytes{name="a",namespace="default",node="n1"} 1.048576e+06' in text
    assert 'kubevirt_vmi_network_receive_bytes_total{interface="tap0",name="a"' in text
    assert 'name="b"' not in text
