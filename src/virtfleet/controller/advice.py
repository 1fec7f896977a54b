"""What the owner of a VM can do when no node takes it, or the node that took it cannot run its Pod. Pure.

A condition carries the scheduler's own words, which other tools read. People read events, and get advice there.
"""

from __future__ import annotations

import re
from functools import cache

from virtfleet.api import names
from virtfleet.hypervisors import registry

_SCARCE = re.compile(r"Insufficient ([\w./-]+\w)")
_AMOUNTS = ("cpu", "memory", "ephemeral-storage")
_LABELS = "node affinity/selector"
_TAINT = "untolerated taint"
_VSOCK = f"{names.DEVICE_PREFIX}vhost-vsock"
_NO_SOURCE = 'failed to mkdir ""'


def placement(message: str) -> str:
    """The scheduler's words, and what to do about them."""
    scarce = sorted(set(_SCARCE.findall(message)))
    amounts = [what for what in scarce if what in _AMOUNTS]
    devices = [what for what in scarce if what not in (*_AMOUNTS, _VSOCK)]
    known = (
        (amounts, f"ask for less {' and '.join(amounts)}, stop other VMs, or add a node"),
        (devices, f"no node has enough of {', '.join(devices)} left: stop VMs that use it, or add a node that has it"),
        (
            _dispensable().intersection(devices),
            "where it does not work, developerConfiguration.useEmulation of the KubeVirt object lets VMs run",
        ),
        (
            _VSOCK in scarce,
            "have the kernel module vhost_vsock on a node where the VM may be (modprobe vhost_vsock) and the feature"
            " gate VSOCK on, or set autoattachVSOCK: false",
        ),
        (
            _LABELS in message and not scarce,
            "no node has the labels that the VM's nodeSelector, affinity, CPU model, machine type or hypervisor needs:"
            " compare them with `kubectl get nodes --show-labels`",
        ),
        (_TAINT in message and not scarce, "add a toleration to the VM, or remove the taint from a node"),
    )
    hints = [hint for applies, hint in known if applies]
    return f"No node can run the VM: {message}{' What to do: ' if hints else ''}{'; '.join(hints)}"


def lacks_image_volumes(message: str) -> bool:
    """Whether a container cannot be made because its node's runtime overlooked that a volume is an image.

    Such a runtime knows no source of the mount, and says so in these words (containerd before 2.1).
    """
    return _NO_SOURCE in message


def image_volumes(node: str) -> str:
    """What to do about it; always the same words, so that repeated attempts are no news."""
    return (
        f"the container runtime of node {node} cannot mount images as volumes, by which container disks and kernels in"
        " images reach a VM. Update it (containerd from 2.1 on, CRI-O from 1.31 on), keep the VM off the node with a"
        " nodeSelector or affinity, or have its disk on a claim"
    )


@cache
def _dispensable() -> frozenset[str]:
    """Devices of hypervisors that can do without, by emulating CPUs."""
    described = (registry.get(name).descriptor for name in registry.names())
    return frozenset(names.DEVICE_PREFIX + d.device for d in described if d.emulation)
