"""What no container has, whichever driver runs it: virtual hardware, firmware, and a kernel of its own."""

from __future__ import annotations

from typing import Final

_NO_HARDWARE = "a container has no virtual hardware"
_OWN_KERNEL = "a container runs on the node's kernel"

IMPOSSIBLE_IN_CONTAINERS: Final = (
    ("graphics input sound tpm watchdog panic usb-redirection vsock rng balloon downward-metrics", _NO_HARDWARE),
    ("cdrom lun disk-sata disk-scsi disk-usb shareable-disk block-multiqueue io-threads block-size", _NO_HARDWARE),
    ("net-sriov net-passt net-multiqueue", _NO_HARDWARE),
    ("net-plugin", "a container can join bridges of its Pod only"),
    ("changed-block-tracking", "the node's kernel mounts the disks, and records no changes of blocks"),
    ("boot-order efi secure-boot acpi-tables ignition", "a container has no firmware"),
    ("cpu-model cpu-features numa realtime cpu-pinning", "a container sees the node's CPUs"),
    ("cpu-hotplug memory-hotplug hugepages", "a container's CPUs and memory are limits, not hardware"),
    ("hyperv-enlightenments kvm-hidden sev tdx clock", _OWN_KERNEL),
    ("start-paused", "a container cannot be created paused"),
)
