"""`virtfleet start`, `stop`, `restart`, `pause` and `unpause`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from virtfleet.api.subresources import VM, VMI
from virtfleet.cli.output import output_option, result
from virtfleet.cli.vm.access import Cluster, Reached, cluster_options


@click.command()
@click.argument("name")
@click.option("--paused", is_flag=True, help="Start it with its CPUs stopped; `virtfleet unpause` lets it go.")
@cluster_options
@output_option
def start(name: str, paused: bool, output: str, **where: Any) -> None:
    """Start the VM NAME."""
    _put(VM, "start", name, {"paused": True} if paused else {}, output, **where)


@click.command()
@click.argument("name")
@click.option("--force", is_flag=True, help="Do not wait for the guest to shut down.")
@cluster_options
@output_option
def stop(name: str, force: bool, output: str, **where: Any) -> None:
    """Stop the VM NAME: its guest is asked to shut down, and has the time that the VM's spec gives it."""
    _put(VM, "stop", name, {"gracePeriod": 0} if force else {}, output, **where)


@click.command()
@click.argument("name")
@click.option("--force", is_flag=True, help="Do not wait for the guest to shut down.")
@cluster_options
@output_option
def restart(name: str, force: bool, output: str, **where: Any) -> None:
    """Stop the VM NAME and start it again."""
    _put(VM, "restart", name, {"gracePeriodSeconds": 0} if force else {}, output, **where)


@click.command()
@click.argument("name")
@cluster_options
@output_option
def pause(name: str, output: str, **where: Any) -> None:
    """Stop the CPUs of the VM NAME. Its memory and its connections stay."""
    _put(VMI, "pause", name, {}, output, **where)


@click.command()
@click.argument("name")
@cluster_options
@output_option
def unpause(name: str, output: str, **where: Any) -> None:
    """Let the CPUs of the VM NAME go on."""
    _put(VMI, "unpause", name, {}, output, **where)


_DONE = {
    "start": "is being started",
    "stop": "is being stopped",
    "restart": "is being restarted",
    "pause": "is paused",
    "unpause": "goes on",
}


def _put(
    resource: str,
    action: str,
    name: str,
    body: dict[str, Any],
    output: str,
    *,
    kubeconfig: Path | None,
    namespace: str | None,
) -> None:
    async def work(vm: Reached) -> Reached:
        await vm.put(resource, action, body)
        return vm

    vm = Cluster(kubeconfig, namespace).do(name, work)
    data = {"namespace": vm.namespace, "name": vm.name, "action": action}
    result(output, data, f"{vm} {_DONE[action]}")
