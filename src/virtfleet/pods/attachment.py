"""The Pod that attaches a claim to the node of a running VM: it holds the volume, and does nothing.

One for each volume, so that no volume waits for another one, and nothing of what is in use is touched when another is
plugged in. It is the launcher Pod's: it runs on the same node from the same image, and goes when that does. Its name
follows from what it holds and from the Pod that it takes over from, so that there is one of each, whoever asks for it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from virtfleet.api import names
from virtfleet.domain import paths
from virtfleet.hypervisors.base import Descriptor
from virtfleet.installation import Installation
from virtfleet.pods import security
from virtfleet.pools.placement import near

VOLUME = "volume"
# Its process ends only when it is killed. A Pod that somebody deletes or evicts so holds its volume until there is
# another one.
GRACE = 30
_COMMAND = ["busybox", "sleep", "infinity"]
PROCESS = "busybox"
_RESOURCES = {"requests": {"cpu": "1m", "memory": "2Mi"}, "limits": {"cpu": "100m", "memory": "80Mi"}}
# The VM is there, whatever has become of its node meanwhile.
_TAINTS = ("not-ready", "unreachable", "unschedulable", "disk-pressure", "memory-pressure", "pid-pressure")


@dataclass(frozen=True, slots=True)
class Launcher:
    """What is known of the launcher Pod."""

    name: str
    uid: str
    namespace: str
    node: str
    image: str
    tolerations: Sequence[dict[str, Any]] = ()
    pull_secrets: Sequence[dict[str, Any]] = ()


@dataclass(frozen=True, slots=True)
class Held:
    """What the Pod holds."""

    volume: str
    claim: str
    block: bool = False
    read_only: bool = False


def name(launcher: str, held: Held, before: str = "") -> str:
    """The name of the Pod for a volume of a launcher Pod; `before` is the UID of one that ends."""
    what = "/".join((launcher, held.volume, held.claim, before))
    return f"hp-volume-{hashlib.blake2s(what.encode(), digest_size=8).hexdigest()}"


def render(
    launcher: Launcher, held: Held, hypervisor: Descriptor, settings: Installation, *, vmi: tuple[str, str], before: str
) -> dict[str, Any]:
    """The Pod. `vmi` are the name and the UID of the VMI that it is for."""
    place = paths.attached(held.volume, block=held.block)
    container: dict[str, Any] = {
        "name": names.HOTPLUG_APP,
        **settings.pulled(launcher.image),
        "command": _COMMAND,
        "resources": _RESOURCES,
        "securityContext": security.of_container(hypervisor),
        **(
            {"volumeDevices": [{"name": VOLUME, "devicePath": place}]}
            if held.block
            else {"volumeMounts": [{"name": VOLUME, "mountPath": place, "readOnly": held.read_only}]}
        ),
    }
    owner = {"apiVersion": "v1", "kind": "Pod", "name": launcher.name, "uid": launcher.uid, "controller": True}
    on_the_node = {"key": "kubernetes.io/hostname", "operator": "In", "values": [launcher.node]}
    stays = [{"key": f"node.kubernetes.io/{taint}", "operator": "Exists"} for taint in _TAINTS]
    claim = {"claimName": held.claim, "readOnly": held.read_only}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name(launcher.uid, held, before),
            "namespace": launcher.namespace,
            "labels": {names.APP_LABEL: names.HOTPLUG_APP},
            "annotations": {
                names.OWNER_VMI_NAME: vmi[0],
                names.OWNER_VMI_UID: vmi[1],
                names.ATTACHED_VOLUME: held.volume,
            },
            "ownerReferences": [{**owner, "blockOwnerDeletion": False}],
        },
        "spec": {
            "affinity": near({}, [{"matchExpressions": [on_the_node]}]),
            "tolerations": [*stays, *(each for each in launcher.tolerations if each not in stays)],
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            "terminationGracePeriodSeconds": GRACE,
            "securityContext": security.of_pod(hypervisor, settings),
            "containers": [container],
            "volumes": [{"name": VOLUME, "persistentVolumeClaim": claim}],
            **({"imagePullSecrets": list(launcher.pull_secrets)} if launcher.pull_secrets else {}),
        },
    }
