"""`virtfleet demo`: VMs of several pools and hypervisors on the local cluster, shown while they come up.

The VMs are those of examples/demo.yaml; nothing here knows them, so that other files can be shown in the same way.
Repeating it changes nothing: what is there already is shown as it is.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Sequence
from dataclasses import asdict, astuple, dataclass
from pathlib import Path

import click

import virtfleet
from virtfleet.api import names
from virtfleet.api.names import Phase
from virtfleet.cli.home.cluster import data_option
from virtfleet.cli.look.poolreport import PRIMARY
from virtfleet.cli.manifests import objects
from virtfleet.cli.output import CommandError, Progress, on_interrupt, output_option, result, table
from virtfleet.cli.vm.access import command_output
from virtfleet.domain import paths
from virtfleet.kube import config
from virtfleet.kube.client import Client
from virtfleet.kube.credentials import ConfigError
from virtfleet.kube.errors import ApiError, ignoring, is_already_exists, is_not_found
from virtfleet.kube.resource import PODS, VMIS, VMS, Obj
from virtfleet.pods.launcher import COMPUTE

DEADLINE = 300.0
_LOOK = 1.0
_EXAMPLES = os.path.relpath(Path(virtfleet.__file__).parents[2] / "examples")
_COLUMNS = ("VM", "POOL", "HYPERVISOR", "IMAGE", "NODE", "PHASE", "ADDRESS")
# What the demo's guest says of itself begins so; shells and kernels say other things.
_GUEST = "virtfleet-guest "
_BOOTED = f"{_GUEST}ready "
# Conditions that say what a VM cannot do, not what keeps it from running.
_NO_TROUBLE = ("LiveMigratable", "StorageLiveMigratable")


@dataclass(frozen=True, slots=True)
class Row:
    """One VM as it is now."""

    vm: str
    pool: str = ""
    hypervisor: str = ""
    image: str = ""
    node: str = ""
    phase: str = ""
    address: str = ""
    console: str = ""
    trouble: str = ""

    @property
    def cells(self) -> list[str]:
        return list(astuple(self)[: len(_COLUMNS)])

    @property
    def done(self) -> bool:
        """Whether its guest is up."""
        return self.phase == Phase.RUNNING and self.console.startswith(_BOOTED)


@click.command()
@data_option
@click.option("-f", "--filename", "files", multiple=True, help="Manifest with VMs to show; examples/demo.yaml else.")
@output_option
def demo(data: Path, files: tuple[str, ...], output: str) -> None:
    """Boot VMs of several pools and hypervisors on the local cluster, and show what becomes of them."""
    chosen = files or (f"{_EXAMPLES}/demo.yaml",)
    wanted = [obj for obj in objects(chosen) if obj["kind"] == VMS.kind]
    if not wanted:
        raise CommandError(f"there is no VirtualMachine in {', '.join(chosen)}")
    progress = Progress(quiet=output == "json")
    on_interrupt("the VMs go on booting. `kubectl get vmi` shows them; repeat the command to go on watching.")
    try:
        settings = config.load(data / "kubeconfig")
    except ConfigError:
        raise CommandError(
            f"there is no cluster in {data}",
            f"Start one with: virtfleet up --nodes {_EXAMPLES}/nodes.yaml --kubevirt {_EXAMPLES}/kubevirt.yaml",
        ) from None
    rows = asyncio.run(_run(Client(settings), wanted, progress))
    seconds = round(time.monotonic() - progress.began, 1)
    facts = {"seconds": seconds, "vms": [{**asdict(row), "booted": row.done} for row in rows]}
    result(output, facts, _report(rows, data, chosen, seconds))
    if late := [row for row in rows if not row.done]:
        raise CommandError("\n".join(f"{row.vm} does not run: {_why(row)}" for row in late))


async def _run(client: Client, wanted: Sequence[Obj], progress: Progress) -> list[Row]:
    """Make the VMs and follow them until all guests are up, or it takes too long."""
    async with client as api:
        for vm in wanted:
            await _make(api, vm)
        end = time.monotonic() + DEADLINE
        while True:
            rows = [
                await _look(api, vm["metadata"].get("namespace", "default"), vm["metadata"]["name"]) for vm in wanted
            ]
            tell(progress, rows)
            if all(row.done for row in rows) or time.monotonic() > end:
                return rows
            await asyncio.sleep(_LOOK)


async def _make(api: Client, vm: Obj) -> None:
    """Create a VM, or bring one of that name to what is wanted."""
    name, namespace = vm["metadata"]["name"], vm["metadata"].get("namespace", "default")
    with ignoring(is_already_exists):
        await api.create(VMS, vm, namespace)
        return
    await api.patch(VMS, name, vm, namespace)


async def _look(api: Client, namespace: str, name: str) -> Row:
    vmi = None
    with ignoring(is_not_found):
        vmi = await api.get(VMIS, name, namespace)
    if vmi is None:
        return Row(name, trouble=_trouble(await api.get(VMS, name, namespace)))
    pods = await api.list(PODS, namespace, labels=f"{names.CREATED_BY}={vmi['metadata']['uid']}")
    if not pods:
        return describe(vmi, None)
    runs = vmi["status"].get("phase") == Phase.RUNNING
    return describe(vmi, pods[0], await _said(api, vmi, pods[0]) if runs else "")


def describe(vmi: Obj, pod: Obj | None, console: str = "") -> Row:
    """A VM's row, from its objects. Pure."""
    status = vmi.get("status") or {}
    interfaces = status.get("interfaces") or [{}]
    known: dict[str, str] = {}
    if pod:
        meta = pod["metadata"]
        known = {
            "pool": (meta.get("labels") or {}).get(names.HANDLER_POOL, PRIMARY),
            "hypervisor": (meta.get("annotations") or {}).get(names.LAUNCHER_HYPERVISOR, ""),
            "image": next(c["image"] for c in pod["spec"]["containers"] if c["name"] == COMPUTE),
        }
    return Row(
        vmi["metadata"]["name"],
        **known,
        node=status.get("nodeName", ""),
        phase=status.get("phase", ""),
        address=interfaces[0].get("ipAddress", ""),
        console=console,
        trouble=_trouble(vmi),
    )


def _trouble(obj: Obj) -> str:
    conditions = (obj.get("status") or {}).get("conditions") or ()
    failed = (c for c in conditions if c["status"] == ("True" if c["type"] == "Failure" else "False"))
    return next((c["message"] for c in failed if c["type"] not in _NO_TROUBLE and c.get("message")), "")


async def _said(api: Client, vmi: Obj, pod: Obj) -> str:
    """The last line on the guest's console that is its own."""
    log = f"{paths.vmi_socket(vmi['metadata']['uid'], 'virt-serial0')}-log"
    meta = pod["metadata"]
    try:
        text = await command_output(api, meta["namespace"], meta["name"], COMPUTE, "tail", "-c", "4096", log)
    except ApiError:
        return ""  # the Pod is on its way out or in
    return next((line.strip() for line in reversed(text.splitlines()) if line.startswith(_GUEST)), "")


# Showing.


def tell(progress: Progress, rows: Sequence[Row]) -> None:
    """A line for each change."""
    for row in rows:
        where = f" on {row.node}" if row.node else ""
        text = f"{row.vm} has booted{where}" if row.done else f"{row.vm} is {row.phase or 'being made'}{where}"
        progress.news(text, about=row.vm)


def _report(rows: Sequence[Row], data: Path, files: Sequence[str], seconds: float) -> str:
    booted = sum(row.done for row in rows)
    width = max(len(row.vm) for row in rows)
    return "\n".join(
        [
            table([row.cells for row in rows], _COLUMNS),
            "",
            "The last line on each guest's console:",
            *(f"  {row.vm.ljust(width)}   {row.console or '-'}" for row in rows),
            "",
            f"{booted} of {len(rows)} guests are up ({seconds} s). Go on with:",
            "",
            f"  export KUBECONFIG={data / 'kubeconfig'}",
            "  kubectl get vm,vmi -o wide",
            f"  virtfleet console {rows[0].vm}       its serial console; Ctrl+] leaves it",
            "  virtfleet pools -o wide       pools with their nodes, handlers and VMs",
            f"  virtfleet explain -f {files[0]}",
            f"  kubectl delete -f {files[0]}",
            f"  virtfleet down --data {data}",
        ]
    )


def _why(row: Row) -> str:
    if row.trouble:
        return row.trouble
    if row.phase == Phase.RUNNING:
        return "its guest did not say on its console that it is up"
    return f"it is {row.phase or 'not there'} after {DEADLINE:.0f} s; see: kubectl describe vmi {row.vm}"
