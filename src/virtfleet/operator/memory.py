"""Memory of the components that hear from people and guests: what they ask for, and the most that they get. Pure.

What anybody can make them hold is bounded in their code; the limit is for what was overlooked there, and hits the
component alone instead of the node. On a small cluster virt-api has 57 MiB and a handler 73. A handler holds at most
4 MiB of what one launcher says, 128 MiB of pictures, and starts a few short-lived helpers.
"""

from __future__ import annotations

_REQUESTS = {"virt-api": 80, "virt-controller": 64, "virt-operator": 64, "virt-handler": 96, "virt-dashboard": 64}
_API_LIMIT = 768
_HANDLER_BASE, _PER_VM = 384, 4


def resources(component: str, cpu: str, *, vms: int = 0) -> dict[str, dict[str, str]]:
    """Requests and limits of a component's container; `vms` is how many there may be on a handler's node."""
    limits = {
        "virt-api": _API_LIMIT,
        "virt-dashboard": _API_LIMIT,
        "virt-handler": _HANDLER_BASE + _PER_VM * vms,
    }
    most = {"limits": {"memory": f"{limits[component]}Mi"}} if component in limits else {}
    return {"requests": {"cpu": cpu, "memory": f"{_REQUESTS[component]}Mi"}, **most}
