"""A container that prints what the guest says on its serial console, for those who ask `kubectl logs`. Pure."""

from __future__ import annotations

from typing import Any

from virtfleet.api import traits
from virtfleet.api.vmi import VirtualMachineInstance as VMI
from virtfleet.domain import paths
from virtfleet.installation import Installation
from virtfleet.pods import security

NAME = "guest-console-log"
# The file comes with the guest, and another one takes its place when it is full. The first process passes signals on,
# which a first process of its own would not hear.
_FOLLOW = 'until [ -e "$0" ]; do sleep 0.5; done; exec tail -n +1 -F -- "$0" 2>/dev/null'
_COMMAND = ("/usr/bin/catatonit", "--", "/bin/sh", "-c", _FOLLOW)
# The same amounts for both, so that a Pod whose CPUs are its own can keep them.
_AMOUNTS = {"cpu": "15m", "memory": "35M"}


def containers(vmi: VMI, settings: Installation, image: str) -> list[dict[str, Any]]:
    """It starts before the launcher, on its image, and is ended after it."""
    if not traits.prints_console(vmi):
        return []
    container = {
        "name": NAME,
        "image": image,
        **({"imagePullPolicy": settings.launcher_pull_policy} if settings.launcher_pull_policy else {}),
        "command": [*_COMMAND, f"{paths.vmi_socket(vmi.metadata.uid, 'virt-serial0')}-log"],
        "resources": {"requests": _AMOUNTS, "limits": _AMOUNTS},
        "securityContext": security.CONFINED,
        "volumeMounts": [{"name": "private", "mountPath": paths.PRIVATE, "readOnly": True}],
        "restartPolicy": "Always",
    }
    return [container]
