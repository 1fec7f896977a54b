"""Records of VMIs."""

from __future__ import annotations

from typing import Any

import msgspec

from virtfleet.api import conditions, names
from virtfleet.api.disks import ClaimSource
from virtfleet.api.meta import PhaseTransitionTimestamp
from virtfleet.api.migration import VirtualMachineInstanceMigrationState
from virtfleet.api.names import FINAL, Phase, VMICondition
from virtfleet.api.vmistatus import GuestABI, HotplugVolumeStatus
from virtfleet.controller.records.guest import GuestSpec, Interface
from virtfleet.controller.records.kept import Record, Whole, whole
from virtfleet.kube.resource import VMIS, Obj
from virtfleet.pods.vmstate import claim_name

UNPROCESSED = ("", Phase.PENDING)


class Migrated(Record):
    """A volume whose data goes from one claim to another."""

    volume_name: str = ""
    source_pvc_info: ClaimSource | None = msgspec.field(default=None, name="sourcePVCInfo")
    destination_pvc_info: ClaimSource | None = msgspec.field(default=None, name="destinationPVCInfo")

    @property
    def source(self) -> str:
        return self.source_pvc_info.claim_name if self.source_pvc_info else ""

    @property
    def destination(self) -> str:
        return self.destination_pvc_info.claim_name if self.destination_pvc_info else ""


class PluggedVolume(Record):
    """An entry of a VMI's volumeStatus."""

    name: str = ""
    phase: str = ""
    hotplug_volume: HotplugVolumeStatus | None = None
    persistent_volume_claim_info: ClaimSource | None = None

    @property
    def claim(self) -> str:
        return self.persistent_volume_claim_info.claim_name if self.persistent_volume_claim_info else ""


class InstanceStatus(Record):
    phase: str = ""
    node_name: str = ""
    conditions: list[dict[str, Any]] = []
    active_pods: dict[str, str] = {}
    phase_transition_timestamps: list[PhaseTransitionTimestamp] = []
    virtual_machine_revision_name: str = ""
    evacuation_node_name: str = ""
    migration_state: VirtualMachineInstanceMigrationState | None = None
    launcher_container_image_version: str = ""
    migrated_volumes: list[Migrated] = []
    guest_abi: GuestABI | None = msgspec.field(default=None, name="guestABI")
    vsock_cid: int | None = msgspec.field(default=None, name="VSOCKCID")
    volume_status: list[PluggedVolume] = []
    interfaces: list[Interface] = []


class InstanceSpec(GuestSpec):
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
    def outdated(self) -> bool:
        """Its launcher image is not the one that it would get now."""
        return names.OUTDATED_LAUNCHER_IMAGE in self.metadata.labels

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


def claim_keys(vmi: Instance) -> list[str]:
    """An index of VMIs: the claims that a VMI waits for or uses."""
    state = [claim_name(vmi.name)] if vmi.spec.keeps_state else []
    return [f"{vmi.namespace}/{claim}" for claim in (*vmi.spec.claims.values(), *state)]


_decode_instance = whole(Instance, lambda vmi: vmi.unprocessed)


def decode_instance(data: bytes) -> Instance:
    """A VMI, without the CPU of its present run: that is long, and nobody's here."""
    vmi = _decode_instance(data)
    if vmi.status.guest_abi:
        vmi.status.guest_abi.cpu = None
    return vmi
