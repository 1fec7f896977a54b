"""Proof that new images work on a node, given before the handler that serves it is taken away. Pure.

A proof is a Pod of a moment on that very node. It pulls the images that the new handler will need, runs what comes
before the handler (the launcher image's look at the node) and starts the new handler's program far enough to see that
it is one. It has no token, no directory of the host, and is no handler: it takes no lock and touches no VM. Its name
says what it proves, so that an operator that was killed in between finds it again. The kubelet tries again what fails.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from typing import Any

from virtfleet.api import names
from virtfleet.installation import Installation
from virtfleet.kube.resource import Obj
from virtfleet.operator import deployments
from virtfleet.operator.handlerpods import HandlerPod
from virtfleet.operator.handlers import VIRT_HANDLER
from virtfleet.operator.objects import TRIAL, digest, own_pod

PROOF = "virt-handler-proof"
"""Component of these Pods, and the beginning of their names."""

AGAIN = timedelta(minutes=1)
"""After this time a Pod that the node refused is made anew."""


def images(daemon_set: Obj) -> frozenset[str]:
    """What must be on a node for a handler of the DaemonSet to come up."""
    spec = daemon_set["spec"]["template"]["spec"]
    return frozenset(c["image"] for c in (*(spec.get("initContainers") or ()), *_handler(spec)))


class Asking:
    """Pods that are needed now, found out by asking for them; `there` are those that exist."""

    def __init__(self, installation: Installation, there: Iterable[HandlerPod]) -> None:
        self.installation = installation
        self.there = {pod.metadata.name: pod for pod in there}
        self.needed: dict[str, Obj] = {}
        self.failure = ""
        """Why one of them does not come up."""

    def ask(self, wanted: Obj, trouble: str) -> HandlerPod | None:
        """The Pod if it is there; `trouble` is what it means that it does not come up."""
        name = wanted["metadata"]["name"]
        self.needed[name] = wanted
        there = self.there.get(name)
        if there and there.failure and not self.failure:
            self.failure = f"{trouble}: {there.failure}"
        return there


class Proving(Asking):
    """The proofs that are needed now."""

    def proven(self, daemon_set: Obj, node: str, pod: HandlerPod | None = None) -> bool:
        """Whether a handler of the DaemonSet may come to the node, in the place of the Pod if there is one."""
        if pod and (pod.ending or pod.failure or images(daemon_set) <= pod.images):
            return True  # nothing is lost with it, or what comes is on the node already
        stays = f", so {pod.metadata.name} stays" if pod else ""
        trouble = f"{daemon_set['metadata']['name']} does not work on {node}{stays}"
        there = self.ask(render(self.installation, daemon_set, node), trouble)
        return there is not None and not there.ending and there.status.phase == "Succeeded"


def render(installation: Installation, daemon_set: Obj, node: str) -> Obj:
    spec = daemon_set["spec"]["template"]["spec"]
    # As they will run, but for the amounts: a proof must fit beside the handler that it is to replace.
    before = [{k: v for k, v in each.items() if k != "resources"} for each in spec.get("initContainers") or ()]
    mounted = sorted({mount["name"] for container in before for mount in container.get("volumeMounts") or ()})
    content = {
        **TRIAL,
        "nodeName": node,
        "restartPolicy": "OnFailure",
        "initContainers": before,
        "containers": [
            {
                **{key: container[key] for key in ("name", "image", "imagePullPolicy") if key in container},
                "args": ["--help"],
                "securityContext": deployments.RESTRICTED,
            }
            for container in _handler(spec)
        ],
        "volumes": [{"name": name, "emptyDir": {}} for name in mounted],
        **{field: spec[field] for field in ("imagePullSecrets", "priorityClassName") if spec.get(field)},
    }
    return own_pod(installation, f"{PROOF}-{digest(content)}", {names.APP_LABEL: PROOF}, content)


def stale(proof: HandlerPod, now: datetime) -> bool:
    """Whether it ended without an answer long enough ago to be tried again."""
    created = proof.metadata.creation_timestamp
    return proof.status.phase == "Failed" and created is not None and now - created > AGAIN


def _handler(spec: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [container for container in spec["containers"] if container["name"] == VIRT_HANDLER]
