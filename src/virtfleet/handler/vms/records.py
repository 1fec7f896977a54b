"""What a handler keeps of each VMI on its node: the object as it is, and a view of it for reading."""

from __future__ import annotations

import msgspec
import orjson

from virtfleet.api import names
from virtfleet.api.vmi import VirtualMachineInstance as VMI
from virtfleet.handler.pods.files import is_uid
from virtfleet.hypervisors import registry
from virtfleet.hypervisors.base import Hypervisor
from virtfleet.kube.events import Reference
from virtfleet.kube.resource import VMIS, Obj


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
        chosen = self.vmi.metadata.annotations.get(names.LAUNCHER_HYPERVISOR) or self.vmi.spec.hypervisor
        return registry.get(chosen or registry.DEFAULT)

    @property
    def reference(self) -> Reference:
        meta = self.vmi.metadata
        return Reference(VMIS.api_version, VMIS.kind, meta.namespace, meta.name, meta.uid)

    def pod_on(self, node: str) -> str:
        """UID of its Pod on a node; "" where it has none there. Files of the node are named after it."""
        pods = self.vmi.status.active_pods.items()
        return next((uid for uid, where in pods if where == node and is_uid(uid)), "")

    def object(self) -> Obj:
        obj: Obj = orjson.loads(self.raw)
        return obj


_view = msgspec.json.Decoder(VMI)


def decode_instance(data: bytes) -> Instance:
    return Instance(bytes(data), _view.decode(data))
