"""What is kept of DataVolumes and of the Pods that fill their claims."""

# ruff: noqa: RUF012 (msgspec copies mutable defaults)
from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from virtfleet.api import conditions, names
from virtfleet.controller.launcherpod import Pod
from virtfleet.controller.records.cluster import Claim
from virtfleet.controller.records.kept import Record, Whole, whole
from virtfleet.kube.cache import Cache
from virtfleet.kube.pods import ContainerStatus
from virtfleet.kube.resource import DATA_VOLUMES
from virtfleet.protocol.importing import HOPELESS

PENDING, SUCCEEDED, FAILED = "Pending", "Succeeded", "Failed"
_BY_STORAGE = "PendingPopulation"  # the claim is bound only when its data is there, which a Pod has to ask for


class DataVolumeStatus(Record):
    phase: str = ""
    conditions: list[dict[str, Any]] = []


class DataVolume(Whole):
    """A DataVolume, ours or CDI's."""

    resource = DATA_VOLUMES
    status: DataVolumeStatus = msgspec.field(default_factory=DataVolumeStatus)

    @property
    def phase(self) -> str:
        return self.status.phase

    @property
    def filled(self) -> bool:
        """Whether a VM may use the claim."""
        return self.phase in (SUCCEEDED, _BY_STORAGE)

    @property
    def failing(self) -> bool:
        """Whether it needs somebody to look at it."""
        return self.phase == FAILED or conditions.holds(self.status.conditions, "Running", "False", "Error")

    @property
    def trouble(self) -> str:
        running = conditions.find(self.status.conditions, "Running") or {}
        return str(running.get("message") or "")


decode = whole(DataVolume)


def unfilled(volumes: Cache[DataVolume], claims: Cache[Claim], keys: Iterable[str]) -> list[DataVolume]:
    """DataVolumes of these names whose claims are theirs, or not there yet, and not to be used so far."""
    empty = []
    for key in keys:
        volume, claim = volumes.get(key), claims.get(key)
        waits = claim is None or (claim.controlled_by(volume.uid if volume else "") and not claim.filled)
        if volume and not volume.filled and waits:
            empty.append(volume)
    return empty


_NOT_PULLED = ("ErrImagePull", "ImagePullBackOff")


class Importer(Pod):
    """A Pod that fills a claim."""

    @property
    def _container(self) -> ContainerStatus:
        return next(iter(self.status.container_statuses), ContainerStatus())

    @property
    def claim_key(self) -> str:
        return f"{self.namespace}/{self.metadata.annotations.filled_claim}"

    @property
    def done(self) -> bool:
        return self.status.phase == SUCCEEDED

    @property
    def lost(self) -> bool:
        """It ended for a reason that is not its own: it restarts by itself otherwise."""
        return self.status.phase == FAILED

    @property
    def running(self) -> bool:
        return self._container.state.running is not None and not self.deleting

    @property
    def ready(self) -> bool:
        return self.running and self._container.ready

    @property
    def pulled_in_vain(self) -> bool:
        """The node has tried to fetch an image, and tries again."""
        return any(status.state.waiting and status.state.waiting.reason in _NOT_PULLED for status in self.containers)

    @property
    def restarts(self) -> int:
        return self._container.restart_count

    @property
    def _end(self) -> dict[str, Any]:
        return self._container.state.terminated or self._container.last_state.terminated or {}

    @property
    def hopeless(self) -> bool:
        return self._end.get("exitCode") == HOPELESS

    @property
    def words(self) -> str:
        """What its last attempt ended with, or why there is none yet."""
        if self._end.get("exitCode"):
            return str(self._end.get("message") or f"the importer ended with exit code {self._end['exitCode']}")
        for status in self.containers:
            if status.state.waiting and status.state.waiting.reason in names.STUCK:
                return f"{status.state.waiting.reason}: {status.state.waiting.message}"
        return self.unplaced


decode_importer = msgspec.json.Decoder(Importer).decode
