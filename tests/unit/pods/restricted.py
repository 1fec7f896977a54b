"""The "restricted" pod security profile, written from its documentation; shares no code with VirtFleet."""

from __future__ import annotations

from typing import Any

_VOLUMES = {
    "configMap",
    "csi",
    "downwardAPI",
    "emptyDir",
    "ephemeral",
    "image",
    "persistentVolumeClaim",
    "projected",
    "secret",
}
_SYSCTLS = {"kernel.shm_rmid_forced", "net.ipv4.ip_local_port_range", "net.ipv4.ip_unprivileged_port_start"}
_SELINUX_TYPES = {"", "container_t", "container_init_t", "container_kvm_t", "container_engine_t"}


def violations(pod: dict[str, Any]) -> set[str]:
    """What a namespace that enforces the profile would complain about."""
    spec, found = pod["spec"], set()
    of_pod = spec.get("securityContext", {})
    found |= {f for f in ("hostNetwork", "hostPID", "hostIPC") if spec.get(f)}
    found |= {s["name"] for s in of_pod.get("sysctls", ()) if s["name"] not in _SYSCTLS}
    if of_pod.get("seLinuxOptions", {}).get("type", "") not in _SELINUX_TYPES:
        found.add("seLinuxOptions")
    for volume in spec.get("volumes", ()):
        found |= {kind for kind in volume if kind != "name" and kind not in _VOLUMES}
    for container in (*spec.get("initContainers", ()), *spec["containers"]):
        own = container.get("securityContext", {})
        if own.get("privileged"):
            found.add("privileged")
        if own.get("allowPrivilegeEscalation") is not False:
            found.add("allowPrivilegeEscalation")
        capabilities = own.get("capabilities", {})
        if capabilities.get("drop") != ["ALL"] or set(capabilities.get("add", ())) - {"NET_BIND_SERVICE"}:
            found.add("capabilities")
        if not own.get("runAsNonRoot", of_pod.get("runAsNonRoot")):
            found.add("runAsNonRoot")
        if own.get("runAsUser", of_pod.get("runAsUser")) == 0:
            found.add("runAsUser")
        profile = own.get("seccompProfile", of_pod.get("seccompProfile", {}))
        if profile.get("type") not in ("RuntimeDefault", "Localhost"):
            found.add("seccompProfile")
        found |= {"hostPort" for port in container.get("ports", ()) if port.get("hostPort")}
    return found
