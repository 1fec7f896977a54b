"""What is to be done to a running domain so that it has what its Pod has room for. Domains are documents here."""

from __future__ import annotations

from xml.etree import ElementTree as ET

from hypothesis import given
from hypothesis import strategies as st

from virtfleet.hypervisors import registry
from virtfleet.launcher.vm.live import growth
from virtfleet.protocol.messages import NodeFacts

QEMU, LXC = registry.get("qemu-kvm"), registry.get("lxc")
MI = 1 << 20


def domain(
    *, now: int = 2, most: int = 8, cores: int = 2, boot: int = 1024, largest: int = 4096, more: int = 0
) -> ET.Element:
    """A running domain; sizes of memory in MiB. With more than it has started with, it has the device for it."""
    device = (
        f"<memory model='virtio-mem'><target><size>{largest - boot << 10}</size><node>0</node><block>2048</block>"
        f"<requested>{more << 10}</requested><current>0</current></target><alias name='ua-more-memory'/></memory>"
    )
    total = largest if more else boot
    return ET.fromstring(
        f"<domain><maxMemory slots='16'>{largest << 10}</maxMemory><memory>{total << 10}</memory>"
        f"<vcpu current='{now}'>{most}</vcpu>"
        f"<cpu><topology sockets='{most // cores}' cores='{cores}' threads='1'/></cpu>"
        f"<devices>{device if more else ''}</devices></domain>"
    )


def requested(device: ET.Element | None) -> int:
    """MiB."""
    assert device is not None
    return int(device.findtext("target/requested", "")) >> 10


def test_cpus_come_in_whole_sockets() -> None:
    assert growth(domain(), NodeFacts(sockets=3), QEMU).vcpus == 6


def test_nothing_is_done_without_room_and_nothing_twice() -> None:
    for facts in (NodeFacts(), NodeFacts(sockets=1, memory=1024 * MI)):
        assert not growth(domain(), facts, QEMU)
    assert not growth(domain(more=512), NodeFacts(memory=1536 * MI), QEMU)


def test_the_first_memory_brings_the_device_and_more_changes_it() -> None:
    first = growth(domain(), NodeFacts(memory=1536 * MI), QEMU).memory
    assert first is not None and first.get("model") == "virtio-mem"
    assert (first.findtext("target/size"), requested(first)) == (str(3072 << 10), 512)
    second = growth(domain(more=512), NodeFacts(memory=2048 * MI), QEMU).memory
    assert requested(second) == 1024


def test_a_hypervisor_without_such_a_device_is_asked_for_none() -> None:
    assert growth(domain(), NodeFacts(memory=2048 * MI), LXC).memory is None


@given(st.integers(0, 64), st.integers(0, 1 << 36), st.integers(1, 4), st.sampled_from([0, 512, 1024]))
def test_no_domain_gets_more_than_it_was_started_with_room_for(
    sockets: int, memory: int, cores: int, more: int
) -> None:
    running = domain(now=cores, most=4 * cores, cores=cores, more=more)
    found = growth(running, NodeFacts(sockets=sockets, memory=memory), QEMU)
    assert found.vcpus in range(4 * cores + 1) and found.vcpus % cores == 0
    if found.memory is not None:
        assert 1024 + requested(found.memory) <= 4096
