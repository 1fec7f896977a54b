"""What the components ask for, and the most that those get which hear from people and guests. Pure.

CPU that is asked for is the weight beside guests when a node is busy, which have 100m for each CPU. With KubeVirt's 10m
a handler is last in line where ten VMs start at once, and all of them wait for it: the last one ran after 20 s, not 10.

What anybody can make them hold is bounded in their code; the limit is for what was overlooked there, and hits the
component alone instead of the node. On a small cluster virt-api has 57 MiB and a handler 73. A handler holds at most
4 MiB of what one launcher says, 128 MiB of pictures, and starts a few short-lived helpers.
"""

from __future__ import annotations

_MEMORY = {"virt-api": 80, "virt-controller": 64, "virt-operator": 64, "virt-handler": 96, "virt-dashboard": 64}
_CPU = {"virt-api": "20m", "virt-controller": "50m", "virt-handler": "100m"}
_API_LIMIT = 768
_HANDLER_BASE, _PER_VM = 384, 4


def of(component: str, *, vms: int = 0) -> dict[str, dict[str, str]]:
    """Requests and limits of a component's container; `vms` is how many there may be on a handler's node."""
    limits = {
        "virt-api": _API_LIMIT,
        "virt-dashboard": _API_LIMIT,
        "virt-handler": _HANDLER_BASE + _PER_VM * vms,
    }
    most = {"limits": {"memory": f"{limits[component]}Mi"}} if component in limits else {}
    return {"requests": {"cpu": _CPU.get(component, "5m"), "memory": f"{_MEMORY[component]}Mi"}, **most}
