"""Claims and volumes as the controllers see them, and the pure decisions about them: which volume fits which claim,
and where a pod may go because of its claims.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import msgspec

from virtfleet.api.selectors import from_label_selector, node_selector_matches
from virtfleet.local.controllers.nodes import Node
from virtfleet.local.controllers.placement import NO_VOLUMES, Volumes
from virtfleet.local.controllers.pods import Pod, amounts

SELECTED_NODE = "volume.kubernetes.io/selected-node"
PROVISIONED_BY = "pv.kubernetes.io/provisioned-by"
NO_PROVISIONER = "kubernetes.io/no-provisioner"
CLAIM_PROTECTION = "kubernetes.io/pvc-protection"
VOLUME_PROTECTION = "kubernetes.io/pv-protection"
LOST = "node(s) unavailable due to one or more pvc(s) bound to non-existent pv(s)"


class _Metadata(msgspec.Struct, rename="camel", frozen=True):
    name: str
    uid: str = ""
    namespace: str = ""
    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None
    finalizers: list[str] | None = None
    deletion_timestamp: datetime | None = None


class ClaimRef(msgspec.Struct, frozen=True):
    """The claim that a volume is for. Without a uid it is only promised."""

    namespace: str = ""
    name: str = ""
    uid: str = ""


class _Resources(msgspec.Struct, frozen=True):
    requests: dict[str, str | int | float] | None = None


class _ClaimSpec(msgspec.Struct, rename="camel", frozen=True):
    access_modes: list[str] = []
    storage_class_name: str | None = None
    volume_name: str = ""
    volume_mode: str = "Filesystem"
    resources: _Resources = _Resources()
    selector: dict[str, Any] | None = None


class _Phase(msgspec.Struct, frozen=True):
    phase: str = ""


class Claim(msgspec.Struct, frozen=True, eq=False):
    """A PersistentVolumeClaim."""

    metadata: _Metadata
    spec: _ClaimSpec = _ClaimSpec()
    status: _Phase = _Phase()

    @property
    def key(self) -> str:
        return f"{self.metadata.namespace}/{self.metadata.name}"

    @property
    def size(self) -> int:
        return amounts(self.spec.resources.requests).get("storage", 0)

    @property
    def selected_node(self) -> str:
        return (self.metadata.annotations or {}).get(SELECTED_NODE, "")

    @property
    def bound(self) -> bool:
        return self.status.phase == "Bound"


class _VolumeSpec(msgspec.Struct, rename="camel", frozen=True):
    capacity: dict[str, str | int | float] = {}
    access_modes: list[str] = []
    storage_class_name: str = ""
    volume_mode: str = "Filesystem"
    claim_ref: ClaimRef | None = None
    node_affinity: dict[str, Any] | None = None
    persistent_volume_reclaim_policy: str = "Retain"
    host_path: dict[str, str] | None = None


class Volume(msgspec.Struct, frozen=True, eq=False):
    """A PersistentVolume."""

    metadata: _Metadata
    spec: _VolumeSpec = _VolumeSpec()
    status: _Phase = _Phase()

    @property
    def size(self) -> int:
        return amounts(self.spec.capacity).get("storage", 0)

    @property
    def provisioner(self) -> str:
        return (self.metadata.annotations or {}).get(PROVISIONED_BY, "")

    def admits(self, node: str, labels: Mapping[str, str]) -> bool:
        return node_selector_matches((self.spec.node_affinity or {}).get("required"), labels, node)

    def is_for(self, claim: Claim) -> bool:
        """Whether the volume is this claim's, or promised to a claim of its name."""
        ref = self.spec.claim_ref
        return (
            ref is not None
            and (ref.namespace, ref.name) == (claim.metadata.namespace, claim.metadata.name)
            and ref.uid in ("", claim.metadata.uid)
        )


class StorageClass(msgspec.Struct, rename="camel", frozen=True, eq=False):
    """A StorageClass."""

    metadata: _Metadata
    provisioner: str = ""
    reclaim_policy: str = "Delete"
    volume_binding_mode: str = "Immediate"

    @property
    def waits(self) -> bool:
        """Whether claims wait for the first pod that uses them, so that the volume comes to be where the pod can go."""
        return self.volume_binding_mode == "WaitForFirstConsumer"


decode_claim: Callable[[bytes], Claim] = msgspec.json.Decoder(Claim).decode
decode_volume: Callable[[bytes], Volume] = msgspec.json.Decoder(Volume).decode
decode_class: Callable[[bytes], StorageClass] = msgspec.json.Decoder(StorageClass).decode


def satisfies(volume: Volume, claim: Claim) -> bool:
    """Whether a volume that nobody has could serve the claim."""
    want, have = claim.spec, volume.spec
    return (
        volume.metadata.deletion_timestamp is None
        and (have.claim_ref is None or volume.is_for(claim))
        and have.storage_class_name == (want.storage_class_name or "")
        and have.volume_mode == want.volume_mode
        and set(want.access_modes) <= set(have.access_modes)
        and volume.size >= claim.size
        and (want.selector is None or from_label_selector(want.selector).matches(volume.metadata.labels))
    )


def best_match(claim: Claim, volumes: Iterable[Volume], on_node: Callable[[Volume], bool]) -> Volume | None:
    """The volume that was promised to the claim, else the smallest one that is large enough."""
    fitting = [v for v in volumes if satisfies(v, claim) and on_node(v)]
    return min(fitting, key=lambda v: (v.spec.claim_ref is None, v.size, v.metadata.name), default=None)


@dataclass(frozen=True, slots=True)
class Storage:
    """Where the scheduler looks claims up."""

    claim: Callable[[str], Claim | None]  # by namespace/name
    volume: Callable[[str], Volume | None]
    volumes: Callable[[], Iterable[Volume]]
    storage_class: Callable[[str], StorageClass | None]

    def constraints(self, pod: Pod) -> tuple[Volumes, list[Claim]]:
        """Where the pod's claims let it go, and the claims that wait to hear which node it will be."""
        if not pod.template.claims:
            return NO_VOLUMES, []
        bound: list[Volume] = []
        waiting: list[Claim] = []
        for name in pod.template.claims:
            claim = self.claim(f"{pod.namespace}/{name}")
            if claim is None:
                return Volumes(blocker=f'persistentvolumeclaim "{name}" not found'), []
            if claim.metadata.deletion_timestamp is not None:
                return Volumes(blocker=f'persistentvolumeclaim "{name}" is being deleted'), []
            if claim.bound:
                volume = self.volume(claim.spec.volume_name)
                if volume is None:
                    return Volumes(admits=lambda node: LOST), []
                bound.append(volume)
            elif self._waits(claim):
                waiting.append(claim)
            else:
                return Volumes(blocker="pod has unbound immediate PersistentVolumeClaims"), []
        return Volumes(admits=lambda node: self._refuse(node, bound, waiting)), waiting

    def _waits(self, claim: Claim) -> bool:
        storage_class = self.storage_class(claim.spec.storage_class_name or "")
        return storage_class is not None and storage_class.waits and not claim.spec.volume_name

    def _refuse(self, node: Node, bound: list[Volume], waiting: list[Claim]) -> str:
        if not all(v.admits(node.name, node.labels) for v in bound):
            return "node(s) didn't match PersistentVolume's node affinity"
        for claim in waiting:
            storage_class = self.storage_class(claim.spec.storage_class_name or "")
            made = storage_class is not None and storage_class.provisioner != NO_PROVISIONER
            if not made and not best_match(claim, self.volumes(), lambda v: v.admits(node.name, node.labels)):
                return "node(s) didn't find available persistent volumes to bind"
        return ""
