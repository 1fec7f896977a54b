"""What a handler keeps of each VMI: the object as it is, a view of it for reading, and what the node is to it."""

from __future__ import annotations

import enum

import msgspec
import orjson

from virtfleet.api.vmi import VirtualMachineInstance as VMI
from virtfleet.handler.pods.files import is_uid
from virtfleet.hypervisors import registry
from virtfleet.hypervisors.base import Hypervisor
from virtfleet.kube.events import Reference
from virtfleet.kube.resource import VMIS, Obj


class Role(enum.Enum):
    """What the Pods of a VMI on a node are for."""

    SOURCE = "source"  # the VM runs here, or should
    TARGET = "target"  # the VM is on its way here: made ready for it, and nothing is started


class Instance(msgspec.Struct, eq=False):
    """A VMI."""

    raw: bytes
    vmi: VMI

    @property
    def uid(self) -> str:
        return self.vmi.metadata.uid

    @property
    def phase(self) -> str:
        return self.vmi.status.phase

    @property
    def deleting(self) -> bool:
        return self.vmi.metadata.deletion_timestamp is not None

    @property
    def hypervisor(self) -> Hypervisor:
        """What its launcher was made to run on."""
        return registry.of(self.vmi)

    @property
    def reference(self) -> Reference:
        meta = self.vmi.metadata
        return Reference(VMIS.api_version, VMIS.kind, meta.namespace, meta.name, meta.uid)

    @property
    def key(self) -> str:
        return f"{self.vmi.metadata.namespace}/{self.vmi.metadata.name}"

    @property
    def revision(self) -> int:
        """Which of two states of the object is the newer one."""
        version = self.vmi.metadata.resource_version
        return int(version) if version.isdecimal() else 0

    def pods_on(self, node: str) -> list[str]:
        """UIDs of its Pods on a node. Files of the node are named after them."""
        return [uid for uid, where in self.vmi.status.active_pods.items() if where == node and is_uid(uid)]

    def patch(self, status: Obj) -> Obj:
        """A merge patch of its status, which is refused where another one has come in between."""
        meta = self.vmi.metadata
        return {"metadata": {"resourceVersion": meta.resource_version, "uid": meta.uid}, "status": status}

    def object(self) -> Obj:
        obj: Obj = orjson.loads(self.raw)
        return obj


_view = msgspec.json.Decoder(VMI)


def decode_instance(data: bytes) -> Instance:
    return Instance(bytes(data), _view.decode(data))


def role_of(vmi: VMI, node: str) -> Role | None:
    """What a node is to a VM now: nothing, where the VM neither runs there nor is on its way there."""
    migration = vmi.status.migration_state
    if vmi.status.node_name == node:
        return Role.SOURCE
    if migration and migration.target_node == node and not migration.ended:
        return Role.TARGET
    return None
