"""What containers have in common, whichever driver runs them: what they lack, and who their users are on the node."""

from __future__ import annotations

from typing import Final

from virtfleet.hypervisors.support import NO_CONSOLE_LOG

_NO_HARDWARE = "a container has no virtual hardware"
_OWN_KERNEL = "a container runs on the node's kernel"

IDS: Final = 65536  # users and groups of one guest
# Of the range that systemd sets aside for containers: 524288 up to 1879048191.
_FIRST_SLOT, _SLOTS = 8, 28664

IMPOSSIBLE_IN_CONTAINERS: Final = (
    ("graphics input sound tpm watchdog panic usb-redirection vsock rng balloon downward-metrics", _NO_HARDWARE),
    ("cdrom lun disk-sata disk-scsi disk-usb shareable-disk block-multiqueue io-threads block-size", _NO_HARDWARE),
    ("net-sriov net-passt net-multiqueue", _NO_HARDWARE),
    ("console-log", NO_CONSOLE_LOG),
    ("interface-hotplug", "libvirt's driver names interfaces and sets them up only when a container starts"),
    ("net-plugin", "a container can join bridges of its Pod only"),
    ("changed-block-tracking", "the node's kernel mounts the disks, and records no changes of blocks"),
    ("boot-order efi secure-boot acpi-tables ignition", "a container has no firmware"),
    ("cpu-model cpu-features numa realtime cpu-pinning", "a container sees the node's CPUs"),
    ("cpu-hotplug memory-hotplug hugepages", "a container's CPUs and memory are limits, not hardware"),
    ("hyperv-enlightenments kvm-hidden sev tdx clock", _OWN_KERNEL),
    (
        "disk-image ephemeral-disk host-disk",
        "the node's kernel would read a file system that somebody else made; mount a directory, by a file system",
    ),
    ("volume-hotplug", "a container has its directories mounted before it starts; leave hotpluggable out"),
    ("start-paused", "a container cannot be created paused"),
    ("hook-sidecars", "its launcher has power on the node, which a document of somebody's own would have with it"),
)


def first_id(uid: str) -> int:
    """Who root of a container is on the node: somebody without rights, and hardly ever the same for two guests.

    It follows from the VMI's UID, so that nobody has to keep a list that can be lost or run full: launcher and handler
    may restart and come to the same number. Two guests that share one by chance are still in namespaces of their own.
    """
    import hashlib  # brings OpenSSL along, which other launchers need not hold in memory

    digest = hashlib.sha256(uid.encode()).digest()
    return (_FIRST_SLOT + int.from_bytes(digest[:8]) % _SLOTS) * IDS
