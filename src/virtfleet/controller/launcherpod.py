"""What the controllers keep of the Pods that they make for VMs, and what that says about them."""

# ruff: noqa: RUF012 (msgspec copies mutable defaults)
from __future__ import annotations

from typing import Any

import msgspec

from virtfleet.api import conditions, names
from virtfleet.api.conditions import Condition
from virtfleet.controller.records.guest import Volumes
from virtfleet.controller.records.kept import Kept, Record
from virtfleet.kube.pods import ContainerStatus
from virtfleet.kube.resource import PODS
from virtfleet.pods.launcher import COMPUTE

POD_SCHEDULED = "PodScheduled"
_HYPERVISOR = "--hypervisor="


class Container(Record):
    name: str = ""
    image: str = ""
    args: list[str] = []
    resources: dict[str, Any] = {}


class PodSpec(Record):
    node_name: str = ""
    scheduler_name: str = ""
    readiness_gates: list[dict[str, Any]] = []
    tolerations: list[dict[str, Any]] = []
    image_pull_secrets: list[dict[str, Any]] = []
    containers: list[Container] = []


class PodStatus(Record):
    phase: str = ""
    reason: str = ""
    message: str = ""
    qos_class: str = ""
    conditions: list[dict[str, Any]] = []
    container_statuses: list[ContainerStatus] = []
    init_container_statuses: list[ContainerStatus] = []


class Pod(Kept):
    """Any of them."""

    resource = PODS
    status: PodStatus = msgspec.field(default_factory=PodStatus)

    @property
    def containers(self) -> list[ContainerStatus]:
        """What became of its containers, in the order in which they start."""
        return [*self.status.init_container_statuses, *self.status.container_statuses]

    @property
    def unscheduled(self) -> Condition | None:
        """What a scheduler says of why no node takes it so far."""
        placed = conditions.find(self.status.conditions, POD_SCHEDULED)
        return placed if placed and placed["status"] == "False" else None

    @property
    def unplaced(self) -> str:
        """The same in words; nothing where nothing keeps it from a node."""
        why = self.unscheduled
        return f"no node takes Pod {self.name}: {why.get('message') or ''}" if why else ""


class AttachmentPod(Pod):
    """A Pod that attaches a volume."""

    spec: Volumes = msgspec.field(default_factory=Volumes)

    @property
    def volume(self) -> str:
        return self.metadata.annotations.attached_volume

    @property
    def claim(self) -> str:
        return next((volume.claim for volume in self.spec.volumes if volume.claim), "")

    @property
    def vmi_key(self) -> str:
        """The VMI that it was made for."""
        return f"{self.namespace}/{self.metadata.annotations.owner_vmi}"

    @property
    def stays(self) -> bool:
        return not self.deleting and self.status.phase not in names.FINAL

    @property
    def ready(self) -> bool:
        """Its container runs, so the volume is on the node."""
        running = [status.state.running is not None for status in self.status.container_statuses]
        return self.stays and self.status.phase == "Running" and bool(running) and all(running)

    @property
    def trouble(self) -> str:
        """Why it does not run yet, as far as somebody says so."""
        waiting = [s.state.waiting for s in self.status.container_statuses if s.state.waiting]
        said = (f"{each.reason}: {each.message}" for each in waiting if each.message)
        return self.unplaced or next(said, f"Pod {self.name} does not run yet")


class LauncherPod(Pod):
    """The Pod of a VMI, or of one of its migrations."""

    spec: PodSpec = msgspec.field(default_factory=PodSpec)

    @property
    def node(self) -> str:
        return self.spec.node_name

    @property
    def _made(self) -> Container:
        """Its launcher as it was asked for."""
        return next((c for c in self.spec.containers if c.name == COMPUTE), Container())

    @property
    def _launcher(self) -> ContainerStatus:
        """Its launcher as it is."""
        return next((s for s in self.status.container_statuses if s.name == COMPUTE), ContainerStatus())

    @property
    def launcher_ended(self) -> bool:
        """The kubelet has seen its compute container end."""
        return bool(self._launcher.state.terminated)

    @property
    def ended(self) -> bool:
        """Its compute container does not run any more, and will not again."""
        return self.status.phase in names.FINAL or self.launcher_ended

    @property
    def going_down(self) -> bool:
        return self.ended or self.deleting

    @property
    def alive(self) -> bool:
        """Something of it may still run, whether or not it was told to stop."""
        states = [status.state for status in self.status.container_statuses]
        stopped = bool(states) and all(state.terminated for state in states)
        return self.status.phase not in names.FINAL and not stopped

    @property
    def launched(self) -> bool:
        """The launcher waits for its VM.

        The compute container may carry the guest's readiness probe, so that it is enough that it runs; the others have
        to be ready.
        """
        runs = self.status.phase == "Running" and self._launcher.state.running is not None and not self.going_down
        return runs and all(s.ready for s in self.status.container_statuses if s.name != COMPUTE)

    @property
    def failed(self) -> bool:
        """Its launcher ended without having seen a VM through: it was killed, or its node lost power."""
        return bool((self._launcher.state.terminated or {}).get("exitCode"))

    @property
    def asks_for(self) -> dict[str, Any]:
        """The resources that its launcher is to have."""
        return self._made.resources

    @property
    def has(self) -> dict[str, Any] | None:
        """The resources that its launcher has, by its node's word; None where it says nothing of that."""
        return self._launcher.resources

    @property
    def image(self) -> str:
        return self._made.image

    @property
    def hypervisor(self) -> str:
        """What it was made to run on, from what nobody can change in a Pod that exists."""
        return next((a.removeprefix(_HYPERVISOR) for a in self._made.args if a.startswith(_HYPERVISOR)), "")

    @property
    def migration_uid(self) -> str:
        """The migration that it was made for, if it was."""
        return self.metadata.labels.get(names.MIGRATION_UID, "")

    @property
    def for_migration(self) -> bool:
        return bool(self.migration_uid)


decode_pod = msgspec.json.Decoder(LauncherPod).decode
decode_attachment = msgspec.json.Decoder(AttachmentPod).decode
