"""What a launcher says when it cannot do what it was asked, and when it ends."""

from __future__ import annotations

import os
import re
from contextlib import suppress

# QEMU begins its lines with the time, and libvirt says when it noticed that QEMU had ended. Without both, the same
# failure has the same words each time.
_CHANCE = re.compile(
    r"\b\d{4}-\d\d-\d\dT[\d:.]+Z "
    r"|internal error: (?:process exited while connecting to monitor|qemu unexpectedly closed the monitor): "
)
_REMEDIES = {
    'to get "write" lock': "another VM has this disk open: stop that VM, give each a disk of its own, or set shareable"
    " on the disk of both",
    'to get shared "write" lock': "another VM writes to this disk: stop that VM, or set shareable on the disk of both",
    "No space left on device": "the volume or the node's disk is full: make room, or give the VM a larger volume",
    "Cannot allocate memory": "the node has too little free memory: stop other VMs, or give this one less",
    "Postcopy is not supported": "set vm.unprivileged_userfaultfd=1 on both nodes and choose the seccomp profile"
    " kubevirt/kubevirt.json for launchers, or do not allow post-copy",
    "hugetlbfs": "the node has no huge pages of this size: set some aside there, or leave memory.hugepages out",
}


class Failure(Exception):
    """It could not be done; the message says what is wrong and, where possible, what to do."""


def leave_word(words: str) -> None:
    """Tell the kubelet how this process ended, for whoever asks when it is gone."""
    with suppress(OSError):
        fd = os.open("/dev/termination-log", os.O_WRONLY | os.O_TRUNC)  # it is there if a kubelet wants to know
        os.write(fd, words.encode())
        os.close(fd)


def explained(words: str) -> str:
    """What libvirt or QEMU said, and what to do about it where that is known."""
    said = _CHANCE.sub("", words).strip()
    remedy = next((remedy for sign, remedy in _REMEDIES.items() if sign in said), "")
    return f"{said}. What to do: {remedy}" if remedy else said
