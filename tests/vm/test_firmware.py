"""The ways to boot besides a BIOS and a disk; by EFI does the guest of test_moving_state.py."""

from __future__ import annotations

from virtfleet.launcher.alone.standalone import KERNEL_BOOT
from vm.guests import guest, machine, running


async def test_a_guest_boots_a_kernel_from_a_container_image() -> None:
    vmi = machine()
    boot = {"image": "example/kernel", "kernelPath": "/vmlinuz", "initrdPath": "/initrd"}
    vmi["spec"]["domain"]["firmware"] = {"kernelBoot": {"container": boot, "kernelArgs": "console=ttyS0 quiet panic=5"}}
    async with running(vmi, **{KERNEL_BOOT: guest().kernel.parent}) as vm:
        await vm.says(r"virtfleet-guest ready name=guest address=10\.0\.2\.2")
        await vm.type("cat /proc/cmdline")
        await vm.says(r"\nconsole=ttyS0 quiet panic=5\r?\n")
