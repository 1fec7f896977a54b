"""Start, stop and restart for every run strategy: what is decided, what is written, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from virtfleet.api.view import read
from virtfleet.api.vm import VirtualMachine
from virtfleet.api.vmi import VirtualMachineInstance
from virtfleet.gateway.power import Change, Power, RestartOptions, StartOptions, StopOptions, restart, start, stop
from virtfleet.gateway.vms import Vm, Vmi, Vms
from virtfleet.kube.errors import ApiError
from virtfleet.kube.resource import VMIS, VMS, Obj, Resource


def vm(status: Obj | None = None, **spec: Any) -> Vm:
    metadata = {"name": "vm", "namespace": "default", "uid": "vm-uid", "resourceVersion": "7", "generation": 3}
    obj = {"metadata": metadata, "spec": spec, "status": status or {}}
    return Vm(obj, read(VirtualMachine, obj))


def vmi(phase: str | None, grace: int | None = 30) -> Vmi | None:
    if phase is None:
        return None
    metadata = {"name": "vm", "namespace": "default", "uid": "me", "resourceVersion": "9"}
    spec = {} if grace is None else {"terminationGracePeriodSeconds": grace}
    obj = {"metadata": metadata, "spec": spec, "status": {"phase": phase}}
    return Vmi(obj, read(VirtualMachineInstance, obj))


def said(change: Change) -> Any:
    """The actions that are asked for, or the field that switches the VM."""
    assert change.patch["metadata"] == {"resourceVersion": "7"}, "a change is of what was seen"
    if change.of_status:
        return [(r["action"], r.get("uid"), r.get("data")) for r in change.patch["status"]["stateChangeRequests"]]
    return change.patch["spec"]


START, STOP = ("Start", None, None), ("Stop", "me", None)
PAUSED = ("Start", None, {"paused": "true"})
HALTED, ALWAYS = {"runStrategy": "Halted"}, {"runStrategy": "Always"}
MANUAL, RERUN, ONCE = {"runStrategy": "Manual"}, {"runStrategy": "RerunOnFailure"}, {"runStrategy": "Once"}
BORN_PAUSED = {**HALTED, "template": {"spec": {"startStrategy": "Paused"}}}


@pytest.mark.parametrize(
    ("spec", "phase", "paused", "expected"),
    [
        (HALTED, None, False, ALWAYS),
        ({"running": False}, None, False, {"running": True}),
        (HALTED, "Succeeded", False, ALWAYS),
        (HALTED, None, True, [("Start", None, {"paused": "true", "generation": "3"})]),
        (BORN_PAUSED, None, True, ALWAYS),
        (MANUAL, None, False, [START]),
        (MANUAL, None, True, [PAUSED]),
        (MANUAL, "Unknown", False, [START]),
        (MANUAL, "Succeeded", False, [STOP, START]),
        (MANUAL, "Failed", False, [STOP, START]),
        (RERUN, None, False, [START]),
        (RERUN, "Succeeded", False, [STOP, START]),
    ],
)
def test_a_start_switches_the_vm_on_or_asks_the_controller(spec: Obj, phase: Any, paused: bool, expected: Any) -> None:
    assert said(start(vm(**spec), vmi(phase), paused)) == expected


@pytest.mark.parametrize(
    ("spec", "phase", "words"),
    [
        (HALTED, "Running", "VM is already running"),
        (MANUAL, "Scheduling", "VM is already running"),
        (RERUN, "Failed", "RerunOnFailure does not support starting VM from failed state"),
        (ALWAYS, None, "Always does not support manual start requests"),
        (ONCE, None, "Once does not support manual start requests"),
        ({"runStrategy": "WaitAsReceiver"}, None, "WaitAsReceiver does not support manual start requests"),
    ],
)
def test_a_vm_that_runs_or_starts_by_itself_is_not_started(spec: Obj, phase: Any, words: str) -> None:
    refuses(lambda: start(vm(**spec), vmi(phase), False), words)


@pytest.mark.parametrize(
    ("spec", "phase", "grace", "expected"),
    [
        (ALWAYS, "Running", None, HALTED),
        (ALWAYS, None, None, HALTED),
        (ONCE, "Running", None, HALTED),
        ({"running": True}, "Running", None, {"running": False}),
        (MANUAL, "Running", None, [STOP]),
        (MANUAL, "Scheduling", None, [STOP]),
        (RERUN, "Running", 0, [STOP]),
        (HALTED, "Running", 5, [STOP]),
    ],
)
def test_a_stop_switches_the_vm_off_or_asks_the_controller(spec: Obj, phase: Any, grace: Any, expected: Any) -> None:
    change = stop(vm(**spec), vmi(phase), grace)
    assert (said(change), change.grace) == (expected, grace)


@pytest.mark.parametrize(
    ("spec", "phase", "grace", "words"),
    [
        (MANUAL, None, None, "VM is not running"),
        (MANUAL, "Succeeded", None, "VM is not running"),
        (RERUN, None, None, "VM is not running"),
        (HALTED, None, 0, "VM is not running"),
        (HALTED, "Running", None, "shorter graceperiod"),
        (HALTED, "Running", 30, "shorter graceperiod"),
        ({"runStrategy": "WaitAsReceiver"}, "Running", None, "WaitAsReceiver does not support manual stop requests"),
    ],
)
def test_a_vm_that_does_not_run_is_not_stopped(spec: Obj, phase: Any, grace: Any, words: str) -> None:
    refuses(lambda: stop(vm(**spec), vmi(phase), grace), words)


def test_an_instance_that_ended_is_given_no_time() -> None:
    assert stop(vm(**ALWAYS), vmi("Succeeded"), 5).grace is None


@pytest.mark.parametrize("spec", [ALWAYS, MANUAL, RERUN])
def test_a_restart_is_a_stop_and_a_start(spec: Obj) -> None:
    assert said(restart(vm(**spec), vmi("Running"), False)) == [STOP, START]
    assert restart(vm(**spec), vmi("Running"), False).grace is None
    assert restart(vm(**spec), vmi("Running"), True).grace == 1
    refuses(lambda: restart(vm(**spec), None, False), "VM is not running")


@pytest.mark.parametrize("spec", [HALTED, ONCE])
def test_a_vm_that_is_not_kept_running_is_not_restarted(spec: Obj) -> None:
    refuses(lambda: restart(vm(**spec), vmi("Running"), False), "does not support manual restart requests")


def test_only_a_stop_overrides_what_waits() -> None:
    waits = {"stateChangeRequests": [{"action": "Start"}]}
    refuses(lambda: start(vm(waits, **MANUAL), None, False), "already underway")
    refuses(lambda: restart(vm(waits, **MANUAL), vmi("Running"), False), "already underway")
    refuses(lambda: start(vm(waits, **HALTED), None, False), "already underway")
    refuses(lambda: start(vm(waits, **HALTED), None, True), "already underway")


@pytest.mark.parametrize("phase", [None, "Running", "Succeeded", "Failed"])
@pytest.mark.parametrize("waits", [[{"action": "Start"}], [{"action": "Stop", "uid": "me"}, {"action": "Start"}]])
@pytest.mark.parametrize("spec", [MANUAL, RERUN])
def test_a_stop_also_stops_what_is_about_to_start(spec: Obj, waits: list[Obj], phase: str | None) -> None:
    assert said(stop(vm({"stateChangeRequests": waits}, **spec), vmi(phase), None)) == [("Stop", None, None)]


def test_a_stop_keeps_what_failed_from_being_run_again() -> None:
    assert said(stop(vm(**RERUN), vmi("Failed"), 5)) == [("Stop", None, None)]


def test_a_vm_that_is_being_deleted_is_not_started() -> None:
    going = vm(**HALTED)
    going.view.metadata.deletion_timestamp = "2026-01-01T00:00:00Z"
    refuses(lambda: start(going, None, False), "being deleted")


def test_a_request_ends_the_wait_after_failures() -> None:
    assert start(vm(**MANUAL), None, False).patch["status"]["startFailure"] is None


def refuses(decide: Any, words: str) -> None:
    with pytest.raises(ApiError) as refusal:
        decide()
    assert refusal.value.code == 409
    assert words in refusal.value.message


# --- carrying out


class Api:
    """A server with one VM and its instance, where `conflicts` writes of the VM fail first."""

    def __init__(self, vm: Vm, vmi: Vmi | None, failure: ApiError | None = None, times: int = 0) -> None:
        self._objects = {VMS: vm.object, VMIS: vmi.object if vmi else None}
        self._failure, self._times = failure, times
        self.writes: list[tuple[Resource, Obj, bool]] = []

    async def get(self, resource: Resource, name: str, namespace: str) -> Obj:
        found = self._objects[resource]
        if found is None:
            raise ApiError("NotFound", "not found")
        return found

    async def patch(self, resource: Resource, name: str, patch: Obj, namespace: str, **options: Any) -> Obj:
        self.writes.append((resource, patch, options["dry_run"]))
        if self._failure and resource is VMS and self._times:
            self._times -= 1
            raise self._failure
        return {}


def power(api: Api) -> Power:
    return Power(api, Vms(api))  # type: ignore[arg-type]


CONFLICT = ApiError("Conflict", "the object has been modified")


async def test_a_change_that_lost_a_race_is_decided_anew() -> None:
    api = Api(vm(**MANUAL), None, CONFLICT, times=2)
    await power(api).start("default", "vm", StartOptions())
    assert [resource for resource, _, _ in api.writes] == [VMS] * 3


async def test_races_are_not_lost_for_ever() -> None:
    with pytest.raises(ApiError, match="modified"):
        await power(Api(vm(**MANUAL), None, CONFLICT, times=100)).start("default", "vm", StartOptions())


async def test_the_time_to_shut_down_is_given_back_when_the_stop_fails() -> None:
    api = Api(vm(**MANUAL), vmi("Running"), ApiError("Forbidden", "no"), times=1)
    with pytest.raises(ApiError, match="no"):
        await power(api).stop("default", "vm", StopOptions(grace_period=0))
    given = [patch["spec"] for resource, patch, _ in api.writes if resource is VMIS]
    assert given == [{"terminationGracePeriodSeconds": 0}, {"terminationGracePeriodSeconds": 30}]


async def test_dry_runs_write_nothing() -> None:
    api = Api(vm(**MANUAL), vmi("Running"))
    await power(api).restart("default", "vm", RestartOptions(grace_period_seconds=0, dry_run=["All"]))
    assert [dry for _, _, dry in api.writes] == [True, True]


@pytest.mark.parametrize("seconds", [-1, 3])
async def test_a_restart_is_at_once_or_takes_its_time(seconds: int) -> None:
    with pytest.raises(ApiError) as refusal:
        await power(Api(vm(**MANUAL), vmi("Running"))).restart("default", "vm", RestartOptions(seconds))
    assert refusal.value.code == 400


async def test_nothing_stops_before_it_is_asked_to() -> None:
    with pytest.raises(ApiError) as refusal:
        await power(Api(vm(**MANUAL), vmi("Running"))).stop("default", "vm", StopOptions(-1))
    assert refusal.value.code == 400


@pytest.mark.parametrize(
    ("condition", "ask"),
    [
        ("ManualRecoveryRequired", lambda machine: start(machine, None, False)),
        ("VolumesChange", lambda machine: restart(machine, vmi("Running"), False)),
    ],
)
def test_a_vm_whose_data_is_half_way_to_other_claims_is_not_started_anew(condition: str, ask: Any) -> None:
    ask(vm({"conditions": [{"type": condition, "status": "False"}]}, **MANUAL))
    with pytest.raises(ApiError, match="VM recovery required"):
        ask(vm({"conditions": [{"type": condition, "status": "True"}]}, **MANUAL))
