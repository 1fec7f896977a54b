"""A container that prints what the guest says on its serial console, for those who ask `kubectl logs`. Pure.

Every VM has one, as in KubeVirt, so it is as little as can be: a `tail` under the launcher image's first process, about
1 MiB with all that the node has to do with it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from virtfleet.api import traits
from virtfleet.api.vmi import VirtualMachineInstance as VMI
from virtfleet.domain import paths
from virtfleet.hypervisors.base import Hypervisor
from virtfleet.installation import Installation
from virtfleet.pods import security

NAME = "guest-console-log"
# The file comes with the guest, and another one takes its place when it is full. The first process passes signals on,
# which a first process of its own would not hear.
_FOLLOW = 'until [ -e "$0" ]; do sleep 0.5; done; exec tail -n +1 -F -- "$0" 2>/dev/null'
_COMMAND = ("/usr/bin/catatonit", "--", "/bin/sh", "-c", _FOLLOW)
# A guest that says a lot is slowed down, not the node; less would slow down the start of the container.
_LEAST, _MOST = {"cpu": "1m", "memory": "2M"}, {"cpu": "100m", "memory": "35M"}
# Where the compute container has as much as it may use, or the Pod could not keep CPUs of its own.
_SAME = {"cpu": "15m", "memory": "35M"}


def containers(
    vmi: VMI, hypervisor: Hypervisor, settings: Installation, image: str, compute: Mapping[str, Any]
) -> list[dict[str, Any]]:
    """It starts before the launcher, on its image, and is ended after it. `compute` is what that container asks for."""
    if not (hypervisor.has("console-log") and traits.console_logged(vmi, settings.serial_console_log)):
        return []
    asked, may = compute.get("requests", {}), compute.get("limits", {})
    guaranteed = all(asked.get(name) == may.get(name) is not None for name in ("cpu", "memory"))
    container = {
        "name": NAME,
        **settings.pulled(image),
        "command": [*_COMMAND, f"{paths.vmi_socket(vmi.metadata.uid, 'virt-serial0')}-log"],
        "resources": {"requests": _SAME if guaranteed else _LEAST, "limits": _SAME if guaranteed else _MOST},
        "securityContext": security.CONFINED,
        "volumeMounts": [{"name": "private", "mountPath": paths.PRIVATE, "readOnly": True}],
        "restartPolicy": "Always",
    }
    return [container]
