"""A guest that starts again finds its devices where they were, whatever was added to the VM in the meantime."""

from __future__ import annotations

import re
from typing import Any

from virtfleet.protocol.messages import DomainState, Kill
from vm.guests import VM, machine, running

SCRATCH = {"name": "scratch", "emptyDisk": {"capacity": "64Mi"}}
EXTRA = {"name": "extra", "emptyDisk": {"capacity": "32Mi"}}
MIB = 2048  # sectors
LOOK = (
    "for d in /sys/block/vd?; do echo found $(cat $d/size) $(readlink -f $d/device); done;"
    " echo found $(cat /sys/class/net/eth0/address) $(readlink -f /sys/class/net/eth0/device); echo looked"
)


async def seen(vm: VM) -> dict[str, str]:
    """What the guest sees, by size or hardware address: the way over its PCI buses."""
    await vm.says(r"virtfleet-guest ready.*\n")
    await vm.type(LOOK)
    await vm.says(r"\nlooked\r?\n")
    lines = re.findall(r"\nfound (\S+) /sys/devices/(\S+)/virtio\d+", vm.output.replace("\r", ""))
    return dict(lines)


def as_status(state: DomainState) -> dict[str, Any]:
    """The record as it lies in a VM's status."""
    assert state.abi is not None
    devices = [{"name": d.name, "address": d.address, "mac": d.mac, "target": d.target} for d in state.abi.devices]
    return {"guestABI": {"machine": state.abi.machine, "devices": devices}}


async def test_devices_stay_where_they_were_when_one_is_added_before_them() -> None:
    async with running(machine([SCRATCH])) as vm:
        first, state = await seen(vm), await vm.state()
        await vm.client.call(Kill())
    assert re.fullmatch(r"pc-q35-[\d.]+", state.machine), "the version, and not the alias"
    assert state.topology == (1, 1, 1)
    assert state.memory == state.boot_memory == 128 << 20
    (mac,) = state.links
    assert state.links[mac] == "up" and mac in first

    again = {**machine([SCRATCH]), "status": as_status(state)}
    again["spec"]["volumes"].insert(0, EXTRA)
    again["spec"]["domain"]["devices"]["disks"].insert(0, {"name": "extra", "disk": {"bus": "virtio"}})
    async with running(again) as vm:
        second, now = await seen(vm), await vm.state()
        await vm.client.call(Kill())
    added = {size: place for size, place in second.items() if size == str(32 * MIB)}
    assert {key: place for key, place in second.items() if key not in added} == first
    assert len(added) == 1 and not set(added.values()) & set(first.values())
    assert now.machine == state.machine
    assert {**now.disks} == {**state.disks, "extra": "vdc"}
