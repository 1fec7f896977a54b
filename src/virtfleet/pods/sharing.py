"""Containers that share directories of the Pod with the guest: one virtiofsd for each file system of the VMI."""

from __future__ import annotations

from typing import Any

from virtfleet.api.vmi import VirtualMachineInstance as VMI
from virtfleet.domain import paths
from virtfleet.hypervisors.base import Descriptor
from virtfleet.installation import Installation
from virtfleet.pods import security
from virtfleet.pods.volumes import Mounted

_RESOURCES = {"requests": {"cpu": "10m", "memory": "1M"}, "limits": {"cpu": "100m", "memory": "80M"}}


def containers(
    vmi: VMI, hypervisor: Descriptor, settings: Installation, image: str, mounted: Mounted
) -> list[dict[str, Any]]:
    """The sharing containers, on the launcher's image."""
    if hypervisor.container:  # a container has directories mounted, without anybody in between
        return []
    shared = [wanted.name for wanted in vmi.spec.domain.devices.filesystems if wanted.virtiofs]
    return [
        _container(name, mount, settings, hypervisor, image) for name in shared if (mount := mounted.mount_of(name))
    ]


def _container(
    name: str, mount: dict[str, Any], settings: Installation, hypervisor: Descriptor, image: str
) -> dict[str, Any]:
    return {
        "name": f"virtiofs-{name}"[:63].rstrip("-"),
        **settings.pulled(image),
        "command": ["virtiofsd"],
        "args": [
            f"--socket-path={paths.virtiofs_socket(name)}",
            f"--shared-dir={mount['mountPath']}",
            "--sandbox=none",
            "--cache=auto",
        ],
        "resources": _RESOURCES,
        "securityContext": security.of_container(hypervisor),
        "volumeMounts": [{"name": "public", "mountPath": paths.SHARE}, mount],
    }
