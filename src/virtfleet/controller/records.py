"""What the controllers keep of each object: the few fields that decisions need, of objects of several thousand bytes.

A record is decoded straight from the JSON of a watch, so that eight thousand VMIs cost some megabytes instead of a
gigabyte. Where an object is needed as a whole (to render a Pod, to start a VM), its JSON is kept beside, and only as
long as that can still happen.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, TypeVar

import msgspec
import orjson

from virtfleet.api import conditions, names
from virtfleet.api.migration import VirtualMachineInstanceMigrationState
from virtfleet.api.names import FINAL, Phase, VMICondition
from virtfleet.api.vmistatus import GuestABI
from virtfleet.kube.cache import Cache
from virtfleet.kube.events import Reference
from virtfleet.kube.resource import NODES, PERSISTENT_VOLUME_CLAIMS, VMI_REPLICA_SETS, VMIS, VMS, Obj, Resource
from virtfleet.pods.networks import NETWORKS

UNPROCESSED = ("", Phase.PENDING)


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


# --- what a machine is given: volumes, as far as they are claims, and networks


class Named(Record):
    name: str = ""
    hotpluggable: bool | None = None


class ClaimName(Record):
    claim_name: str = ""
    read_only: bool | None = None
    hotpluggable: bool | None = None


class Ephemeral(Record):
    persistent_volume_claim: ClaimName | None = None


class Volume(Record):
    name: str = ""
    persistent_volume_claim: ClaimName | None = None
    data_volume: Named | None = None
    ephemeral: Ephemeral | None = None

    @property
    def claim(self) -> str:
        """The name of the claim behind the volume, if there is one."""
        if self.data_volume:
            return self.data_volume.name
        source = self.persistent_volume_claim or (self.ephemeral and self.ephemeral.persistent_volume_claim)
        return source.claim_name if source else ""

    @property
    def plugged(self) -> bool:
        """Whether the claim comes to the VM through a Pod of its own."""
        source = self.data_volume or self.persistent_volume_claim
        return bool(source and source.hotpluggable)


class Volumes(Record):
    volumes: list[Volume] = []

    @property
    def claims(self) -> dict[str, str]:
        """Claims by the names of their volumes."""
        return {volume.name: volume.claim for volume in self.volumes if volume.claim}

    @property
    def plugged(self) -> dict[str, str]:
        """The same of those that are plugged in."""
        return {volume.name: volume.claim for volume in self.volumes if volume.plugged}


class Multus(Record):
    network_name: str = ""
    default: bool | None = None


class Network(Record):
    name: str = ""
    multus: Multus | None = None


class Interface(Record):
    name: str = ""
    state: str = ""


class Tpm(Record):
    enabled: bool | None = None
    persistent: bool | None = None


class Efi(Record):
    persistent: bool | None = None


class Bootloader(Record):
    efi: Efi | None = None


class Firmware(Record):
    bootloader: Bootloader | None = None


class Devices(Record):
    tpm: Tpm | None = None
    gpus: list[dict[str, Any]] = []
    host_devices: list[dict[str, Any]] = []
    interfaces: list[Interface] = []


class Domain(Record):
    devices: Devices = msgspec.field(default_factory=Devices)
    firmware: Firmware | None = None


class Machine(Volumes):
    """What a VMI, or a template, is given."""

    networks: list[Network] = []
    domain: Domain = msgspec.field(default_factory=Domain)

    @property
    def secondary(self) -> bool:
        """Whether it is on a network beside the cluster's."""
        return any(network.multus and not network.multus.default for network in self.networks)

    @property
    def keeps_state(self) -> bool:
        """Whether its firmware or TPM remembers things from one run to the next."""
        tpm, loader = self.domain.devices.tpm, self.domain.firmware and self.domain.firmware.bootloader
        return bool(
            (tpm and tpm.persistent and tpm.enabled is not False) or (loader and loader.efi and loader.efi.persistent)
        )

    @property
    def connections(self) -> dict[str, tuple[str, str]]:
        """Definition of the network and state of each interface."""
        definitions = {n.name: n.multus.network_name for n in self.networks if n.multus}
        return {i.name: (definitions.get(i.name, ""), i.state) for i in self.domain.devices.interfaces}


class Migrated(Record):
    """A volume whose data goes from one claim to another."""

    volume_name: str = ""
    source_pvc_info: ClaimName | None = msgspec.field(default=None, name="sourcePVCInfo")
    destination_pvc_info: ClaimName | None = msgspec.field(default=None, name="destinationPVCInfo")

    @property
    def source(self) -> str:
        return self.source_pvc_info.claim_name if self.source_pvc_info else ""

    @property
    def destination(self) -> str:
        return self.destination_pvc_info.claim_name if self.destination_pvc_info else ""


# --- VMIs


class Transition(Record):
    phase: str = ""
    phase_transition_timestamp: str = ""


class AttachedBy(Record):
    attach_pod_name: str = ""
    attach_pod_uid: str = msgspec.field(default="", name="attachPodUID")


class PluggedVolume(Record):
    """An entry of a VMI's volumeStatus."""

    name: str = ""
    phase: str = ""
    hotplug_volume: AttachedBy | None = None
    persistent_volume_claim_info: ClaimName | None = None

    @property
    def claim(self) -> str:
        return self.persistent_volume_claim_info.claim_name if self.persistent_volume_claim_info else ""


class InstanceStatus(Record):
    phase: str = ""
    node_name: str = ""
    conditions: list[dict[str, Any]] = []
    active_pods: dict[str, str] = {}
    phase_transition_timestamps: list[Transition] = []
    virtual_machine_revision_name: str = ""
    evacuation_node_name: str = ""
    migration_state: VirtualMachineInstanceMigrationState | None = None
    launcher_container_image_version: str = ""
    migrated_volumes: list[Migrated] = []
    guest_abi: GuestABI | None = msgspec.field(default=None, name="guestABI")
    volume_status: list[PluggedVolume] = []
    interfaces: list[Interface] = []


class InstanceSpec(Machine):
    start_strategy: str = ""
    eviction_strategy: str = ""
    node_selector: dict[str, str] = {}
    hypervisor: str = ""


class Instance(Whole):
    """A VMI. Its JSON is kept as long as its Pod is still to be made."""

    resource = VMIS
    spec: InstanceSpec = msgspec.field(default_factory=InstanceSpec)
    status: InstanceStatus = msgspec.field(default_factory=InstanceStatus)

    @property
    def phase(self) -> str:
        return self.status.phase

    @property
    def unprocessed(self) -> bool:
        """Nothing has been made for it yet, as far as its status knows."""
        return self.phase in UNPROCESSED

    @property
    def handed_over(self) -> bool:
        """It is the handler's: Scheduled, Running or beyond."""
        return not self.unprocessed and self.phase != Phase.SCHEDULING

    @property
    def final(self) -> bool:
        return self.phase in FINAL

    @property
    def paused(self) -> bool:
        """Its guest stands still, or will from the start."""
        waits = self.phase != Phase.RUNNING and self.spec.start_strategy == "Paused"
        return waits or conditions.holds(self.status.conditions, VMICondition.PAUSED)

    @property
    def ran(self) -> bool:
        return any(t.phase == Phase.RUNNING for t in self.status.phase_transition_timestamps)

    @property
    def open_migration(self) -> VirtualMachineInstanceMigrationState | None:
        """The migration that handlers work on: handed over to them, and not ended."""
        state = self.status.migration_state
        return state if state and state.migration_uid and not state.ended else None

    @property
    def migrating(self) -> bool:
        state = self.status.migration_state
        return state is not None and bool(state.start_timestamp) and not state.end_timestamp

    @property
    def pool(self) -> str:
        return self.metadata.labels.get(names.HANDLER_POOL, "")

    @property
    def plugs(self) -> bool:
        """Whether volumes of it are, were or are to be plugged in."""
        return bool(self.spec.plugged or any(status.hotplug_volume for status in self.status.volume_status))

    @property
    def leaves(self) -> bool:
        """An eviction asked for it to leave the node where it is."""
        return bool(self.status.evacuation_node_name) and self.status.evacuation_node_name == self.status.node_name

    @property
    def migratable(self) -> bool:
        return conditions.holds(self.status.conditions, VMICondition.LIVE_MIGRATABLE)

    def essence(self) -> Obj:
        """Of the object, what decides about its launcher and how it gets another one (`workloads.outlook`)."""
        spec = self.spec
        devices = {"gpus": spec.domain.devices.gpus, "hostDevices": spec.domain.devices.host_devices}
        return {
            "metadata": {
                "labels": self.metadata.labels,
                "annotations": {names.LAUNCHER_HYPERVISOR: self.metadata.annotations.hypervisor},
            },
            "spec": {
                "nodeSelector": spec.node_selector,
                "hypervisor": spec.hypervisor,
                "evictionStrategy": spec.eviction_strategy,
                "domain": {"devices": devices},
            },
            "status": {
                "launcherContainerImageVersion": self.status.launcher_container_image_version,
                "conditions": self.status.conditions,
            },
        }


# --- VMs


class Template(Record):
    spec: Machine = msgspec.field(default_factory=Machine)


class VmSpec(Record):
    template: Template = msgspec.field(default_factory=Template)
    run_strategy: str = ""
    running: bool | None = None
    update_volumes_strategy: str = ""
    instancetype: dict[str, Any] | None = None
    preference: dict[str, Any] | None = None
    data_volume_templates: list[dict[str, Any]] = []


class Request(Record):
    action: str = ""
    uid: str | None = None
    data: dict[str, str] = {}


class StartFailure(Record):
    consecutive_fail_count: int = 0
    last_failed_vmi_uid: str = msgspec.field(default="", name="lastFailedVMIUID")
    retry_after_timestamp: str = ""


class VolumeMigrationState(Record):
    migrated_volumes: list[Migrated] = []


class VolumeUpdateState(Record):
    volume_migration_state: VolumeMigrationState | None = None


class VmStatus(Record):
    printable_status: str = ""
    instancetype_ref: dict[str, Any] | None = None
    preference_ref: dict[str, Any] | None = None
    run_strategy: str = ""
    state_change_requests: list[Request] = []
    volume_requests: list[dict[str, Any]] = []
    start_failure: StartFailure | None = None
    volume_update_state: VolumeUpdateState | None = None


class Vm(Whole):
    """A VM."""

    resource = VMS
    spec: VmSpec = msgspec.field(default_factory=VmSpec)
    status: VmStatus = msgspec.field(default_factory=VmStatus)

    @property
    def types(self) -> tuple[dict[str, Any] | None, ...]:
        """What it says of its instance type and preference, and what its status says of them."""
        spec, status = self.spec, self.status
        return spec.instancetype, spec.preference, status.instancetype_ref, status.preference_ref

    @property
    def strategy(self) -> str:
        if self.spec.run_strategy:
            return self.spec.run_strategy
        return "Always" if self.spec.running else "Halted"

    @property
    def copying(self) -> list[Migrated]:
        """Volumes whose data is being copied to the claims of the template, or was when an instance ended."""
        update = self.status.volume_update_state
        state = update.volume_migration_state if update else None
        return state.migrated_volumes if state else []


# --- replica sets, nodes, claims


class ReplicaSet(Whole):
    """A replica set of VMIs."""

    resource = VMI_REPLICA_SETS


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


_decode_instance = whole(Instance, lambda vmi: vmi.unprocessed)
decode_vm = whole(Vm)
decode_replica_set = whole(ReplicaSet)
decode_node = msgspec.json.Decoder(NodeRecord).decode
decode_claim = msgspec.json.Decoder(Claim).decode


def decode_instance(data: bytes) -> Instance:
    """A VMI, without the CPU of its present run: that is long, and nobody's here."""
    vmi = _decode_instance(data)
    if vmi.status.guest_abi:
        vmi.status.guest_abi.cpu = None
    return vmi
