"""What components look at in Pods that are not VMs': whose they are, where they run, and whether they work."""

from __future__ import annotations

from datetime import datetime

import msgspec


class _Waiting(msgspec.Struct):
    reason: str = ""
    message: str = ""


class _State(msgspec.Struct):
    waiting: _Waiting | None = None


class _Container(msgspec.Struct):
    """A container of a Pod's spec or, with a state, of its status."""

    name: str = ""
    image: str = ""
    state: _State | None = None
    started: bool | None = None


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
    container_statuses: list[_Container] = []
    init_container_statuses: list[_Container] = []


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
