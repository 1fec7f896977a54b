"""What the controllers keep of each object: the few fields that decisions need, of objects of several thousand bytes.

A record is decoded straight from the JSON of a watch, so that eight thousand VMIs cost some megabytes instead of a
gigabyte. Where an object is needed as a whole (to render a Pod, to start a VM), its JSON is kept beside, and only as
long as that can still happen.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar, TypeVar

import msgspec
import orjson

from virtfleet.api import names
from virtfleet.kube.events import Reference
from virtfleet.kube.resource import Obj, Resource
from virtfleet.pods.networks import NETWORKS


class Record(msgspec.Struct, rename="camel", eq=False):
    """Base of all records."""


class Owner(Record):
    kind: str = ""
    name: str = ""
    uid: str = ""
    controller: bool | None = None


class Annotations(Record):
    """Those that somebody here reads; the others are not kept."""

    vm_generation: str = msgspec.field(default="", name=names.VM_GENERATION)
    hypervisor: str = msgspec.field(default="", name=names.LAUNCHER_HYPERVISOR)
    heartbeat: str = msgspec.field(default="", name=names.HANDLER_HEARTBEAT)
    migration: str = msgspec.field(default="", name=names.MIGRATION_NAME)
    target_ready: str = msgspec.field(default="", name=names.MIGRATION_TARGET_READY)
    unschedulable_timeout: str = msgspec.field(default="", name=names.MIGRATION_UNSCHEDULABLE_TIMEOUT)
    pending_timeout: str = msgspec.field(default="", name=names.MIGRATION_PENDING_TIMEOUT)
    workload_update: str | None = msgspec.field(default=None, name=names.WORKLOAD_UPDATE)
    owner_vmi: str = msgspec.field(default="", name=names.OWNER_VMI_NAME)
    attached_volume: str = msgspec.field(default="", name=names.ATTACHED_VOLUME)
    evacuation: str = msgspec.field(default="", name=names.EVACUATION)
    eviction_source: str = msgspec.field(default="", name=names.EVICTION_SOURCE)
    eviction_in_progress: str = msgspec.field(default="", name=names.EVICTION_IN_PROGRESS)
    drained: str = msgspec.field(default="", name=names.DRAINED)
    networks: str = msgspec.field(default="", name=NETWORKS)
    upload_target: str | None = msgspec.field(default=None, name=names.UPLOAD_TARGET)
    filling_phase: str = msgspec.field(default="", name=names.FILLING_PHASE)
    filling_ready: str = msgspec.field(default="", name=names.FILLING_READY)
    filled_claim: str = msgspec.field(default="", name=names.FILLED_CLAIM)
    pci_topology: str = msgspec.field(default="", name=names.PCI_TOPOLOGY_VERSION)
    pci_slots: str | None = msgspec.field(default=None, name=names.PCI_INTERFACE_SLOTS)


class Meta(Record):
    name: str
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    generation: int = 0
    creation_timestamp: str = ""
    deletion_timestamp: str | None = None
    labels: dict[str, str] = {}
    annotations: Annotations = msgspec.field(default_factory=Annotations)
    finalizers: list[str] = []
    owner_references: list[Owner] = []


class Kept(Record):
    """What every record has."""

    resource: ClassVar[Resource]
    metadata: Meta

    @property
    def name(self) -> str:
        return self.metadata.name

    @property
    def namespace(self) -> str:
        return self.metadata.namespace

    @property
    def uid(self) -> str:
        return self.metadata.uid

    @property
    def key(self) -> str:
        return f"{self.metadata.namespace}/{self.metadata.name}"

    @property
    def deleting(self) -> bool:
        return self.metadata.deletion_timestamp is not None

    @property
    def controller(self) -> Owner | None:
        return next((owner for owner in self.metadata.owner_references if owner.controller), None)

    @property
    def reference(self) -> Reference:
        """For events about the object."""
        meta, resource = self.metadata, self.resource
        return Reference(resource.api_version, resource.kind, meta.namespace, meta.name, meta.uid)

    def controlled_by(self, uid: str) -> bool:
        owner = self.controller
        return owner is not None and owner.uid == uid


class Whole(Kept):
    """A record that also keeps the JSON of its object."""

    raw: bytes = b""

    def object(self) -> Obj:
        obj: Obj = orjson.loads(self.raw)
        return obj


def owner_uids(record: Kept) -> list[str]:
    """An index of records: who controls them."""
    owner = record.controller
    return [owner.uid] if owner else []


W = TypeVar("W", bound=Whole)


def whole(kind: type[W], needed: Callable[[W], bool] = lambda _: True) -> Callable[[bytes], W]:
    decoder = msgspec.json.Decoder(kind)

    def decode(data: bytes) -> W:
        record = decoder.decode(data)
        record.raw = bytes(data) if needed(record) else b""
        return record

    return decode
