"""What a launcher Pod may do: as little as the "restricted" pod security profile asks for.

The launcher and its hypervisor run as an ordinary user without capabilities. A hypervisor whose launcher must be root
says which capabilities it needs, or that it must be privileged. Administrators list those of them that VMs may have,
and a namespace under the restricted profile refuses their Pods.
"""

from __future__ import annotations

from typing import Any

from virtfleet.domain.paths import USER, seccomp_profile
from virtfleet.hypervisors.base import Descriptor
from virtfleet.installation import Installation

# The launcher answers DHCP itself, without the capability that ports below 1024 would need.
FIRST_FREE_PORT = {"name": "net.ipv4.ip_unprivileged_port_start", "value": "67"}

_MAY_MOUNT = "spc_t"  # the SELinux type that privileged containers have; ordinary ones may not mount
CONFINED = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}, "privileged": False}


def of_pod(hypervisor: Descriptor, settings: Installation) -> dict[str, Any]:
    user = 0 if hypervisor.root else USER
    context: dict[str, Any] = {
        "runAsUser": user,
        "runAsGroup": user,
        "runAsNonRoot": not hypervisor.root,
        "fsGroup": USER,
        "seccompProfile": _seccomp(hypervisor, settings),
    }
    if selinux := settings.configuration.selinux_launcher_type or (_MAY_MOUNT if hypervisor.capabilities else ""):
        context["seLinuxOptions"] = {"type": selinux}
    return context


def _seccomp(hypervisor: Descriptor, settings: Installation) -> dict[str, str]:
    """The runtime's own profile, but for launchers with capabilities, whose calls it may forbid all the same.

    virt-handler puts theirs on its node. One that the administrator chose goes before both.
    """
    if hypervisor.privileged:
        return {"type": "Unconfined"}
    if hypervisor.capabilities and settings.seccomp["type"] == "RuntimeDefault":
        return {"type": "Localhost", "localhostProfile": seccomp_profile(hypervisor.name)}
    return dict(settings.seccomp)


def of_container(hypervisor: Descriptor) -> dict[str, Any]:
    if hypervisor.privileged:
        return {"privileged": True}
    if hypervisor.capabilities:
        return {
            "privileged": False,
            "capabilities": {"drop": ["ALL"], "add": list(hypervisor.capabilities)},
            "appArmorProfile": {"type": "Unconfined"},  # runtimes' own profiles forbid to mount
        }
    return dict(CONFINED)
