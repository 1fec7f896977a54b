"""What the operator keeps of handlers' Pods: whose they are, what they were made of, and whether they work."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from datetime import datetime, timedelta

import msgspec

from virtfleet.api import names
from virtfleet.kube.pods import PodView
from virtfleet.operator.handlers import CONTENT, VIRT_HANDLER, attachment
from virtfleet.pods.networks import NETWORK_STATUS

RESTARTED = "kubectl.kubernetes.io/restartedAt"
"""Put into a template by `kubectl rollout restart`."""

IMAGE_TRIAL = "virt-image-volume-probe"
"""Component of the Pods of `imagevolumes`, and the beginning of their names."""

STARTING = timedelta(minutes=2)
"""A handler that is not ready after this time has trouble; the startup probe gives it as long."""

# Why a container waits, where waiting does not help.
_FAILURES = frozenset((*names.STUCK, "CrashLoopBackOff", "RunContainerError"))


class _Attachment(msgspec.Struct):
    interface: str = ""


class HandlerPod(PodView):
    """What the operator keeps of a handler's Pod, of a proof, and of a Pod of the control plane."""

    @property
    def daemon_set(self) -> str:
        return next((o.name for o in self.metadata.owner_references if o.kind == "DaemonSet"), "")

    @property
    def pool(self) -> str:
        return self.metadata.labels.get(names.HANDLER_POOL, "")

    @property
    def component(self) -> str:
        return self.metadata.labels.get(names.APP_LABEL, "")

    @property
    def stand_in(self) -> bool:
        return names.STAND_IN in self.metadata.labels

    @property
    def started(self) -> bool:
        """Whether a handler has come up: it serves its node, or waits at the node's lock until it may."""
        return self.ready or any(c.name == VIRT_HANDLER and c.started for c in self.status.container_statuses)

    @property
    def images(self) -> frozenset[str]:
        """What must be on the node for such a Pod to come up."""
        return frozenset((*(c.image for c in self.spec.init_containers), self.image(VIRT_HANDLER)))

    def lacks(self, network: str) -> bool:
        """Whether Multus was asked to put it on the network of migrations, and does not say that it has."""
        said = self.metadata.annotations
        try:
            attached = msgspec.json.decode(said.get(NETWORK_STATUS, "[]"), type=list[_Attachment])
        except msgspec.DecodeError:
            attached = []
        on_it = any(each.interface == names.MIGRATION_INTERFACE for each in attached)
        return attachment(network).items() <= said.items() and not on_it

    def made_from(self, template: Mapping[str, str]) -> bool:
        """Whether the Pod is what its DaemonSet would make now, given the annotations of the DaemonSet's template."""
        marks = [CONTENT, RESTARTED] if RESTARTED in template else [CONTENT]
        return all(self.metadata.annotations.get(mark) == template.get(mark) for mark in marks)

    def starting(self, now: datetime) -> bool:
        """Whether it is not ready because it has only just begun."""
        created = self.metadata.creation_timestamp
        return not self.ready and not self.failure and created is not None and now - created < STARTING

    @property
    def failure(self) -> str:
        """Why it will not come up, in words; empty where it may."""
        if self.status.phase == "Failed":
            return f"{self.metadata.name} on {self.node} has failed: {self.status.message or 'for no reason'}"
        for container in (*self.status.init_container_statuses, *self.status.container_statuses):
            waiting = container.state.waiting
            if waiting and waiting.reason in _FAILURES:
                who = f"container {container.name} of {self.metadata.name} on {self.node}"
                image = self.image(container.name)
                asked = f"{who} (image {image})" if image else who
                return f"{asked}: {waiting.reason}" + (f": {waiting.message}" if waiting.message else "")
        return ""

    def image(self, container: str) -> str:
        """The image that a container asks for: its status may name what it was resolved to."""
        asked = (*self.spec.init_containers, *self.spec.containers)
        return next((c.image for c in asked if c.name == container), "")

    def trouble(self, now: datetime) -> str:
        """Why its node is not served, beyond the time that a change takes; empty where all is well."""
        if self.ready or self.starting(now):
            return ""
        ends = self.metadata.deletion_timestamp
        if ends:
            return f"{self.metadata.name} does not end" if now > ends else ""
        unscheduled = next((c.message for c in self.status.conditions if c.type == "PodScheduled" and c.message), "")
        return self.failure or unscheduled or f"{self.metadata.name} is not ready"


def unserved(pods: Iterable[HandlerPod], down: Container[str], now: datetime) -> dict[str, str]:
    """Nodes that should have a handler and have none that is ready: name -> why. Changes under way are left out.

    `down` are nodes that are not Ready themselves.
    """
    pods = list(pods)
    served = {pod.node for pod in pods if pod.ready and pod.node not in down}
    reasons: dict[str, str] = {}
    for pod in sorted(pods, key=lambda pod: pod.metadata.name):
        node = pod.node or "no node yet"
        why = "the node itself is not Ready" if node in down else pod.trouble(now)
        if why and node not in served:
            reasons.setdefault(node, why)
    return reasons


decode_pod = msgspec.json.Decoder(HandlerPod).decode
