"""What components look at in Pods: whose they are, where they run, and whether they work."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import msgspec


class Waiting(msgspec.Struct):
    reason: str = ""
    message: str = ""


class ContainerState(msgspec.Struct):
    waiting: Waiting | None = None
    running: dict[str, Any] | None = None
    terminated: dict[str, Any] | None = None


class ContainerStatus(msgspec.Struct, rename="camel"):
    name: str = ""
    ready: bool = False
    started: bool | None = None
    restart_count: int = 0
    resources: dict[str, Any] | None = None
    state: ContainerState = msgspec.field(default_factory=ContainerState)
    last_state: ContainerState = msgspec.field(default_factory=ContainerState)


class _Container(msgspec.Struct):
    name: str = ""
    image: str = ""


class _Owner(msgspec.Struct):
    kind: str = ""
    name: str = ""


class _Meta(msgspec.Struct, rename="camel"):
    name: str
    uid: str = ""
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}
    creation_timestamp: datetime | None = None
    deletion_timestamp: datetime | None = None
    owner_references: list[_Owner] = []


class _Condition(msgspec.Struct):
    type: str = ""
    status: str = ""
    message: str = ""


class _Spec(msgspec.Struct, rename="camel"):
    node_name: str = ""
    host_network: bool = False
    containers: list[_Container] = []
    init_containers: list[_Container] = []


class _Address(msgspec.Struct):
    ip: str = ""


class _Status(msgspec.Struct, rename="camel"):
    phase: str = ""
    message: str = ""
    pod_ip: str = msgspec.field(default="", name="podIP")
    host_ip: str = msgspec.field(default="", name="hostIP")
    host_ips: list[_Address] = msgspec.field(default_factory=list, name="hostIPs")
    conditions: list[_Condition] = []
    container_statuses: list[ContainerStatus] = []
    init_container_statuses: list[ContainerStatus] = []


class PodView(msgspec.Struct):
    """A Pod."""

    metadata: _Meta
    spec: _Spec = msgspec.field(default_factory=_Spec)
    status: _Status = msgspec.field(default_factory=_Status)

    @property
    def node(self) -> str:
        return self.spec.node_name

    @property
    def ending(self) -> bool:
        return self.metadata.deletion_timestamp is not None

    @property
    def ready(self) -> bool:
        """Of a handler: that it holds the node's lock. Of two on one node only one ever is."""
        return not self.ending and any(c.type == "Ready" and c.status == "True" for c in self.status.conditions)
