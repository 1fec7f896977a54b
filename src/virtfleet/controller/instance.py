"""VMIs: from an object to a launcher Pod on some node, and off again."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Sequence

import msgspec

from virtfleet.api import conditions, kinds, names
from virtfleet.api.conditions import Condition
from virtfleet.api.names import Phase, VMICondition
from virtfleet.api.view import read
from virtfleet.api.vmi import VirtualMachineInstance as VMI
from virtfleet.controller import advice, connecting, connections, disruption, lifecycle, limits, pods
from virtfleet.controller.attachments import Attachments
from virtfleet.controller.cids import Cids
from virtfleet.controller.datavolumes import records as datavolumes
from virtfleet.controller.datavolumes.records import DataVolume
from virtfleet.controller.launcherpod import POD_SCHEDULED, LauncherPod
from virtfleet.controller.lifecycle import CLAIM_NOT_FOUND, FAILED_CREATE, VOLUMES_NOT_READY, Situation, Trouble
from virtfleet.controller.pods import ForeignPod
from virtfleet.controller.records.cluster import Claim, labels_of
from virtfleet.controller.records.instance import Instance, claim_keys
from virtfleet.controller.shared import Part, Shared
from virtfleet.controller.vmstate import VmStates
from virtfleet.kube.controller import Controller
from virtfleet.kube.errors import ApiError, ignoring, is_already_exists, is_not_found
from virtfleet.kube.resource import VMS, Obj
from virtfleet.pods import launcher

logger = logging.getLogger(__name__)

WORKERS = 10
PROMPT = 3.0  # seconds in which a new Pod may well be running: until then its being there is not worth a write


class CannotCreatePod(Exception):
    """The API server does not take the VMI's Pod; it is tried again."""


def _news(vmi: Instance, status: Obj, kind: str) -> Condition | None:
    """A condition that the VMI has not had so far."""
    now = conditions.find(status.get("conditions") or (), kind)
    return now if now != conditions.find(vmi.status.conditions, kind) else None


class Instances(Part):
    """The controller."""

    def __init__(self, shared: Shared) -> None:
        super().__init__(shared)
        self._cids = Cids(self._instances)
        self._attachments = Attachments(shared)
        self._states = VmStates(shared)
        self._budgets = shared.budgets
        self._untold: dict[str, float] = {}  # VMI with a new Pod -> until when that goes without saying
        self.controller = Controller(kinds.VMI.singular, self.reconcile, [self._vms, self._nodes], workers=WORKERS)
        self.controller.follow(self._instances)
        self.controller.follow(self._pods.cache, pods.owners)
        self.controller.follow(self._budgets, pods.owners)
        self.controller.follow(self._claims, self._waiting_for_claim)
        self.controller.follow(self._volumes, self._waiting_for_claim)
        # What did not go under other settings may go now.
        self.controller.follow(self._installations, lambda _: [v.key for v in self._instances.list() if v.unprocessed])

    async def reconcile(self, key: str) -> float | None:
        """Have the Pod that the VMI needs, no other, and say how it stands."""
        vmi = self._instances.get(key)
        if vmi is None:
            self._untold.pop(key, None)
            self._cids.forget(key)
            return None
        await self._states.follow(vmi)
        existing = await self._existing_pods(vmi)
        existing = await self._without_strays(vmi, existing)
        if vmi.deleting:
            existing = await self._delete_pods(vmi, existing)
        trouble = None
        if vmi.unprocessed and not vmi.deleting and not existing:
            existing, trouble = await self._create_pod(vmi)
        await self._protect(vmi, existing)
        state = self._states.of(vmi) if vmi.spec.keeps_state else None
        cid = self._cids.of(vmi) if vmi.spec.domain.devices.autoattach_vsock and not vmi.handed_over else None
        at = Situation(vmi, tuple(existing), self._claims_of(vmi), trouble, self._vm_is_gone(vmi), state, cid)
        if at.pod and (mark := lifecycle.eviction_mark(at)):
            await self._pods.annotate(at.pod, mark)
        if at.pod and (condition := lifecycle.gate(at, time.time())):
            await self._pods.put_condition(at.pod, condition)
        wait = self._untold.get(key, 0.0) - time.monotonic()
        if wait > 0 and lifecycle.goes_without_saying(at):
            return wait
        self._untold.pop(key, None)
        await self._write(vmi, lifecycle.change(at, time.time()), at)
        if trouble and trouble.reason == FAILED_CREATE:
            raise CannotCreatePod(trouble.message)
        left = lifecycle.until_overlooked(at.pod, time.time()) if at.pod and not vmi.handed_over else None
        return left if left is not None and left > 0 else None

    # -- Pods

    async def _existing_pods(self, vmi: Instance) -> list[LauncherPod]:
        nothing_depends_on_it = vmi.unprocessed and not vmi.deleting  # a Pod's name cannot be taken twice
        settled = vmi.final and names.VMI_FINALIZER not in vmi.metadata.finalizers
        known = self._pods.of(vmi.uid)
        if nothing_depends_on_it or settled or lifecycle.current_pod(vmi, known):
            return known
        return await self._pods.listed(vmi)

    async def _without_strays(self, vmi: Instance, existing: list[LauncherPod]) -> list[LauncherPod]:
        strays = lifecycle.strays(vmi, existing)
        for pod in strays:
            logger.warning("deleting Pod %s: VMI %s had gone on without it", pod.key, vmi.key)
            await self._pods.delete(pod)
        return [pod for pod in existing if pod not in strays]

    async def _delete_pods(self, vmi: Instance, existing: Iterable[LauncherPod]) -> list[LauncherPod]:
        """Ask all Pods to end; the answer is those that still do."""
        left = []
        for pod in existing:
            now = await self._pods.delete(pod)
            if not pod.deleting:
                self._recorder.normal(vmi.reference, "SuccessfulDelete", f"Deleted virtual machine pod {pod.name}")
            left += [now] if now else []
        return left

    async def _create_pod(self, vmi: Instance) -> tuple[list[LauncherPod], Trouble | None]:
        """The VMI's Pod, or why there is none."""
        if unfilled := datavolumes.unfilled(self._volumes, self._claims, claim_keys(vmi)):
            said = "; ".join(f"{volume.name}: {volume.trouble or volume.phase or 'new'}" for volume in unfilled)
            return [], Trouble(VOLUMES_NOT_READY, f"waiting for DataVolumes to be filled: {said}")
        claims = self._claims_of(vmi)
        missing = sorted({claim for volume, claim in vmi.spec.claims.items() if volume not in claims})
        if missing:
            waits = "PVC {}/{} does not exist, waiting for it to appear"
            return [], Trouble(CLAIM_NOT_FOUND, "; ".join(waits.format(vmi.namespace, claim) for claim in missing))
        block = {volume for volume, claim in claims.items() if claim.block}
        try:
            state, trouble = await self._states.ready(vmi)
            if trouble:
                return [], trouble
            networks = connections.wanted(read(VMI, vmi.object())) if vmi.spec.secondary else ()
            if lacks := await connecting.missing(self._api, networks):
                return [], Trouble(FAILED_CREATE, lacks)
            nodes = labels_of(self._nodes)
            state_claim = state.name if state else ""
            wanted = launcher.render(
                vmi.object(), self._settings, block_volumes=block, nodes=nodes, state_claim=state_claim
            )
            wanted = await self._attachments.near(vmi, wanted)
            await self._protect(vmi, ())  # before there is anything that a drain could end
            pod, is_new = await limits.create(self._api, self._pods, vmi, vmi.object(), wanted, self._settings)
        except (ValueError, msgspec.ValidationError) as error:  # Unrenderable, or what only rendering can find
            return [], Trouble("FailedCreateValidation", str(error))
        except (ApiError, ForeignPod) as error:
            return [], Trouble(FAILED_CREATE, f"failed to create virtual machine pod: {error}")
        if is_new:
            self._untold[vmi.key] = time.monotonic() + PROMPT
            self._recorder.normal(vmi.reference, "SuccessfulCreate", f"Created virtual machine pod {pod.name}")
        return [pod], None

    async def _protect(self, vmi: Instance, existing: Sequence[LauncherPod]) -> None:
        """Have the budget that holds drains back, where the VMI wants one."""
        if vmi.final or vmi.deleting:
            return  # it goes with the VMI
        name = disruption.name(vmi.uid)
        there = self._budgets.get(f"{vmi.namespace}/{name}")
        wanted = disruption.budget(vmi, self._settings, max(len(existing), 1))
        for other in self._budgets.by_index("vmi", vmi.key):  # KubeVirt's names are its own
            if other.name != name and other.controlled_by(vmi.uid):
                await self._budgets.remove(other.key, other.uid)
        with ignoring(is_already_exists, is_not_found):
            if wanted and not there:
                await self._budgets.create(wanted)
            elif there and not wanted:
                await self._budgets.remove(there.key, there.uid)

    # -- the VMI

    async def _write(self, vmi: Instance, patch: Obj, at: Situation) -> None:
        if not patch:
            return
        with ignoring(is_not_found):
            await self._instances.change(vmi.key, patch)
            self._tell(vmi, patch.get("status") or {}, at)

    def _tell(self, vmi: Instance, status: Obj, at: Situation) -> None:
        """Events for what went wrong, once for each thing that did."""
        if status.get("phase") == Phase.FAILED and status.get("reason"):
            said = at.pod.status.message if at.pod else "its virt-launcher pod is gone"
            self._recorder.warning(vmi.reference, status["reason"], f"The VMI failed: {said or 'see its pod'}")
        if (news := _news(vmi, status, VMICondition.READY)) and news["reason"] == lifecycle.SHARING_ENDED:
            self._recorder.warning(vmi.reference, news["reason"], news["message"])
        if news := _news(vmi, status, VMICondition.SYNCHRONIZED):
            self._recorder.warning(vmi.reference, news["reason"], news["message"])
        elif news := _news(vmi, status, POD_SCHEDULED):
            if news["reason"] == lifecycle.UNSCHEDULABLE:
                # No warning, as in KubeVirt, whose users take one for the end: it waits, and a node may come.
                self._recorder.normal(vmi.reference, "FailedScheduling", advice.placement(news["message"]))
            else:
                self._recorder.warning(vmi.reference, "FailedScheduling", news["message"])

    # -- what it depends on

    def _claims_of(self, vmi: Instance) -> dict[str, Claim]:
        """The claims that exist, by the names of their volumes."""
        claims = ((volume, self._claims.get(f"{vmi.namespace}/{claim}")) for volume, claim in vmi.spec.claims.items())
        return {volume: claim for volume, claim in claims if claim}

    def _vm_is_gone(self, vmi: Instance) -> bool:
        owner = vmi.controller
        if owner is None or owner.kind != VMS.kind:
            return True
        vm = self._vms.get(f"{vmi.namespace}/{owner.name}")
        return vm is None or vm.uid != owner.uid

    def _waiting_for_claim(self, claim: Claim | DataVolume) -> list[str]:
        return [vmi.key for vmi in self._instances.by_index("claim", claim.key) if vmi.unprocessed]
