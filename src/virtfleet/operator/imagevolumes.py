"""Whether the container runtime of a node mounts images as volumes: tried on each node by a Pod of a moment. Pure.

Versions do not tell: it takes the runtime, the kubelet and the API server, and settings of all of them. So a Pod on the
node has the image of the node's handler, which is there already, as a volume, and looks into it. What came of it is a
label of the node, with the versions of then beside it: a node that is updated is tried again. It is the operator that
tries, because a handler that could make Pods could have them run on other nodes. A label without versions is somebody
else's word and is left alone.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from virtfleet.api import names
from virtfleet.installation import Installation
from virtfleet.kube.resource import Obj
from virtfleet.operator import deployments
from virtfleet.operator.handlerpods import IMAGE_TRIAL, HandlerPod
from virtfleet.operator.handlers import VIRT_HANDLER
from virtfleet.operator.objects import TRIAL, digest, own_pod
from virtfleet.operator.world import NodeView

AT_ONCE = 20
# What a kubelet says of a container that its runtime did not make, because it knows no such mount.
_NOT_MADE = ("CreateContainerError", "RunContainerError", "CreateContainerConfigError")
_AT = "/image"


@dataclass(slots=True)
class Trials:
    """What is to be done about it now."""

    wanted: dict[str, Obj] = field(default_factory=dict)
    """Pods that should exist, by their names."""
    answers: dict[str, Obj] = field(default_factory=dict)
    """Changes of nodes' metadata, by the nodes' names."""
    over: list[HandlerPod] = field(default_factory=list)
    """Pods that have said what they can, or that nobody asks any more."""


def look(
    installation: Installation, nodes: Iterable[NodeView], handlers: Iterable[HandlerPod], there: Iterable[HandlerPod]
) -> Trials:
    """Over all nodes with a handler that works; `there` are the Pods that were made for this before."""
    serving = {pod.node: pod for pod in handlers if pod.ready}
    by_name = {pod.metadata.name: pod for pod in there}
    trials = Trials()
    for node in nodes:
        handler = serving.get(node.name)
        known = names.IMAGE_VOLUMES in node.labels and node.image_volumes_of in ("", node.runtime)
        if handler is None or not node.ready or known:
            continue
        trial = render(installation, node, handler.image(VIRT_HANDLER))
        pod = by_name.get(trial["metadata"]["name"])
        verdict = _said(pod) if pod else None
        if verdict is not None:
            trials.answers[node.name] = answer(node, verdict)
        elif len(trials.wanted) < AT_ONCE:
            trials.wanted[trial["metadata"]["name"]] = trial
    trials.over = [pod for name, pod in by_name.items() if name not in trials.wanted]
    return trials


def _said(pod: HandlerPod) -> bool | None:
    """What the Pod shows; None while it shows nothing."""
    if pod.status.phase in ("Succeeded", "Failed"):
        return pod.status.phase == "Succeeded"
    waiting = [c.state.waiting.reason for c in pod.status.container_statuses if c.state and c.state.waiting]
    return False if any(reason in _NOT_MADE for reason in waiting) else None


def answer(node: NodeView, works: bool) -> Obj:
    label = {names.IMAGE_VOLUMES: "true" if works else "false"}
    return {"labels": label, "annotations": {names.IMAGE_VOLUMES_OF: node.runtime}}


def render(installation: Installation, node: NodeView, image: str) -> Obj:
    container = {
        "name": "look",
        "image": image,
        "imagePullPolicy": "IfNotPresent",
        "command": ["/bin/ls", f"{_AT}/usr/bin/python3"],
        "volumeMounts": [{"name": "image", "mountPath": _AT, "readOnly": True}],
        "securityContext": deployments.RESTRICTED,
    }
    content = {
        **TRIAL,
        "nodeName": node.name,
        "restartPolicy": "Never",
        "securityContext": deployments.RESTRICTED_POD,
        "containers": [container],
        "volumes": [{"name": "image", "image": {"reference": image, "pullPolicy": "IfNotPresent"}}],
        **installation.pulling(),
    }
    name = f"{IMAGE_TRIAL}-{digest([content, node.runtime])}"
    return own_pod(installation, name, {names.APP_LABEL: IMAGE_TRIAL}, content)
