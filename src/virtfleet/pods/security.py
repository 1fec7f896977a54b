"""What a launcher Pod may do: as little as the "restricted" pod security profile asks for.

The launcher and its hypervisor run as an ordinary user without capabilities. Hypervisors that are containers need the
kernel's help as root; their Pods say so, and a namespace under the restricted profile refuses them.
"""

from __future__ import annotations

from typing import Any

from virtfleet.domain.paths import USER
from virtfleet.hypervisors.base import Descriptor
from virtfleet.pods.settings import Settings

# The launcher answers DHCP itself, without the capability that ports below 1024 would need.
_FIRST_FREE_PORT = {"name": "net.ipv4.ip_unprivileged_port_start", "value": "67"}


def of_pod(hypervisor: Descriptor, settings: Settings) -> dict[str, Any]:
    user = 0 if hypervisor.root else USER
    context: dict[str, Any] = {
        "runAsUser": user,
        "runAsGroup": user,
        "runAsNonRoot": not hypervisor.root,
        "fsGroup": USER,
        "seccompProfile": {"type": "Unconfined"} if hypervisor.privileged else dict(settings.seccomp),
        "sysctls": [dict(_FIRST_FREE_PORT)],
    }
    if settings.selinux_type:
        context["seLinuxOptions"] = {"type": settings.selinux_type}
    return context


def of_container(hypervisor: Descriptor) -> dict[str, Any]:
    if hypervisor.privileged:
        return {"privileged": True}
    return {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}, "privileged": False}
