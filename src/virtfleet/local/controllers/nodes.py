"""What the controllers keep of a Node: what decides where pods may run, and whether the node is alive."""

from __future__ import annotations

from typing import Any

import msgspec
import orjson

from virtfleet.api.selectors import node_selector_matches, tolerates
from virtfleet.local.controllers.pods import Template, amounts

NOT_READY = "node.kubernetes.io/not-ready"
UNREACHABLE = "node.kubernetes.io/unreachable"
UNSCHEDULABLE = "node.kubernetes.io/unschedulable"
# In the affinity of a pod.
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"


class NodeView(msgspec.Struct, frozen=True, eq=False):
    """One node, as far as controllers need it."""

    name: str
    uid: str = ""
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
        required = (template.affinity.get("nodeAffinity") or {}).get(REQUIRED)
        return node_selector_matches(required, self.labels, self.name)


def decode(data: bytes) -> NodeView:
    """A node's projection from its JSON."""
    node = orjson.loads(data)
    meta, spec, status = node["metadata"], node.get("spec") or {}, node.get("status") or {}
    conditions = {c["type"]: c for c in status.get("conditions") or ()}
    return NodeView(
        name=meta["name"],
        uid=meta.get("uid", ""),
        labels=meta.get("labels") or {},
        taints=tuple(spec.get("taints") or ()),
        unschedulable=bool(spec.get("unschedulable")),
        allocatable=amounts(status.get("allocatable")),
        conditions={kind: c["status"] for kind, c in conditions.items()},
        heartbeat=conditions.get("Ready", {}).get("lastHeartbeatTime") or "",
    )
