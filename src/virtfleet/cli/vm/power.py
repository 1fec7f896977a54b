"""`virtfleet start`, `stop`, `restart`, `pause` and `unpause`; with --wait, until it is so."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import click

from virtfleet.api.names import Phase
from virtfleet.api.subresources import VM, VMI
from virtfleet.cli.output import CommandError, Progress, on_interrupt, output_option, result
from virtfleet.cli.reach import is_true
from virtfleet.cli.vm.access import Reached, Target, target_options
from virtfleet.kube.errors import ignoring, is_not_found
from virtfleet.kube.resource import VMIS, VMS, Obj

_FORCE = click.option("--force", "chosen", is_flag=True, help="Do not wait for the guest to shut down.")
_PAUSED = click.option(
    "--paused", "chosen", is_flag=True, help="Start it with its CPUs stopped; `virtfleet unpause` lets it go."
)
_PERIOD = 0.5


@dataclass(frozen=True, slots=True)
class Seen:
    """A VM at one moment. `before` is the VMI that it had when the command began."""

    vm: Obj | None
    vmi: Obj | None
    before: str = ""

    @property
    def runs(self) -> bool:
        """Whether both say so: a VM's status follows that of its VMI."""
        running = self.vmi is not None and (self.vmi.get("status") or {}).get("phase") == Phase.RUNNING
        return running and self._said in (None, "Running", "Paused", "Migrating")

    @property
    def stopped(self) -> bool:
        return self.vmi is None and self._said in (None, "Stopped")

    @property
    def _said(self) -> str | None:
        return ((self.vm or {}).get("status") or {}).get("printableStatus")

    @property
    def paused(self) -> bool:
        return self.vmi is not None and is_true(self.vmi, "Paused")

    @property
    def uid(self) -> str:
        return str(self.vmi["metadata"].get("uid", "")) if self.vmi else ""

    def words(self) -> str:
        """How far it is, and what is in the way."""
        status = ((self.vm or self.vmi or {}).get("status")) or {}
        said = status.get("printableStatus") or status.get("phase") or "not there"
        both = [(obj.get("status") or {}).get("conditions") or () for obj in (self.vmi, self.vm) if obj]
        conditions = [condition for each in both for condition in each]
        why = next((c["message"] for c in conditions if _hinders(c)), "")
        return f"{said}{f': {why}' if why else ''}"


def _hinders(condition: Obj) -> bool:
    """Whether a condition says what keeps a VM from running."""
    wrong = "True" if condition["type"] == "Failure" else "False"
    named = condition["type"] in ("Failure", "PodScheduled", "Synchronized", "DataVolumesReady")
    return named and condition["status"] == wrong and bool(condition.get("message"))


def _command(
    action: str,
    resource: str,
    help_text: str,
    done: str,
    reached: Callable[[Seen], bool],
    option: Callable[[Any], Any] = lambda function: function,
    body: dict[str, Any] | None = None,
) -> click.Command:
    """A command that asks for one subresource; its `option` sends `body` along. `reached`: whether it is so."""

    @output_option
    @target_options
    @option
    @click.option("--wait", is_flag=True, help="Wait until it is so, and tell how far it is.")
    @click.option("--timeout", type=float, default=300.0, show_default=True, help="Seconds to wait at most.")
    def command(target: Target, output: str, wait: bool, timeout: float, chosen: bool = False) -> None:
        progress = Progress(quiet=output == "json")

        async def work(vm: Reached) -> tuple[Reached, Seen | None]:
            before = (await _look(vm)).uid if wait else ""
            await vm.put(resource, action, (body or {}) if chosen else {})
            return vm, await _until(vm, reached, before, progress, timeout) if wait else None

        on_interrupt(f"what was asked for goes on: {target.name} {done}. `kubectl get vm {target.name}` tells more.")
        vm, seen = target.do(work)
        data: dict[str, Any] = {"namespace": vm.namespace, "name": vm.name, "action": action}
        if seen is None:
            result(output, data, f"{vm} {done}")
            return
        node = ((seen.vmi or {}).get("status") or {}).get("nodeName", "")
        where = f" on {node}" if node else ""
        result(output, {**data, "status": seen.words(), "node": node}, f"{vm} is {seen.words()}{where}")

    return click.command(action, help=help_text)(command)


async def _look(vm: Reached, before: str = "") -> Seen:
    objects: dict[str, Obj] = {}
    for resource in (VMS, VMIS):
        with ignoring(is_not_found):
            objects[resource.kind] = await vm.api.get(resource, vm.name, vm.namespace)
    return Seen(objects.get(VMS.kind), objects.get(VMIS.kind), before)


async def _until(vm: Reached, reached: Callable[[Seen], bool], before: str, progress: Progress, timeout: float) -> Seen:
    seen = await _look(vm, before)
    try:
        async with asyncio.timeout(timeout):
            while not reached(seen):
                progress.news(f"{vm} is {seen.words()}")
                await asyncio.sleep(_PERIOD)
                seen = await _look(vm, before)
    except TimeoutError:
        raise CommandError(
            f"after {timeout:g} s, {vm} is {seen.words()}",
            f"It goes on. Look at: kubectl -n {vm.namespace} describe vm,vmi {vm.name}",
        ) from None
    return seen


start = _command(
    "start", VM, "Start the VM NAME.", "is being started", lambda seen: seen.runs, _PAUSED, {"paused": True}
)
stop = _command(
    "stop",
    VM,
    "Stop the VM NAME: its guest is asked to shut down, and has the time that the VM's spec gives it.",
    "is being stopped",
    lambda seen: seen.stopped,
    _FORCE,
    {"gracePeriod": 0},
)
restart = _command(
    "restart",
    VM,
    "Stop the VM NAME and start it again.",
    "is being restarted",
    lambda seen: seen.runs and seen.uid != seen.before,
    _FORCE,
    {"gracePeriodSeconds": 0},
)
pause = _command(
    "pause",
    VMI,
    "Stop the CPUs of the VM NAME. Its memory and its connections stay.",
    "is paused",
    lambda seen: seen.paused,
)
unpause = _command(
    "unpause", VMI, "Let the CPUs of the VM NAME go on.", "goes on", lambda seen: seen.runs and not seen.paused
)
