"""Metadata of objects, and small types that several kinds use."""

from __future__ import annotations

from typing import Annotated

from msgspec import field

from virtfleet.api.quantity import Amount
from virtfleet.api.view import OneOf, Raw, Required, View


class OwnerReference(View):
    """An object that this one belongs to."""

    api_version: str = ""
    kind: str = ""
    name: str = ""
    uid: str = ""
    controller: bool | None = None
    block_owner_deletion: bool | None = None


class ObjectMeta(View):
    """Name, labels and life of an object."""

    name: str = ""
    generate_name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    generation: int | None = None
    creation_timestamp: str | None = None
    deletion_timestamp: str | None = None
    deletion_grace_period_seconds: int | None = None
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}
    finalizers: list[str] = []
    owner_references: list[OwnerReference] = []


class KubernetesObject(View):
    """What every kind has."""

    api_version: str = ""
    kind: str = ""
    metadata: ObjectMeta = field(default_factory=ObjectMeta)


class Unread(KubernetesObject):
    """An object of a kind that VirtFleet does not have yet."""

    spec: Raw = {}
    status: Raw = {}


class Condition(View):
    """One aspect of an object's state, with the time of its last change."""

    type: Required[str] = ""
    """Name of the aspect, for example Ready."""
    status: Required[str] = ""
    """True, False or Unknown."""
    reason: str = ""
    """One word for programs."""
    message: str = ""
    """A sentence for people."""
    last_probe_time: str | None = None
    last_transition_time: str | None = None


class LabelSelectorRequirement(View):
    """A condition on the values of one label."""

    key: Required[str] = ""
    """Label that is looked at."""
    operator: Required[str] = ""
    """In, NotIn, Exists or DoesNotExist."""
    values: list[str] = []
    """Values for In and NotIn."""


class LabelSelector(View):
    """A query over labels; all of its parts must hold."""

    match_labels: dict[str, str] = {}
    """Labels with exactly these values."""
    match_expressions: list[LabelSelectorRequirement] = []
    """Conditions on labels."""


class LocalObjectReference(View):
    """The name of an object in the same namespace."""

    name: str = ""
    """Name of the object."""


class Toleration(View):
    """A taint that may be present on the node."""

    effect: Annotated[str, OneOf("NoExecute", "NoSchedule", "PreferNoSchedule")] = ""
    key: str = ""
    operator: str = ""
    toleration_seconds: int | None = None
    value: str = ""


class ContainerResources(View):
    """What a Pod asks for."""

    requests: dict[str, Amount] = {}
    """Reserved on the node."""
    limits: dict[str, Amount] = {}
    """Never exceeded."""


class FeatureState(View):
    """A feature that is on unless it says otherwise."""

    enabled: bool | None = None
    """True where not set."""


def is_on(feature: FeatureState | None) -> bool:
    """Whether a feature that is enabled by naming it is on: it is there and not switched off."""
    return feature is not None and feature.enabled is not False


class PhaseTransitionTimestamp(View):
    """When a phase began."""

    phase: str = ""
    phase_transition_timestamp: str = ""
