"""DataVolumes and DataSources: CDI's kinds, which VirtFleet serves itself where CDI is not installed."""

from __future__ import annotations

from typing import Annotated

from msgspec import field

from virtfleet.api.meta import Condition, KubernetesObject
from virtfleet.api.view import OneOf, Raw, Required, View


class DataVolumeSourceRef(View):
    """An object that says where the data is."""

    kind: Required[str] = ""
    """DataSource."""
    name: Required[str] = ""
    namespace: str | None = None
    """That of the DataVolume, where not set."""


class DataVolumeSpec(View):
    """A claim, and what it is filled with."""

    source: Raw | None = None
    """Where the data comes from: one of blank, http, registry, pvc, snapshot, upload."""
    source_ref: DataVolumeSourceRef | None = None
    """The name of something that says where the data comes from."""
    pvc: Raw | None = None
    """The claim, as it is made."""
    storage: Raw | None = None
    """The claim, in which only the size of the disk has to be said."""
    content_type: Annotated[str, OneOf("kubevirt", "archive")] = ""
    """What is in it: kubevirt, a disk."""
    priority_class_name: str = ""
    """Of the Pod that fills the claim."""
    service_account_name: str = ""
    """Of the Pod that fills the claim."""
    preallocation: bool | None = None
    """Whether all of the disk has its place from the beginning."""
    checkpoints: list[Raw] = []
    final_checkpoint: bool | None = None


class DataVolumeStatus(View):
    """How far it is."""

    claim_name: str = ""
    """Name of the claim."""
    phase: str = ""
    """Pending, then for example ImportScheduled and ImportInProgress, then Succeeded or Failed."""
    progress: str = ""
    """In percent, or N/A."""
    restart_count: int | None = None
    """How often it was begun anew."""
    conditions: list[Condition] = []
    """Bound, Running and Ready."""


class DataVolume(KubernetesObject):
    """A claim that is filled with a disk."""

    spec: Required[DataVolumeSpec] = field(default_factory=DataVolumeSpec)
    """The claim, and what it is filled with."""
    status: DataVolumeStatus = field(default_factory=DataVolumeStatus)
    """How far it is."""


class DataSourceSpec(View):
    """Where data is."""

    source: Required[Raw] = {}
    """One of pvc and snapshot, each with a name and a namespace."""


class DataSourceStatus(View):
    """What was found of it."""

    source: Raw | None = None
    conditions: list[Condition] = []


class DataSource(KubernetesObject):
    """A name for data that DataVolumes are filled with."""

    spec: Required[DataSourceSpec] = field(default_factory=DataSourceSpec)
    status: DataSourceStatus = field(default_factory=DataSourceStatus)
