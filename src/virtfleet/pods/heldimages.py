"""Images of disks and kernels, as containers of the launcher Pod hold them where they cannot be volumes. Pure.

Not every container runtime mounts images as volumes; nodes say by a label whether theirs was seen to do so. Where one
that the Pod may go to was not, the Pod has a container of each image instead, which does nothing. virt-handler mounts
the root of that container where the volume would have been: nothing is copied, and the launcher sees no difference.
Such a container needs a program that runs in any image: the launcher's own first process, which is linked statically.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from virtfleet.api import names
from virtfleet.api.selectors import node_selector_matches
from virtfleet.domain import paths
from virtfleet.installation import Installation
from virtfleet.pods import security
from virtfleet.pods.volumes import HeldImage, Mounted

_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
_TOOLS, _TOOLS_PATH = "container-disk-binary", "/virtfleet-tools"
_PROGRAM = "/usr/bin/catatonit"
_WAITING = "-P"  # until it is told to end
# The same amounts for both, so that a Pod whose CPUs are its own can keep them.
_AMOUNTS = {"cpu": "10m", "memory": "40M"}
_RESOURCES = {"requests": _AMOUNTS, "limits": _AMOUNTS}

Nodes = Mapping[str, Mapping[str, str]]
"""Names and labels."""


def needed(placement: Mapping[str, Any], nodes: Nodes) -> bool:
    """Whether one of the nodes that the Pod may go to was not seen to mount images."""
    lacking = {name: labels for name, labels in nodes.items() if labels.get(names.IMAGE_VOLUMES) != "true"}
    if not lacking:
        return False
    return any(_fits(placement, *node) for node in lacking.items()) or not any(
        _fits(placement, *node) for node in nodes.items()
    )


def _fits(placement: Mapping[str, Any], name: str, labels: Mapping[str, str]) -> bool:
    required = ((placement.get("affinity") or {}).get("nodeAffinity") or {}).get(_REQUIRED)
    selected = all(labels.get(key) == value for key, value in placement["nodeSelector"].items())
    return selected and node_selector_matches(required, labels, name)


def containers(mounted: Mounted, settings: Installation, launcher_image: str) -> list[dict[str, Any]]:
    """One that brings the program, and one of each image, which runs until the launcher has ended."""
    if not mounted.held:
        return []
    mounted.volumes.append({"name": _TOOLS, "emptyDir": {}})
    common = {"resources": _RESOURCES, "securityContext": security.CONFINED}
    tools = {"name": _TOOLS, "mountPath": _TOOLS_PATH}
    bringing = {
        "name": _TOOLS,
        **settings.pulled(launcher_image),
        "command": ["/bin/cp", _PROGRAM, f"{_TOOLS_PATH}/{paths.IMAGE_HOLDER}"],
        "volumeMounts": [tools],
        **common,
    }
    to_run = {"volumeMounts": [{**tools, "readOnly": True}]}
    return [bringing, *({**_holder(image), **to_run, **common} for image in mounted.held)]


def _holder(image: HeldImage) -> dict[str, Any]:
    return {
        "name": f"container-disk-{paths.held_name(image.path)}",
        "image": image.reference,
        **({"imagePullPolicy": image.pull_policy} if image.pull_policy else {}),
        "command": [f"{_TOOLS_PATH}/{paths.IMAGE_HOLDER}", _WAITING],
        "env": [{"name": paths.HELD_AT, "value": image.path}],
        "restartPolicy": "Always",  # it starts before the launcher, and is ended after it
    }
