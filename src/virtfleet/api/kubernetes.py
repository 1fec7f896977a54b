"""Types of Kubernetes and CDI that the views hand on as they are, as far as admission looks into them."""

from __future__ import annotations

from typing import Any

from virtfleet.api.meta import LabelSelector, LabelSelectorRequirement
from virtfleet.api.view import View


class NodeTerm(View):
    match_expressions: list[LabelSelectorRequirement] = []
    match_fields: list[LabelSelectorRequirement] = []


class PreferredNodeTerm(View):
    weight: int = 0
    preference: NodeTerm | None = None


class NodeSelector(View):
    node_selector_terms: list[NodeTerm] = []


class NodeAffinity(View):
    required_during_scheduling_ignored_during_execution: NodeSelector | None = None
    preferred_during_scheduling_ignored_during_execution: list[PreferredNodeTerm] = []


class PodTerm(View):
    label_selector: LabelSelector | None = None
    namespace_selector: LabelSelector | None = None
    namespaces: list[str] = []
    topology_key: str = ""


class WeightedPodTerm(View):
    weight: int = 0
    pod_affinity_term: PodTerm | None = None


class PodAffinity(View):
    required_during_scheduling_ignored_during_execution: list[PodTerm] = []
    preferred_during_scheduling_ignored_during_execution: list[WeightedPodTerm] = []


class Affinity(View):
    node_affinity: NodeAffinity | None = None
    pod_affinity: PodAffinity | None = None
    pod_anti_affinity: PodAffinity | None = None


class SpreadConstraint(View):
    max_skew: int = 0
    topology_key: str = ""
    when_unsatisfiable: str = ""
    label_selector: LabelSelector | None = None


class DNSOption(View):
    name: str = ""
    value: str | None = None


class DNSConfig(View):
    nameservers: list[str] = []
    searches: list[str] = []
    options: list[DNSOption] = []


class FieldRef(View):
    field_path: str = ""


class ResourceFieldRef(View):
    resource: str = ""


class DownwardFile(View):
    path: str = ""
    mode: int | None = None
    field_ref: FieldRef | None = None
    resource_field_ref: ResourceFieldRef | None = None


class DataVolumeClaim(View):
    data_source: dict[str, Any] | None = None
    data_source_ref: dict[str, Any] | None = None


class DataVolume(View):
    pvc: DataVolumeClaim | None = None
    storage: DataVolumeClaim | None = None
    source: dict[str, Any] | None = None
    source_ref: dict[str, Any] | None = None
