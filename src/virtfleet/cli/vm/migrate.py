"""`virtfleet migrate`: have a running VM move to another node, and see how far it is."""

from __future__ import annotations

import asyncio
from typing import Any

import click

from virtfleet.api.migration import MigrationMetrics
from virtfleet.api.names import FINAL, Phase
from virtfleet.api.view import read
from virtfleet.cli.output import CommandError, Progress, mib, on_interrupt, output_option, result
from virtfleet.cli.vm.access import Reached, Target, target_options
from virtfleet.kube.resource import VMI_MIGRATIONS, Obj

_HOSTNAME = "kubernetes.io/hostname"
_PERIOD = 0.5
_STEPS = {
    "": "was asked for",
    "Pending": "waits for its turn",
    "Scheduling": "looks for a node",
    "Scheduled": "has a node",
    "PreparingTarget": "is being prepared",
    "TargetReady": "is about to begin",
    "Running": "is under way",
}


@click.command()
@output_option
@target_options
@click.option("--to", "node", help="The node to move to; any that fits where left out.")
@click.option("--wait", "--watch", "watch", is_flag=True, help="Wait until it has ended, and tell how far it is.")
@click.option("--timeout", type=float, default=600.0, show_default=True, help="Seconds to wait at most.")
def migrate(target: Target, output: str, node: str | None, watch: bool, timeout: float) -> None:
    """Move the running VM NAME to another node. Its guest goes on running.

    Deleting the migration (`kubectl delete vmim NAME-OF-MIGRATION`) lets the VM stay where it is.
    """

    async def work(vm: Reached) -> Obj:
        spec = {"vmiName": vm.name, **({"addedNodeSelector": {_HOSTNAME: node}} if node else {})}
        wanted = {
            "apiVersion": VMI_MIGRATIONS.api_version,
            "kind": VMI_MIGRATIONS.kind,
            "metadata": {"generateName": "kubevirt-migrate-vm-"},
            "spec": spec,
        }
        asked = await vm.api.create(VMI_MIGRATIONS, wanted, vm.namespace)
        return await _ended(vm, asked, timeout) if watch else asked

    on_interrupt("the migration goes on. `kubectl get vmim` shows it; deleting it lets the VM stay where it is.")
    summary = _summary(target.do(work))
    if summary["phase"] == Phase.FAILED:
        raise CommandError(
            f"{summary['namespace']}/{summary['vmi']} stays on {summary['source'] or 'its node'}: {summary['reason']}"
        )
    result(output, summary, _words(summary))


async def _ended(vm: Reached, migration: Obj, timeout: float) -> Obj:
    """The migration, once it has ended."""
    progress, name = Progress(), migration["metadata"]["name"]
    try:
        async with asyncio.timeout(timeout):
            while (summary := _summary(migration))["phase"] not in FINAL:
                progress.news(_words(summary))
                await asyncio.sleep(_PERIOD)
                migration = await vm.api.get(VMI_MIGRATIONS, name, vm.namespace)
    except TimeoutError:
        raise CommandError(
            f"the migration of {vm} has not ended within {timeout:g} s; it {_STEPS[summary['phase']]}",
            f"`kubectl describe vmim -n {vm.namespace} {name}` tells more; delete it to let the VM stay.",
        ) from None
    return migration


def _summary(migration: Obj) -> dict[str, Any]:
    """What there is to say of a migration."""
    meta, status = migration["metadata"], migration.get("status") or {}
    state = status.get("migrationState") or {}
    return {
        "namespace": meta["namespace"],
        "name": meta["name"],
        "vmi": migration["spec"]["vmiName"],
        "phase": status.get("phase") or "",
        "source": state.get("sourceNode") or "",
        "target": state.get("targetNode") or "",
        "mode": state.get("mode") or "",
        "reason": state.get("failureReason") or "",
        "metrics": state.get("migrationMetrics") or {},
    }


def _words(summary: dict[str, Any]) -> str:
    vm, metrics = f"{summary['namespace']}/{summary['vmi']}", read(MigrationMetrics, summary["metrics"])
    if summary["phase"] == Phase.SUCCEEDED:
        return f"{vm} runs on {summary['target']} now; it was on {summary['source']}{_came_to(metrics)}"
    way = f" from {summary['source']} to {summary['target']}" if summary["target"] else ""
    step, far = _STEPS.get(summary["phase"], summary["phase"]), _far(metrics)
    return f"the migration of {vm}{way} {step}{far} ({summary['name']})"


def _far(metrics: MigrationMetrics) -> str:
    """How far it is, by what was told last."""
    if not metrics.total_bytes:
        return ""
    done = f"{mib(metrics.total_bytes - metrics.remaining_bytes)} of {mib(metrics.total_bytes)}"
    anew = f"the guest writes {mib(metrics.dirty_bytes_per_second)}/s anew"
    return f": {done}, {mib(metrics.bytes_per_second)}/s, {anew}"


def _came_to(metrics: MigrationMetrics) -> str:
    if not metrics.total_bytes:
        return ""
    seconds, pause = metrics.elapsed_milliseconds / 1000, metrics.downtime_milliseconds
    return f" ({mib(metrics.total_bytes)} in {seconds:.1f} s; the guest stood still for {pause} ms)"
