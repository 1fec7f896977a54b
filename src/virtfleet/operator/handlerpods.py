"""What the operator keeps of handlers' Pods: whose they are, what they were made of, and whether they work."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta

import msgspec

from virtfleet.api import names
from virtfleet.operator.handlers import CONTENT

RESTARTED = "kubectl.kubernetes.io/restartedAt"
"""Put into a template by `kubectl rollout restart`."""

STARTING = timedelta(minutes=2)
"""A handler that is not ready after this time has trouble; the startup probe gives it as long."""

# Why a container waits, where waiting does not help.
_FAILURES = frozenset(
    (
        "CrashLoopBackOff",
        "ErrImagePull",
        "ImagePullBackOff",
        "InvalidImageName",
        "ErrImageNeverPull",
        "CreateContainerConfigError",
        "CreateContainerError",
        "RunContainerError",
    )
)


class _Waiting(msgspec.Struct):
    reason: str = ""
    message: str = ""


class _State(msgspec.Struct):
    waiting: _Waiting | None = None


class _Container(msgspec.Struct):
    name: str = ""
    state: _State | None = None


class _Owner(msgspec.Struct):
    kind: str = ""
    name: str = ""


class _Meta(msgspec.Struct, rename="camel"):
    name: str
    uid: str = ""
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}
    creation_timestamp: datetime | None = None
    deletion_timestamp: str | None = None
    owner_references: list[_Owner] = []


class _Condition(msgspec.Struct):
    type: str = ""
    status: str = ""


class _Spec(msgspec.Struct, rename="camel"):
    node_name: str = ""


class _Status(msgspec.Struct, rename="camel"):
    conditions: list[_Condition] = []
    container_statuses: list[_Container] = []
    init_container_statuses: list[_Container] = []


class HandlerPod(msgspec.Struct):
    """What the operator keeps of a handler's Pod."""

    metadata: _Meta
    spec: _Spec = msgspec.field(default_factory=_Spec)
    status: _Status = msgspec.field(default_factory=_Status)

    @property
    def daemon_set(self) -> str:
        return next((o.name for o in self.metadata.owner_references if o.kind == "DaemonSet"), "")

    @property
    def pool(self) -> str:
        return self.metadata.labels.get(names.HANDLER_POOL, "")

    def made_from(self, template: Mapping[str, str]) -> bool:
        """Whether the Pod is what its DaemonSet would make now, given the annotations of the DaemonSet's template."""
        marks = [CONTENT, RESTARTED] if RESTARTED in template else [CONTENT]
        return all(self.metadata.annotations.get(mark) == template.get(mark) for mark in marks)

    @property
    def ending(self) -> bool:
        return self.metadata.deletion_timestamp is not None

    @property
    def ready(self) -> bool:
        return not self.ending and any(c.type == "Ready" and c.status == "True" for c in self.status.conditions)

    def starting(self, now: datetime) -> bool:
        """Whether it is not ready because it has only just begun."""
        created = self.metadata.creation_timestamp
        return not self.ready and not self.failure and created is not None and now - created < STARTING

    @property
    def failure(self) -> str:
        """Why it will not come up, in words; empty where it may."""
        for container in (*self.status.init_container_statuses, *self.status.container_statuses):
            waiting = container.state.waiting if container.state else None
            if waiting and waiting.reason in _FAILURES:
                who = f"container {container.name} of {self.metadata.name} on {self.spec.node_name}"
                return f"{who}: {waiting.reason}" + (f": {waiting.message}" if waiting.message else "")
        return ""


decode_pod = msgspec.json.Decoder(HandlerPod).decode
