"""The controller of migrations.

One worker decides for all of them, so that limits are counted once and for everybody. What it has made it finds again
by names that follow from the migration's UID; nothing else is remembered, except since when a VMI has been without its
Pod, which a new controller counts anew.
"""

from __future__ import annotations

import dataclasses
import logging
import time

import msgspec
import orjson

from virtfleet.api import conditions, kinds, names, times
from virtfleet.api.migration import VirtualMachineInstanceMigrationState as State
from virtfleet.api.migration import migration_failure
from virtfleet.api.names import MigrationCondition, MigrationPhase, Phase
from virtfleet.controller import disruption, lifecycle, limits
from virtfleet.controller.attachments import Attachments
from virtfleet.controller.launcherpod import LauncherPod
from virtfleet.controller.migration import phases, queue, records
from virtfleet.controller.migration.phases import Situation
from virtfleet.controller.migration.queue import Limits, Place
from virtfleet.controller.migration.records import UNFINISHED, Migration
from virtfleet.controller.pods import ForeignPod, migration_keys, owners
from virtfleet.controller.records.cluster import labels_of
from virtfleet.controller.records.instance import Instance, decode_instance
from virtfleet.controller.shared import Part, Shared
from virtfleet.controller.vmstate import NoState, VmStates, arrived_in
from virtfleet.kube.controller import Controller
from virtfleet.kube.errors import ApiError, ignoring, is_already_exists, is_not_found
from virtfleet.kube.resource import NAMESPACES, POD_DISRUPTION_BUDGETS, PODS, Obj
from virtfleet.pods.target import Move, render_target
from virtfleet.pods.vmstate import claim_name

logger = logging.getLogger(__name__)

KEPT = 5  # finished migrations of a VMI that stay to be read
_QUOTA = "exceeded quota"
_FOR_GOOD = (400, 403, 422)  # answers that another try does not change
_LOOK_AGAIN = 1.0
_VOLUMES_AGAIN = 60.0  # seconds between looks at volumes that do not come to the target


class CannotCreatePod(Exception):
    """The API server does not take the target Pod; it is tried again."""


class Migrations(Part):
    """The controller."""

    def __init__(self, shared: Shared) -> None:
        super().__init__(shared)
        self._attachments = Attachments(shared)
        self._states = VmStates(shared)
        self._policies = shared.policies
        self._source_lost: dict[str, float] = {}  # UID of a migration -> since when, by our own clock
        self.controller = Controller(
            kinds.MIGRATION.singular, self.reconcile, [self._nodes, self._claims, self._policies]
        )
        self.controller.follow(self._migrations)
        self.controller.follow(self._instances, lambda vmi: [m.key for m in self._of_vmi(vmi.key)])
        self.controller.follow(self._pods.cache, self._of_pod)
        self.controller.follow(shared.attached, lambda pod: [m.key for m in self._of_vmi(pod.vmi_key) if not m.final])
        self._migrations.on_change(self._left_the_queue)
        self.controller.follow(self._installations, lambda _: self._next())

    async def reconcile(self, key: str) -> float | None:
        """Bring a migration as far as it can go now."""
        migration = self._migrations.get(key)
        if migration is None:
            return await self._without_migration(key)
        at = await self._look(migration)
        await self._tell_networks(at.target, at.state)
        if migration.final:
            return await self._settle(at)
        if migration.phase == Phase.PENDING and phases.next_phase(at, time.time())[0] == Phase.PENDING:
            at = await self._begin(at)
        at = await self._hand_over(at)
        at = await self._end(at)
        now = time.time()
        phase, reason = phases.next_phase(at, now)
        if phase == MigrationPhase.SCHEDULING and (said := phases.unplaced(at)):
            self._recorder.warning(migration.reference, "migrationTargetPodUnschedulable", said)
        await self._write(at, phase, reason, now)
        return phases.look_again(at, phase, now)

    # -- what there is

    async def _look(self, migration: Migration) -> Situation:
        """What is there may be read from caches; that a Pod is not there is believed when the API server says so."""
        vmi = self._instances.get(migration.vmi_key)
        if vmi is None:
            return Situation(migration, None, next(iter(self._pods.cache.by_index("migration", migration.key)), None))
        pods = self._pods.of(vmi.uid)
        target, source = _target(migration, pods), lifecycle.current_pod(vmi, pods)
        if (target is None and migration.begun and not migration.final) or (source is None and not vmi.final):
            pods = await self._pods.listed(vmi)
            target, source = _target(migration, pods), lifecycle.current_pod(vmi, pods)
        node = self._nodes.get(vmi.status.node_name)
        at = Situation(migration, vmi, target, source, source_out_of_service=node is not None and node.out_of_service)
        if source or migration.final or not at.under_way:
            self._source_lost.pop(migration.uid, None)
            return at
        now = time.monotonic()
        return dataclasses.replace(at, source_lost_for=now - self._source_lost.setdefault(migration.uid, now))

    def _of_vmi(self, key: str) -> list[Migration]:
        return self._migrations.by_index("vmi", key)

    def _of_pod(self, pod: LauncherPod) -> list[str]:
        return [*migration_keys(pod), *(migration.key for owner in owners(pod) for migration in self._of_vmi(owner))]

    # -- the queue

    def places(self) -> tuple[list[Place], list[Place]]:
        """Migrations that wait, and those that something has been made for."""
        waiting, active = [], []
        for migration in self._migrations.by_index(UNFINISHED, UNFINISHED):
            vmi = self._instances.get(migration.vmi_key)
            since = times.seconds(migration.metadata.creation_timestamp)
            node = vmi.status.node_name if vmi else ""
            rejected = conditions.holds(migration.status.conditions, MigrationCondition.REJECTED_BY_QUOTA)
            place = Place(migration.key, migration.vmi_key, node, since, migration.spec.priority, rejected)
            if migration.begun or self._pods.cache.by_index("migration", migration.key):
                active.append(place)
            elif vmi and vmi.phase == Phase.RUNNING and not migration.deleting:
                waiting.append(place)
        return waiting, active

    @property
    def limits(self) -> Limits:
        return Limits.of(self._settings.migrations)

    def _next(self) -> list[str]:
        return queue.next_to_begin(*self.places(), self.limits)

    def _left_the_queue(self, _key: str, old: Migration | None, new: Migration | None) -> None:
        """What has ended makes room for others."""
        if old and not old.final and (new is None or new.final):
            for key in self._next():
                self.controller.queue.add(key)

    async def _begin(self, at: Situation) -> Situation:
        """Make the target Pod, where it is the migration's turn and the VM has no other Pod than the one it runs in."""
        migration, vmi = at.migration, at.vmi
        if vmi is None or vmi.phase != Phase.RUNNING or at.source is None or migration.key not in self._next():
            return at
        if not await self._alone(vmi, at.source):
            return at
        whole = await self._whole(vmi)
        if whole["metadata"]["uid"] != vmi.uid:
            return at
        await self._protect(vmi, pods=2)  # before there is a second Pod whose readiness would let the first one go
        try:
            state_claim = await self._states.for_target(vmi, migration.name, migration.uid)
            rendered = self._rendered(migration, vmi, whole, at.source, state_claim)
            wanted = await self._attachments.near(vmi, rendered)
            pod, is_new = await limits.create(self._api, self._pods, vmi, whole, wanted, self._settings)
        except (ValueError, msgspec.ValidationError, ForeignPod, NoState) as error:
            return await self._fail(at, str(error))
        except ApiError as error:
            if not await self._say_quota(migration, error) and error.code in _FOR_GOOD:
                return await self._fail(at, f"the target pod was refused: {error.message}")
            raise CannotCreatePod(f"failed to create the target pod: {error}") from error
        if is_new:
            said = f"Created migration target pod {pod.name}"
            self._recorder.normal(migration.reference, "SuccessfulCreate", said)
        return dataclasses.replace(at, target=pod)

    async def _alone(self, vmi: Instance, source: LauncherPod) -> bool:
        """Whether the VM has one Pod. What earlier migrations have left is cleared away first."""
        left = vmi.open_migration
        if left:  # its object went without its controller
            await self._release(vmi, left)
            return False
        others = [pod for pod in await self._pods.listed(vmi) if pod.uid != source.uid]
        unfinished = {m.uid for m in self._of_vmi(vmi.key) if not m.final}
        for pod in others:
            if pod.migration_uid not in unfinished:
                await self._pods.delete(pod)
        return not others

    def _rendered(self, migration: Migration, vmi: Instance, whole: Obj, source: LauncherPod, state_claim: str) -> Obj:
        node = self._nodes.get(vmi.status.node_name)
        move = Move(
            migration.name,
            migration.uid,
            image="" if migration.metadata.annotations.workload_update is not None else source.image,
            source_labels=node.metadata.labels if node else {},
            added_node_selector=migration.spec.added_node_selector,
        )
        claims = {name: self._claims.get(f"{vmi.namespace}/{claim}") for name, claim in vmi.spec.claims.items()}
        block = {name for name, claim in claims.items() if claim and claim.block}
        return render_target(
            whole, self._settings, move, block_volumes=block, nodes=labels_of(self._nodes), state_claim=state_claim
        )

    async def _say_quota(self, migration: Migration, error: ApiError) -> bool:
        """Whether the Pod was refused for a quota, which may have room later."""
        if error.code != 403 or _QUOTA not in error.message:
            return False
        kind = MigrationCondition.REJECTED_BY_QUOTA
        rejected = conditions.put(migration.status.conditions, kind, "True", time.time(), message=error.message)
        if rejected != migration.status.conditions:
            await self._patch(migration, {"status": {"conditions": rejected}}, "status")
            self._recorder.warning(migration.reference, kind, error.message)
        return True

    async def _protect(self, vmi: Instance, pods: int) -> None:
        """Have the VMI's budget, where it wants one, hold back evictions of so many Pods."""
        wanted = disruption.budget(vmi, self._settings, pods)
        if wanted is None:
            return
        with ignoring(is_already_exists):
            await self._api.create(POD_DISRUPTION_BUDGETS, wanted)
            return
        meta, spec = wanted["metadata"], {"spec": {"minAvailable": pods}}
        await self._api.patch(POD_DISRUPTION_BUDGETS, meta["name"], spec, meta["namespace"])

    # -- with the handlers

    async def _hand_over(self, at: Situation) -> Situation:
        """Tell both handlers, in one write, once the target Pod runs."""
        migration, vmi, source, target = at.migration, at.vmi, at.source, at.target
        if at.state or phases.next_phase(at, time.time())[0] != Phase.SCHEDULED:
            return at
        if migration.phase != Phase.SCHEDULED:
            return at  # that it is Scheduled is written first, which is a change after which it goes on
        assert vmi and target
        attached, missing = await self._attachments.target(vmi, target)
        if missing:
            if time.time() - times.seconds(migration.since) > phases.NOT_RUNNING:
                return await self._fail(at, missing)
            self.controller.queue.add_after(migration.key, _VOLUMES_AGAIN)
            return at
        whole = await self._whole(vmi)
        if source is None or whole["metadata"]["uid"] != vmi.uid or whole["status"].get("nodeName") != source.node:
            return at
        if why := await self._other_claims(decode_instance(orjson.dumps(whole)), target):
            return await self._fail(at, why)
        namespace = await self._api.get(NAMESPACES, vmi.namespace)
        chosen = records.matching(self._policies.list(), vmi.metadata.labels, namespace["metadata"].get("labels") or {})
        how = records.in_force(self._settings.migrations, chosen)
        more = {"migrationPolicyName": chosen.name} if chosen else {}
        if attached:
            more["targetAttachmentPodUID"] = ",".join(pod.uid for pod in attached)
        if current := self._states.of(vmi) if vmi.spec.keeps_state else None:
            more["sourcePersistentStatePVCName"] = current.name
            more["targetPersistentStatePVCName"] = claim_name(vmi.name, migration.uid)
        patch = phases.hand_over(whole, migration, source, target, how, more)
        written = await self._patch_instance(vmi, patch, whole)
        said = "Migration target pod is ready for preparation by virt-handler."
        self._recorder.normal(migration.reference, "SuccessfulHandOver", said)
        return dataclasses.replace(at, vmi=written)

    async def _tell_networks(self, target: LauncherPod | None, state: State | None) -> None:
        """Mark the Pod that the guest has come to run in, by which a network can let the VM keep its address."""
        since = state.target_node_domain_ready_timestamp if state else ""
        if since and target and not target.metadata.annotations.target_ready:
            # In the words of Go's time.Time, which networks read it as.
            said = f"{since[:10]} {since[11:19]} +0000 UTC"
            await self._pods.annotate(target, {names.MIGRATION_TARGET_READY: said})

    async def _other_claims(self, vmi: Instance, target: LauncherPod) -> str:
        """Why a target is none: the VM's volumes were put on other claims after its Pod was made."""
        if not vmi.spec.claims:
            return ""
        pod = await self._api.get(PODS, target.name, target.namespace)
        mounted = {v["name"]: v.get("persistentVolumeClaim") for v in pod["spec"].get("volumes") or ()}
        for name, claim in vmi.spec.claims.items():
            if (there := mounted.get(name)) and there["claimName"] != claim:
                return f"target pod {target.name} was made before volume {name} of the VM was put on claim {claim}"
        return ""

    async def _end(self, at: Situation) -> Situation:
        """End what the handlers cannot, or have it ended by the source."""
        vmi, now = at.vmi, time.time()
        if at.under_way is None or vmi is None:
            return at
        if why := phases.why_ended(at, now):
            state = phases.ended_state(at, why, now)
        elif phases.aborted(at, now):
            state = {"abortRequested": True}
            self._recorder.normal(at.migration.reference, "SuccessfulAbortMigration", "Migration is ready for abort.")
        elif phases.source_ended(at):
            state = {"sourceEndTimestamp": times.timestamp(now)}
        else:
            return at
        return dataclasses.replace(at, vmi=await self._patch_state(vmi, state))

    async def _release(self, vmi: Instance, state: State) -> None:
        """End a migration whose object is gone; the source does that where it may have begun."""
        why = "the migration was deleted"
        end = migration_failure(why)
        pods = await self._pods.listed(vmi)
        lives = any(pod.migration_uid == state.migration_uid and not pod.ended for pod in pods)
        change = {"abortRequested": True} if state.target_node_address and lives else end
        await self._patch_state(vmi, change)

    async def _patch_state(self, vmi: Instance, change: Obj) -> Instance:
        """Write to the VMI's `migrationState`, by what was seen of it: handlers write there, too."""
        return await self._patch_instance(vmi, {"status": {"migrationState": change}})

    # -- the migration itself

    async def _fail(self, at: Situation, reason: str) -> Situation:
        await self._write(at, MigrationPhase.FAILED, reason, time.time())
        return dataclasses.replace(at, migration=self._migrations.get(at.migration.key) or at.migration)

    async def _write(self, at: Situation, phase: str, reason: str, now: float) -> None:
        change = phases.status(at, phase, reason, now)
        if not change:
            return
        await self._patch(at.migration, {"status": change}, "status")
        if change.get("phase") == MigrationPhase.FAILED:
            self._recorder.warning(at.migration.reference, "FailedMigration", f"Migration failed: {reason}")
        elif change.get("phase") == MigrationPhase.SUCCEEDED:
            where = at.state.target_node if at.state else ""
            said = f"Source node reported migration succeeded; the VMI runs on node {where}"
            self._recorder.normal(at.migration.reference, "SuccessfulMigration", said)

    async def _settle(self, at: Situation) -> float | None:
        """Clear away what a migration that has ended leaves, and let it go."""
        migration, vmi = at.migration, at.vmi
        if names.MIGRATION_FINALIZER not in migration.metadata.finalizers:
            return None
        if vmi and at.state and not at.under_way and names.MIGRATION_TARGET_NODE in vmi.metadata.labels:
            vmi = await self._patch_instance(vmi, {"metadata": {"labels": {names.MIGRATION_TARGET_NODE: None}}})
        left = [pod for pod in await self._left_over(at) if await self._pods.delete(pod)]
        if any(not pod.ended for pod in left):
            return _LOOK_AGAIN  # as long as there are two that are ready, the budget has to protect two
        if not (vmi and arrived_in(vmi) == claim_name(vmi.name, migration.uid)):
            await self._states.forget(migration.spec.vmi_name, migration.namespace, migration.uid)
        if vmi:
            with ignoring(is_not_found):
                spec = {"spec": {"minAvailable": 1}}
                await self._api.patch(POD_DISRUPTION_BUDGETS, disruption.name(vmi.uid), spec, vmi.namespace)
        finalizers = [f for f in migration.metadata.finalizers if f != names.MIGRATION_FINALIZER]
        await self._patch(migration, {"metadata": {"finalizers": finalizers}})
        await self._forget_oldest(migration)
        return None

    async def _left_over(self, at: Situation) -> list[LauncherPod]:
        """Pods that the migration was between, and in which the VM does not run."""
        if at.vmi is None:
            return [at.target] if at.target else []
        state, pods = at.migration.status.migration_state, await self._pods.listed(at.vmi)
        current = lifecycle.current_pod(at.vmi, pods)
        failed = at.migration.phase == MigrationPhase.FAILED
        ours = {pod.uid for pod in pods if pod.migration_uid == at.migration.uid}
        if not failed and state:
            ours |= {pod.uid for pod in pods if pod.name == state.source_pod}
        return [pod for pod in pods if pod.uid in ours and pod is not current]

    async def _forget_oldest(self, migration: Migration) -> None:
        """Of the migrations of a VMI that have ended, the last ones are kept."""
        ended = [m for m in self._of_vmi(migration.vmi_key) if m.final and not m.deleting]
        ended.sort(key=lambda m: (m.metadata.creation_timestamp, m.name))
        for old in ended[:-KEPT]:
            await self._migrations.remove(old.key, old.uid)

    async def _without_migration(self, key: str) -> float | None:
        """End what is left of a migration whose object is gone, by the API server's own word."""
        pods = self._pods.cache.by_index("migration", key)
        if not pods:
            return None
        with ignoring(is_not_found):
            await self._migrations.fetch(key)
            return None
        again = None
        for pod in pods:
            again = await self._clear(pod) or again
        return again

    async def _clear(self, pod: LauncherPod) -> float | None:
        """Delete a Pod that was made for a migration which is gone, unless the VM came to run in it."""
        vmi = next((vmi for key in owners(pod) if (vmi := self._instances.get(key))), None)
        if vmi and pod.controlled_by(vmi.uid):
            state = vmi.open_migration
            if state and state.migration_uid == pod.migration_uid:
                if not state.abort_requested:
                    await self._release(vmi, state)
                return _LOOK_AGAIN
            if lifecycle.current_pod(vmi, self._pods.of(vmi.uid)) is pod:
                await self._tell_networks(pod, vmi.status.migration_state)
                return None
        await self._pods.delete(pod)
        return None

    async def _patch(self, migration: Migration, patch: Obj, subresource: str | None = None) -> None:
        """Finalizers and conditions are everybody's: no write over what was not seen."""
        seen = {"resourceVersion": migration.metadata.resource_version}
        patch = {**patch, "metadata": {**patch.get("metadata", {}), **seen}}
        with ignoring(is_not_found):
            await self._migrations.change(migration.key, patch, subresource=subresource)


def _target(migration: Migration, pods: list[LauncherPod]) -> LauncherPod | None:
    return next((pod for pod in pods if pod.migration_uid == migration.uid), None)
