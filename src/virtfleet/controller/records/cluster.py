"""Records of nodes and of claims."""

from __future__ import annotations

from typing import Any

import msgspec

from virtfleet.api import names
from virtfleet.controller.records.kept import Kept, Record
from virtfleet.kube.cache import Cache
from virtfleet.kube.resource import NODES, PERSISTENT_VOLUME_CLAIMS


class Taint(Record):
    key: str = ""
    value: str = ""
    effect: str = ""


class NodeSpec(Record):
    unschedulable: bool = False
    taints: list[Taint] = []


class NodeRecord(Kept):
    """A node."""

    resource = NODES
    spec: NodeSpec = msgspec.field(default_factory=NodeSpec)

    def tainted(self, key: str, effect: str) -> bool:
        return any((taint.key, taint.effect) == (key, effect) for taint in self.spec.taints)

    @property
    def drained(self) -> bool:
        """Whether it is cordoned, or was when VMs left it."""
        return self.spec.unschedulable or bool(self.metadata.annotations.drained)

    @property
    def out_of_service(self) -> bool:
        """Whether an administrator says that nothing runs there any more."""
        return any(taint.key == names.OUT_OF_SERVICE for taint in self.spec.taints)


class ClaimSpec(Record):
    volume_name: str = ""
    access_modes: list[str] = []
    volume_mode: str = "Filesystem"
    resources: dict[str, Any] = {}


class ClaimStatus(Record):
    phase: str = ""
    capacity: dict[str, Any] = {}


class Claim(Kept):
    """A claim of a volume."""

    resource = PERSISTENT_VOLUME_CLAIMS
    spec: ClaimSpec = msgspec.field(default_factory=ClaimSpec)
    status: ClaimStatus = msgspec.field(default_factory=ClaimStatus)

    @property
    def block(self) -> bool:
        return self.spec.volume_mode == "Block"

    @property
    def bound(self) -> bool:
        return self.status.phase == "Bound"

    @property
    def filled(self) -> bool:
        """Whether an importer has seen its disk through."""
        return self.metadata.annotations.filling_phase == "Succeeded"


def labels_of(nodes: Cache[NodeRecord]) -> dict[str, dict[str, str]]:
    """Labels of all nodes, by their names."""
    return {node.name: node.metadata.labels for node in nodes.list()}


decode_node = msgspec.json.Decoder(NodeRecord).decode
decode_claim = msgspec.json.Decoder(Claim).decode
