"""A VM that moves keeps its address: the Pod that it moves into has that of the Pod which it leaves.

Both have the same hardware address, too, so that neighbours, Services and connections notice nothing: the bridge looks
for it where it was last heard of. The new Pod is silent until the guest runs in it, and is heard of with the guest's
first word. KubeVirt tells networks so, by an annotation of the Pod; then the agent of its node takes the old Pod off
the bridge, which all nodes share.
"""

from __future__ import annotations

from typing import NamedTuple

from virtfleet.api import names
from virtfleet.kube.api import KubeApi
from virtfleet.kube.resource import PODS, VMIS, Obj


class Predecessor(NamedTuple):
    """The Pod that a VM moves out of."""

    uid: str
    address: str


async def predecessor(api: KubeApi, pod: Obj) -> Predecessor | None:
    """Whose address a Pod is to have; None for an address of its own."""
    vmi = vmi_of(pod)
    if not vmi or names.MIGRATION_UID not in _labels(pod) or pod["spec"].get("hostNetwork"):
        return None
    namespace, uid = pod["metadata"]["namespace"], pod["metadata"]["uid"]
    for other in await api.list(PODS, namespace, labels=f"{names.CREATED_BY}={vmi}"):
        status = other.get("status") or {}
        # It has its address for as long as it runs.
        address = status.get("podIP") if status.get("phase") == "Running" else None
        if (
            address
            and vmi_of(other) == vmi
            and other["metadata"]["uid"] != uid
            and not other["spec"].get("hostNetwork")
        ):
            return Predecessor(other["metadata"]["uid"], address)
    return None


def succeeds(pod: Obj) -> bool:
    """Whether the guest has come to run in this Pod."""
    return bool((pod["metadata"].get("annotations") or {}).get(names.MIGRATION_TARGET_READY))


def _labels(pod: Obj) -> dict[str, str]:
    return pod["metadata"].get("labels") or {}


def vmi_of(pod: Obj) -> str:
    """UID of the VMI that a Pod belongs to, by what ties their lives together and not by a label alone."""
    owners = pod["metadata"].get("ownerReferences") or ()
    owner = next((o["uid"] for o in owners if o.get("controller") and o["kind"] == VMIS.kind), "")
    return owner if owner == _labels(pod).get(names.CREATED_BY) else ""
