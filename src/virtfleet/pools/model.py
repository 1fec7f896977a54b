"""The one model of a virt-handler pool.

The KubeVirt object has two lists for pools: `spec.virtHandlerPools` matches VMIs by device and label,
`spec.additionalVirtHandlers` by the VMI's own nodeSelector. Everything behind this module sees one kind of `Pool`, in
the order in which pools are asked: the first list from top to bottom, then the second.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from virtfleet.api.feature_gates import FeatureGates
from virtfleet.api.kubevirt import KubeVirtWorkloadUpdateStrategy
from virtfleet.api.selectors import NOTHING, Selector, SelectorError, from_label_selector
from virtfleet.api.view import read

# field of the KubeVirt spec -> the feature gate it needs, in the order in which pools are asked
POOL_FIELDS = {"virtHandlerPools": "VirtHandlerPools", "additionalVirtHandlers": "AdditionalVirtHandlers"}


@dataclass(frozen=True, slots=True)
class Pool:
    """Nodes that share a virt-handler, and the VMIs that belong on them."""

    name: str
    field: str
    index: int
    node_selector: Mapping[str, str]
    handler_image: str = ""
    launcher_image: str = ""
    hypervisor: str = ""
    exclusive: bool = False
    device_names: frozenset[str] = frozenset()
    vm_labels: Selector = NOTHING
    update_strategy: KubeVirtWorkloadUpdateStrategy | None = None
    """How its VMs get new launchers; None: as the installation says."""

    @property
    def path(self) -> str:
        """Where it stands in the KubeVirt object, for messages."""
        return f"spec.{self.field}[{self.index}]"

    @property
    def matches_by_node_selector(self) -> bool:
        return self.field == "additionalVirtHandlers"

    @property
    def daemon_set(self) -> str:
        return f"virt-handler-{self.name}"

    def selects(self, labels: Mapping[str, str]) -> bool:
        """Whether a node with these labels has all that the pool asks for; an earlier pool may still own it."""
        return all(labels.get(key) == value for key, value in self.node_selector.items())


def pools_of(kubevirt: Mapping[str, Any]) -> tuple[Pool, ...]:
    """The pools in force. A list whose gate is off has none, so that switching a gate off takes its pools away."""
    gates = FeatureGates.of(kubevirt)
    return tuple(pool for field, gate in POOL_FIELDS.items() if gates.enabled(gate) for pool in listed(kubevirt, field))


def listed(kubevirt: Mapping[str, Any], field: str) -> tuple[Pool, ...]:
    """The pools of one list, whether or not its gate is on. Entries without a nodeSelector own nothing: left out."""
    entries = (kubevirt.get("spec") or {}).get(field) or ()
    return tuple(_pool(field, i, entry) for i, entry in enumerate(entries) if entry.get("nodeSelector"))


def _pool(field: str, index: int, entry: Mapping[str, Any]) -> Pool:
    selector, updates = entry.get("selector") or {}, entry.get("workloadUpdateStrategy")
    return Pool(
        name=entry.get("name") or "",
        field=field,
        index=index,
        node_selector=dict(sorted(entry["nodeSelector"].items())),
        handler_image=entry.get("virtHandlerImage") or "",
        launcher_image=entry.get("virtLauncherImage") or "",
        hypervisor=entry.get("hypervisor") or "",
        exclusive=bool(entry.get("exclusive")),
        device_names=frozenset(filter(None, selector.get("deviceNames") or ())),
        vm_labels=_vm_labels(selector.get("vmLabels")),
        update_strategy=read(KubeVirtWorkloadUpdateStrategy, updates) if updates is not None else None,
    )


def _vm_labels(selector: Mapping[str, Any] | None) -> Selector:
    # An empty label selector would match every VMI, which nobody means: admission refuses it, and here it matches none.
    if not selector or not (selector.get("matchLabels") or selector.get("matchExpressions")):
        return NOTHING
    try:
        return from_label_selector(selector)
    except (SelectorError, KeyError):
        return NOTHING


def owner(pools: tuple[Pool, ...], labels: Mapping[str, str]) -> Pool | None:
    """The pool whose handler serves a node with these labels: the first that selects it. None: the primary handler."""
    return next((pool for pool in pools if pool.selects(labels)), None)
