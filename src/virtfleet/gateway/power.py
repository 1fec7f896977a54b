"""Starting, stopping and restarting VMs.

What a VM does is decided by its run strategy; where that leaves no room, a request is put into its status, which
virt-controller carries out. The decisions are KubeVirt's, and pure; a change that lost a race is decided anew.

Whoever speaks last has it their way: a stop also stops what is about to start, and no start or restart that waits from
before survives it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from virtfleet.api.names import Phase, VMCondition, VMICondition
from virtfleet.gateway.vms import VM_NOT_RUNNING, Options, Vm, Vmi, Vms, bad_request
from virtfleet.kube.api import KubeApi
from virtfleet.kube.errors import ApiError, ignoring, is_conflict, is_not_found
from virtfleet.kube.resource import VMIS, VMS, Obj

_ATTEMPTS = 5
_RECOVERY = (
    "VM recovery required: its volumes go, or were going, to other claims, and these may hold half of the data; put the"
    " old claims back into the template, or set updateVolumesStrategy to Replacement to use the new ones"
)
_AT_ONCE = 1  # seconds: the shortest time in which a guest is ended safely


class StartOptions(Options):
    """The body of a request to start."""

    paused: bool = False


class StopOptions(Options):
    """The body of a request to stop."""

    grace_period: int | None = None


class RestartOptions(Options):
    """The body of a request to restart."""

    grace_period_seconds: int | None = None


@dataclass(frozen=True, slots=True)
class Change:
    """A patch of the VM, or of its status; and the seconds that its instance has to shut down, if that changes."""

    patch: Obj
    of_status: bool = False
    grace: int | None = None


# --- decisions


def start(vm: Vm, vmi: Vmi | None, paused: bool) -> Change:
    """What starts the VM."""
    if vm.view.metadata.deletion_timestamp:
        raise vm.conflict("VM is being deleted; create it again when it is gone")
    if vmi and not vmi.final and vmi.phase not in ("", Phase.UNKNOWN):
        raise vm.conflict("VM is already running")
    if vm.has(VMCondition.MANUAL_RECOVERY):
        raise vm.conflict(_RECOVERY)
    data = {"data": {"paused": "true"}} if paused else {}
    match vm.strategy:
        case "Halted" if paused and vm.view.spec.template.spec.start_strategy != "Paused":
            # It counts as long as nobody changes the VM, which would say once more that it is halted.
            generation = str(vm.view.metadata.generation or 0)
            return _requests(vm, {"action": "Start", "data": {"paused": "true", "generation": generation}})
        case "Halted":
            _check_nothing_waits(vm)  # a start that is to be paused, for instance, would pause this one
            return _switched(vm, on=True)
        case "RerunOnFailure" if vmi and vmi.phase == Phase.FAILED:
            raise vm.conflict("RerunOnFailure does not support starting VM from failed state; it is started by itself")
        case "RerunOnFailure" | "Manual":
            stop = [_stop(vmi)] if vmi and vmi.final else []
            return _requests(vm, *stop, {"action": "Start", **data})
        case strategy:
            raise vm.conflict(f"{strategy} does not support manual start requests; it starts the VM by itself")


def stop(vm: Vm, vmi: Vmi | None, grace: int | None) -> Change:
    """What stops the VM, in `grace` seconds if they are given."""
    running = vmi if vmi and not vmi.final else None
    match vm.strategy:
        case "Always" | "Once":
            return _switched(vm, on=False, grace=grace if running else None)
        case "RerunOnFailure" | "Manual" if _is_about_to_start(vm, vmi):
            # Whichever instance there is when this is carried out: the one that starts has no name yet.
            return _requests(vm, {"action": "Stop"}, grace=grace if running else None)
        case _ if running is None:
            raise vm.conflict(VM_NOT_RUNNING)
        case "Halted" if grace is None or not _shorter(grace, running):
            raise vm.conflict("Halted only supports manual stop requests with a shorter graceperiod; it is stopping")
        case "Halted" | "RerunOnFailure" | "Manual":
            return _requests(vm, _stop(running), grace=grace)
        case strategy:
            raise vm.conflict(f"{strategy} does not support manual stop requests; change spec.runStrategy")


def restart(vm: Vm, vmi: Vmi | None, at_once: bool) -> Change:
    """What stops the VM's instance and starts another one."""
    if vm.has(VMICondition.VOLUMES_CHANGE):
        raise vm.conflict(_RECOVERY)
    if vm.strategy not in ("Always", "RerunOnFailure", "Manual"):
        raise vm.conflict(f"RunStrategy {vm.strategy} does not support manual restart requests; use virtctl start")
    if vmi is None:
        raise vm.conflict(f"{VM_NOT_RUNNING}; start it with virtctl start {vm.name}")
    return _requests(vm, _stop(vmi), {"action": "Start"}, grace=_AT_ONCE if at_once and not vmi.final else None)


def _is_about_to_start(vm: Vm, vmi: Vmi | None) -> bool:
    """The controller will make an instance: it was asked to, or the last one failed and is to be run again."""
    waits = any(request.action == "Start" for request in vm.view.status.state_change_requests)
    return waits or (vm.strategy == "RerunOnFailure" and vmi is not None and vmi.phase == Phase.FAILED)


def _shorter(grace: int, vmi: Vmi) -> bool:
    present = vmi.view.spec.termination_grace_period_seconds
    return present is None or grace < present


def _stop(vmi: Vmi) -> Obj:
    """A stop names the instance that it means, so that it cannot hit the next one."""
    return {"action": "Stop", "uid": vmi.view.metadata.uid}


def _requests(vm: Vm, *requests: Obj, grace: int | None = None) -> Change:
    # A stop overrides whatever waits; anything else would be mixed up with it.
    if [r["action"] for r in requests] != ["Stop"]:
        _check_nothing_waits(vm)
    status = {"stateChangeRequests": [*requests], "startFailure": None}
    return Change(vm.patch(status=status), of_status=True, grace=grace)


def _check_nothing_waits(vm: Vm) -> None:
    if vm.view.status.state_change_requests:
        raise vm.conflict("unable to complete request: stop/start already underway; try again when that is done")


def _switched(vm: Vm, *, on: bool, grace: int | None = None) -> Change:
    spec: Obj = {"runStrategy": "Always" if on else "Halted"} if vm.view.spec.run_strategy else {"running": on}
    return Change(vm.patch(spec=spec), grace=grace)


# --- carrying out


@dataclass
class Power:
    """Carries such requests out."""

    _api: KubeApi
    _vms: Vms

    async def start(self, namespace: str, name: str, options: StartOptions) -> None:
        """Start a VM, or pause it as soon as it has started."""
        await self._change(namespace, name, lambda vm, vmi: start(vm, vmi, options.paused), options.dry_run)

    async def stop(self, namespace: str, name: str, options: StopOptions) -> None:
        """Stop a VM."""
        grace = options.grace_period
        if grace is not None and grace < 0:
            raise bad_request("gracePeriod has to be greater or equal to 0")
        await self._change(namespace, name, lambda vm, vmi: stop(vm, vmi, grace), options.dry_run)

    async def restart(self, namespace: str, name: str, options: RestartOptions) -> None:
        """Restart a VM."""
        grace = options.grace_period_seconds
        if grace is not None and grace > 0:
            raise bad_request(
                "For force restart, only gracePeriod=0 is supported for now; leave gracePeriodSeconds out"
            )
        if grace is not None and grace < 0:
            raise bad_request("gracePeriod has to be greater or equal to 0")
        await self._change(namespace, name, lambda vm, vmi: restart(vm, vmi, grace == 0), options.dry_run)

    async def _change(
        self, namespace: str, name: str, decide: Callable[[Vm, Vmi | None], Change], dry_run: list[str] | None
    ) -> None:
        for attempt in range(1, _ATTEMPTS + 1):
            vm = await self._vms.vm(namespace, name)
            vmi = await self._vms.vmi_if_any(namespace, name)
            change = decide(vm, vmi)
            try:
                return await self._write(vm, vmi, change, bool(dry_run))
            except ApiError as error:
                if not is_conflict(error) or attempt == _ATTEMPTS:
                    raise

    async def _write(self, vm: Vm, vmi: Vmi | None, change: Change, dry_run: bool) -> None:
        grace = change.grace if vmi else None
        if vmi and grace is not None:
            await self._give(vmi, grace, dry_run)
        try:
            subresource = "status" if change.of_status else None
            await self._api.patch(VMS, vm.name, change.patch, vm.namespace, subresource=subresource, dry_run=dry_run)
        except ApiError:
            if vmi and grace is not None:  # nothing half done: the next stop may be a patient one
                await self._give(vmi, vmi.view.spec.termination_grace_period_seconds, dry_run)
            raise

    async def _give(self, vmi: Vmi, seconds: int | None, dry_run: bool) -> None:
        patch = {"spec": {"terminationGracePeriodSeconds": seconds}}
        with ignoring(is_not_found):  # one that has just gone needs no time
            await self._api.patch(VMIS, vmi.name, patch, vmi.namespace, dry_run=dry_run)
