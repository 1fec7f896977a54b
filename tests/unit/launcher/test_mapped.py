"""What a runtime puts over /proc and /sys is found in the kernel's table."""

from __future__ import annotations

from virtfleet.launcher.storage.mapped import covers

MOUNTS = """\
500 400 0:60 / /proc rw,nosuid,nodev,noexec - proc proc rw
501 500 0:60 /sys /proc/sys ro,nosuid,nodev,noexec - proc proc rw
502 500 0:61 /null /proc/kcore rw,nosuid - tmpfs tmpfs rw,size=65536k
503 500 0:62 / /proc/acpi ro,relatime - tmpfs tmpfs ro
510 400 0:63 / /sys ro,nosuid,nodev,noexec - sysfs sysfs ro
511 510 0:64 / /sys/fs/cgroup rw,nosuid - tmpfs tmpfs rw,mode=755
512 511 0:30 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory
513 510 0:65 / /sys/firmware ro,relatime - tmpfs tmpfs ro
514 510 0:7 / /sys/kernel/debug rw - debugfs debugfs rw
520 400 0:66 / /dev/shm rw - tmpfs shm rw
"""


def test_masks_and_read_only_parts_are_covers_and_control_groups_are_not() -> None:
    assert covers(MOUNTS) == ["/proc/sys", "/proc/kcore", "/proc/acpi", "/sys/firmware"]
