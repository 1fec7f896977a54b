"""`virtfleet start`, `stop`, `restart`, `pause` and `unpause`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from virtfleet.api.subresources import VM, VMI
from virtfleet.cli.output import output_option, result
from virtfleet.cli.vm.access import Reached, Target, target_options

_FORCE = click.option("--force", "chosen", is_flag=True, help="Do not wait for the guest to shut down.")
_PAUSED = click.option(
    "--paused", "chosen", is_flag=True, help="Start it with its CPUs stopped; `virtfleet unpause` lets it go."
)


def _command(
    action: str,
    resource: str,
    help_text: str,
    done: str,
    option: Callable[[Any], Any] = lambda function: function,
    body: dict[str, Any] | None = None,
) -> click.Command:
    """A command that asks for one subresource; its `option` sends `body` along."""

    @output_option
    @target_options
    @option
    def command(target: Target, output: str, chosen: bool = False) -> None:
        async def work(vm: Reached) -> Reached:
            await vm.put(resource, action, (body or {}) if chosen else {})
            return vm

        vm = target.do(work)
        result(output, {"namespace": vm.namespace, "name": vm.name, "action": action}, f"{vm} {done}")

    return click.command(action, help=help_text)(command)


start = _command("start", VM, "Start the VM NAME.", "is being started", _PAUSED, {"paused": True})
stop = _command(
    "stop",
    VM,
    "Stop the VM NAME: its guest is asked to shut down, and has the time that the VM's spec gives it.",
    "is being stopped",
    _FORCE,
    {"gracePeriod": 0},
)
restart = _command(
    "restart", VM, "Stop the VM NAME and start it again.", "is being restarted", _FORCE, {"gracePeriodSeconds": 0}
)
pause = _command("pause", VMI, "Stop the CPUs of the VM NAME. Its memory and its connections stay.", "is paused")
unpause = _command("unpause", VMI, "Let the CPUs of the VM NAME go on.", "goes on")
