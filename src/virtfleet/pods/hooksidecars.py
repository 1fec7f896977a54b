"""Containers of hook sidecars: unprivileged as the launcher, with one directory of their own for their sockets. Pure.

The gate is looked at here once more: annotations of a VMI may change after admission has seen it.
"""

from __future__ import annotations

from typing import Any

from virtfleet.api import hooks
from virtfleet.api.hooks import HookSidecar
from virtfleet.api.vmi import VirtualMachineInstance as VMI
from virtfleet.domain import paths
from virtfleet.hypervisors.base import Hypervisor
from virtfleet.installation import Installation
from virtfleet.pods import security
from virtfleet.pods.volumes import Mounted

_SOCKETS = "hook-sidecar-sockets"
# The same amounts for both, so that a Pod whose CPUs are its own can keep them.
_AMOUNTS = {"cpu": "200m", "memory": "128M"}


def containers(vmi: VMI, hypervisor: Hypervisor, settings: Installation, mounted: Mounted) -> list[dict[str, Any]]:
    """They start before the launcher and are ended after it. ValueError is about a malformed annotation."""
    if not settings.enabled("Sidecar") or not hypervisor.has("hook-sidecars"):
        return []
    wanted = hooks.sidecars(vmi.metadata.annotations)
    if wanted:
        mounted.add(_SOCKETS, {"emptyDir": {}}, paths.HOOKS)
        mounted.sidecars = len(wanted)
    return [_container(number, sidecar, mounted) for number, sidecar in enumerate(wanted)]


def _container(number: int, sidecar: HookSidecar, mounted: Mounted) -> dict[str, Any]:
    name = paths.hook_sidecar(number)
    mounts = [{"name": _SOCKETS, "mountPath": paths.HOOKS, "subPath": name}]
    if script := sidecar.config_map:
        source = {"name": script.name, "items": [{"key": script.key, "path": "script"}], "defaultMode": 0o755}
        mounted.volumes.append({"name": f"{name}-script", "configMap": source})
        mounts.append({"name": f"{name}-script", "mountPath": script.hook_path, "subPath": "script"})
    said = {"imagePullPolicy": sidecar.image_pull_policy, "command": sidecar.command, "args": sidecar.args}
    return {
        "name": name,
        "image": sidecar.image,
        **{field: value for field, value in said.items() if value},
        "restartPolicy": "Always",
        "resources": {"requests": _AMOUNTS, "limits": _AMOUNTS},
        "securityContext": security.CONFINED,
        "volumeMounts": mounts,
    }
