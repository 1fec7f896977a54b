"""What the controllers keep of a Node: what decides where pods may run, and whether the node is alive."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import msgspec

from virtfleet.api.selectors import node_selector_matches, tolerates
from virtfleet.local.controllers.pods import Template, amounts

NOT_READY = "node.kubernetes.io/not-ready"
UNREACHABLE = "node.kubernetes.io/unreachable"
UNSCHEDULABLE = "node.kubernetes.io/unschedulable"


class Node(msgspec.Struct, frozen=True, eq=False):
    """One node, as far as controllers need it."""

    name: str
    uid: str = ""
    created: float = 0.0
    labels: dict[str, str] = {}
    taints: tuple[dict[str, Any], ...] = ()
    unschedulable: bool = False
    allocatable: dict[str, int] = {}
    conditions: dict[str, str] = {}  # type -> status
    heartbeat: str = ""  # of the Ready condition, as it is written

    @property
    def ready(self) -> str:
        """True, False, Unknown, or nothing where the node never reported."""
        return self.conditions.get("Ready", "")

    def untolerated(self, tolerations: tuple[dict[str, Any], ...], *effects: str) -> dict[str, Any] | None:
        """The first taint with one of the effects that the tolerations do not cover."""
        return next((t for t in self.taints if t.get("effect") in effects and not tolerates(tolerations, t)), None)

    def admits(self, template: Template) -> bool:
        """Whether node selector and required node affinity, which must both hold, let the template's pods in."""
        if any(self.labels.get(key) != value for key, value in template.node_selector.items()):
            return False
        affinity = template.affinity.get("nodeAffinity") or {}
        required = affinity.get("requiredDuringSchedulingIgnoredDuringExecution")
        return node_selector_matches(required, self.labels, self.name)


class _Metadata(msgspec.Struct):
    name: str
    uid: str = ""
    labels: dict[str, str] | None = None
    created: datetime | None = msgspec.field(default=None, name="creationTimestamp")


class _Spec(msgspec.Struct):
    taints: list[dict[str, Any]] | None = None
    unschedulable: bool | None = None


class _Condition(msgspec.Struct, rename="camel"):
    type: str
    status: str
    last_heartbeat_time: str | None = None


class _Status(msgspec.Struct):
    allocatable: dict[str, str | int | float] | None = None
    conditions: list[_Condition] | None = None


class _Node(msgspec.Struct):
    metadata: _Metadata
    spec: _Spec = msgspec.field(default_factory=_Spec)
    status: _Status = msgspec.field(default_factory=_Status)


_decoder = msgspec.json.Decoder(_Node)


def decode(data: bytes) -> Node:
    """A node's projection from its JSON."""
    node = _decoder.decode(data)
    ready = next((c for c in node.status.conditions or () if c.type == "Ready"), None)
    return Node(
        name=node.metadata.name,
        uid=node.metadata.uid,
        created=node.metadata.created.timestamp() if node.metadata.created else 0.0,
        labels=node.metadata.labels or {},
        taints=tuple(node.spec.taints or ()),
        unschedulable=bool(node.spec.unschedulable),
        allocatable=amounts(node.status.allocatable),
        conditions={c.type: c.status for c in node.status.conditions or ()},
        heartbeat=(ready.last_heartbeat_time if ready else None) or "",
    )
