"""Running VMs that have outgrown their Pods, or that do not fit their nodes any more.

CPUs and memory come in place where the node has room: the Pod is resized, and only when its node says that it was, the
VMI's status says up to where the guest may grow (`podRoom`), which its handler goes by. Where the node has no room, or
the cluster resizes no Pods, the VM migrates into a Pod of the new size, and goes on from there in the same way. The
conditions of the VMI say what it waits for, and which of the two it is.
"""

from __future__ import annotations

import time
from hashlib import blake2s
from typing import Final, NamedTuple

import msgspec

from virtfleet.api import conditions, kinds, traits
from virtfleet.api.conditions import Condition
from virtfleet.api.names import MigrationPhase, Phase, VMICondition
from virtfleet.api.view import read
from virtfleet.api.vmi import VirtualMachineInstance as VMI
from virtfleet.controller import lifecycle, liveupdate, sizes
from virtfleet.controller.launcherpod import LauncherPod
from virtfleet.controller.migration.records import migration_of
from virtfleet.controller.pods import owners
from virtfleet.controller.records.cluster import NodeRecord
from virtfleet.controller.records.instance import Instance
from virtfleet.controller.shared import Part, Shared
from virtfleet.hypervisors import registry
from virtfleet.kube.controller import Controller
from virtfleet.kube.errors import ApiError, ignoring, is_already_exists, is_conflict, is_not_found
from virtfleet.kube.resource import Obj
from virtfleet.pods.resources import add_limits, requirements

WORKERS = 4
PATIENCE = 30.0  # seconds in which a node says what it makes of a resize
PREFIX = "fit-"
IN_PLACE, MIGRATION, STUCK = "InPlace", "Migration", "NoRoom"
_GROWING: Final = (VMICondition.CPU_CHANGE, VMICondition.MEMORY_CHANGE)
_BY_LIVE_UPDATE = "AutoMigrationDueToLiveUpdate"


class Step(NamedTuple):
    """What is being done for a VM, in one word and in words; after how many seconds to look again."""

    reason: str
    message: str
    again: float | None = None
    migration: str = ""
    """The name of the one that is needed for it."""


def waits(vmi: Instance) -> bool:
    """Whether a VM may need another Pod than it has, or a larger one."""
    return any(condition.get("type") in liveupdate.WAITING for condition in vmi.status.conditions)


def name_of(vmi: VMI, pod: LauncherPod) -> str:
    """Of the migration that takes a VM as it is wanted out of a Pod: nobody makes a second one for the same."""
    spec = vmi.spec
    placed = (spec.node_selector, spec.affinity, spec.tolerations, spec.networks)
    wanted = (traits.topology(vmi), str(traits.memory(vmi)), *placed)
    digest = blake2s(f"{vmi.metadata.uid}/{pod.uid}/".encode() + msgspec.json.encode(wanted), digest_size=8)
    return f"{PREFIX}{digest.hexdigest()}"


class Fitting(Part):
    """The controller. Its keys are those of VMIs."""

    def __init__(self, shared: Shared) -> None:
        super().__init__(shared)
        self._asked: dict[str, tuple[float, Condition]] = {}  # Pod -> when a resize was asked for, and what it said
        name = f"{kinds.VMI.singular}-fitting"
        self.controller = Controller(name, self.reconcile, [self._nodes, self._installations], workers=WORKERS)
        self.controller.follow(self._instances, lambda vmi: [vmi.key] if waits(vmi) else [])
        self.controller.follow(self._pods.cache, lambda pod: [key for key in owners(pod) if self._waits(key)])
        self.controller.follow(self._migrations, lambda move: [move.vmi_key] if self._waits(move.vmi_key) else [])

    def _waits(self, key: str) -> bool:
        vmi = self._instances.get(key)
        return vmi is not None and waits(vmi)

    async def reconcile(self, key: str) -> float | None:
        """Have the Pod that the VM needs, and say how it stands."""
        vmi = self._instances.get(key)
        if vmi is None or vmi.deleting or vmi.phase != Phase.RUNNING or not waits(vmi):
            return None
        if vmi.open_migration or self._moving(vmi):
            return None  # its end brings us here again
        pod = lifecycle.current_pod(vmi, self._pods.of(vmi.uid))
        node = self._nodes.get(vmi.status.node_name)
        if pod is None or pod.going_down or node is None:
            return None
        with ignoring(is_not_found):
            whole = await self._whole(vmi)
            if whole["metadata"]["resourceVersion"] == vmi.metadata.resource_version:  # else its change is on the way
                return await self._fit(vmi, whole, pod, node)
        return None

    async def _fit(self, vmi: Instance, whole: Obj, pod: LauncherPod, node: NodeRecord) -> float | None:
        view, held = read(VMI, whole), whole["status"].get("conditions") or []
        required = _has(held, VMICondition.MIGRATION_REQUIRED)
        misplaced = liveupdate.why_move(whole, node, pod.metadata.annotations.networks) if required else ""
        growing = any(_has(held, kind) for kind in _GROWING)
        step = await self._room(view, pod) if growing else None
        no_room = step.message if step and step.reason == MIGRATION else ""
        status: Obj = {}
        if misplaced or no_room:
            step = self._move(vmi, view, pod, "; ".join(filter(None, (misplaced, no_room))))
        elif growing and step is None:
            self._asked.pop(pod.uid, None)
            room = {"podUID": pod.uid, "sockets": traits.topology(view).sockets, "guest": str(traits.memory(view))}
            status |= {"podRoom": room} if room != whole["status"].get("podRoom") else {}
            step = Step(_way(held), "its Pod has room, and the guest is told")
        stated = _with_steps(held, step if growing else None, step if misplaced else None, given=sizes.given(view))
        status |= {"conditions": stated} if stated != held else {}
        if status:
            await self._patch_instance(vmi, {"status": status})
        if step and step.migration:
            self._asked.pop(pod.uid, None)
            await self._migrate(vmi, step)
        if growing and not any(_has(stated, kind) for kind in _GROWING):
            how = "by a migration" if _way(held) == MIGRATION else "in place"
            size = f"{traits.topology(view).sockets} sockets and {traits.memory(view)} of memory"
            self._recorder.normal(vmi.reference, "Resized", f"The VM has {size} now, {how}")
        return step.again if step else None

    # -- in place

    async def _room(self, vmi: VMI, pod: LauncherPod) -> Step | None:
        """Have the VM's Pod as large as it needs to be; None where it is."""
        wanted = requirements(vmi, registry.of(vmi), self._settings)
        add_limits(wanted, sizes.limited(pod.asks_for, wanted, traits.topology(vmi).vcpus))
        change = sizes.changed(pod.asks_for, wanted)
        pending = conditions.find(pod.status.conditions, "PodResizePending") or {}
        if fixed := sizes.fixed(change):
            return Step(MIGRATION, f"{', '.join(fixed)} of a Pod that runs cannot change")
        if change and not self._settings.enabled("InPlaceResize"):
            return Step(MIGRATION, "Pods are not resized here: disabledFeatureGates has InPlaceResize")
        if change and pod.has is None:
            return Step(MIGRATION, f"node {pod.node} resizes no Pods, which Kubernetes 1.33 and newer do")
        if change:
            if why := await self._ask(pod, change):
                return Step(MIGRATION, f"its Pod cannot be resized: {why}")
            self._asked[pod.uid] = (time.monotonic(), pending)
            return Step(IN_PLACE, "its Pod is being resized", PATIENCE)
        since, before = self._asked.setdefault(pod.uid, (time.monotonic(), {}))
        # What was said of an earlier size is not about this one.
        if pending.get("status") == "True" and pending != before:
            return Step(MIGRATION, f"node {pod.node} has no room: {pending.get('reason')}, {pending.get('message')}")
        if sizes.enough(pod.has, wanted) and not conditions.holds(pod.status.conditions, "PodResizeInProgress"):
            return None
        left = since + PATIENCE - time.monotonic()
        if left > 0:
            return Step(IN_PLACE, "its Pod is being resized", left)
        return Step(MIGRATION, f"node {pod.node} has not resized its Pod within {PATIENCE:.0f} s")

    async def _ask(self, pod: LauncherPod, change: Obj) -> str:
        """Ask for other resources of a Pod; the answer is why it cannot have them."""
        try:
            await self._pods.resize(pod, change)
        except ApiError as error:
            if is_conflict(error) or error.code >= 500:
                raise
            return error.message
        return ""

    # -- by a migration

    def _move(self, vmi: Instance, view: VMI, pod: LauncherPod, why: str) -> Step:
        name = name_of(view, pod)
        known = self._migrations.get(f"{vmi.namespace}/{name}")
        if known and known.phase == MigrationPhase.FAILED:
            state = known.status.migration_state
            said = (state and state.failure_reason) or "see its conditions"
            return Step(STUCK, f"{why}; its migration {name} has failed ({said}): delete it for another try")
        if not vmi.migratable:
            fixed = conditions.find(vmi.status.conditions, VMICondition.LIVE_MIGRATABLE) or {}
            return Step(STUCK, f"{why}; and the VM cannot migrate: {fixed.get('message') or 'nobody has said yet'}")
        return Step(MIGRATION, f"{why}; the VM migrates ({name})", migration=name)

    async def _migrate(self, vmi: Instance, step: Step) -> None:
        """Once the VMI says so: a migration that is under way leaves no time for that."""
        with ignoring(is_already_exists):
            await self._migrations.create(migration_of(vmi, step.migration))
            self._recorder.normal(vmi.reference, VMICondition.MIGRATION_REQUIRED, step.message)


def _has(held: list[Condition], kind: str) -> bool:
    return conditions.find(held, kind) is not None


def _way(held: list[Condition]) -> str:
    """How a VM comes to its size: what was said of a migration holds also when the guest has arrived."""
    moved = any(conditions.holds(held, kind, reason=MIGRATION) for kind in _GROWING)
    return MIGRATION if moved else IN_PLACE


def _with_steps(held: list[Condition], growing: Step | None, moving: Step | None, *, given: bool) -> list[Condition]:
    """The conditions: those of sizes until the domain has them, the other until the VM is where it may be."""
    now = time.time()
    for kind in _GROWING:
        if growing and _has(held, kind):
            status = "False" if growing.reason == STUCK else "True"
            held = conditions.put(held, kind, status, now, reason=growing.reason, message=growing.message)
            held = conditions.drop(held, kind) if given else held
    why = (_BY_LIVE_UPDATE, moving.message) if moving else None
    return conditions.state(held, VMICondition.MIGRATION_REQUIRED, now, why)
