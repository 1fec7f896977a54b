"""The launcher Pod that a VM migrates into: as its own would be, on another node that has what the guest has seen.

Its name follows from the migration's UID, so that a migration has one at most, whoever asks for it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from virtfleet.api import names
from virtfleet.api.view import read
from virtfleet.api.vmi import VirtualMachineInstance as VMI
from virtfleet.domain import abi
from virtfleet.installation import Installation
from virtfleet.pods.heldimages import Nodes
from virtfleet.pods.launcher import Unrenderable, pod_name, render
from virtfleet.pools.placement import apart

_HOSTNAME = "kubernetes.io/hostname"
# Labels of the VMI that say where it runs, and mean nothing on a Pod.
_OF_THE_SOURCE = (names.NODE_NAME, names.MIGRATION_TARGET_NODE, names.OUTDATED_LAUNCHER_IMAGE)


@dataclass(frozen=True, slots=True)
class Move:
    """What a target Pod is made for, and what it depends on besides the VMI."""

    name: str
    """Of the migration."""
    uid: str
    image: str
    """The launcher image that the source runs; "" for the one that a new VM would get."""
    source_labels: Mapping[str, str]
    """Of the node that the VM runs on."""
    added_node_selector: Mapping[str, str]


def render_target(
    vmi: Mapping[str, Any],
    settings: Installation,
    move: Move,
    *,
    block_volumes: Collection[str] = (),
    nodes: Nodes | None = None,
    state_claim: str = "",
) -> dict[str, Any]:
    """The launcher Pod of a VMI that runs, for one migration of it."""
    pod = render(vmi, settings, block_volumes=block_volumes, nodes=nodes, state_claim=state_claim)
    view = read(VMI, vmi)
    meta, spec = pod["metadata"], pod["spec"]
    runs_on, goes_to = view.metadata.annotations.get(names.LAUNCHER_HYPERVISOR), settings.fleet.launcher(vmi)
    if runs_on and runs_on != goes_to.hypervisor:
        raise Unrenderable(
            f"the VM runs on hypervisor {runs_on} and would start on {goes_to.hypervisor} now; restart it for that"
        )
    meta["name"] = pod_name(view.metadata.name, move.uid)
    meta["labels"] = {name: value for name, value in meta["labels"].items() if name not in _OF_THE_SOURCE}
    meta["labels"][names.MIGRATION_UID] = move.uid
    meta["annotations"][names.MIGRATION_NAME] = move.name
    if move.image:
        for container in (*spec.get("initContainers", ()), *spec["containers"]):
            if container["image"] == goes_to.image:
                container["image"] = move.image
    # Labels that the VM asks for itself go first: what is added may only narrow the choice.
    spec["nodeSelector"] = {
        **move.added_node_selector,
        **cpu_selector(view, move.source_labels),
        **spec["nodeSelector"],
    }
    of_the_vmi = {"labelSelector": {"matchLabels": {names.CREATED_BY: view.metadata.uid}}, "topologyKey": _HOSTNAME}
    spec["affinity"] = apart(spec.get("affinity") or {}, of_the_vmi)
    level = view.status.selinux_context.split(":", 3)[3:]
    if level and settings.migrations.match_selinux_level_on_migration is not False:
        # A runtime labels volumes anew for each level: with another one, the source would lose those that both have.
        spec["securityContext"].setdefault("seLinuxOptions", {})["level"] = level[0]
    return pod


def cpu_selector(vmi: VMI, source_labels: Mapping[str, str]) -> dict[str, str]:
    """Labels of nodes that have the CPU which the guest was given from its node's.

    Only what is a label of the source can be asked for: nodes say by labels what they have, and not everything that
    a guest sees of its CPU has one.
    """
    asked, cpu = vmi.spec.domain.cpu, abi.checked(vmi.status.guest_abi).cpu
    model = asked.model if asked else ""
    # No guest goes from one maker's CPUs to another's, and one that sees all of its node's CPU only to the same model.
    alike = (names.CPU_VENDOR, *([names.HOST_MODEL_CPU] if model == "host-passthrough" else ()))
    same = {label: "true" for label, value in source_labels.items() if label.startswith(alike) and value == "true"}
    if cpu is None or model not in ("", "host-model"):
        return same
    features = [names.CPU_FEATURE + feature for feature in cpu.features if not feature.startswith("-")]
    wanted = [names.CPU_MODEL_MIGRATION + cpu.model, *features]
    return same | {label: "true" for label in wanted if source_labels.get(label) == "true"}
