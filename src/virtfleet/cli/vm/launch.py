"""`virtfleet launch`: one VM with no cluster at all. It boots, shows its console, and the command ends with it."""

from __future__ import annotations

import asyncio
import signal
import sys
import uuid
from contextlib import suppress
from pathlib import Path
from typing import Any

import click
import msgspec

from virtfleet.admission.review import complete
from virtfleet.api.kinds import VM, VMI
from virtfleet.api.view import read
from virtfleet.api.vmi import VirtualMachineInstance
from virtfleet.cli.manifests import cluster_of, kubevirt_option, objects
from virtfleet.cli.output import CommandError, Progress, output_option, refused, result
from virtfleet.cli.vm import terminal
from virtfleet.hypervisors import registry
from virtfleet.hypervisors.base import Hypervisor
from virtfleet.installation import Installation
from virtfleet.launcher.alone.standalone import Standalone
from virtfleet.launcher.node import trial
from virtfleet.local import guestimage
from virtfleet.protocol.client import LauncherGone
from virtfleet.protocol.messages import DomainState, Kill, Shutdown
from virtfleet.reasons.instances import instance
from virtfleet.work import tasks

_KINDS = (VMI.kind, VM.kind)


@click.command()
@click.option(
    "-f", "--filename", required=True, help="File with the VMI, or a VM to make one from; - is standard input."
)
@kubevirt_option
@click.option("--hypervisor", default="", help="Hypervisor to use instead of the one that the objects say.")
@click.option("--disk", "disks", multiple=True, metavar="VOLUME=PATH", help="A file to use for a volume; repeatable.")
@click.option("--no-console", is_flag=True, help="Do not attach the console.")
@click.option("--emulate", is_flag=True, help="Emulate CPUs even where hardware could run them.")
@output_option
def launch(
    filename: str,
    kubevirt_file: str | None,
    hypervisor: str,
    disks: tuple[str, ...],
    no_console: bool,
    emulate: bool,
    output: str,
) -> None:
    """Boot one VM without a cluster. ^] shuts it down."""
    progress = Progress(quiet=output == "json")
    made = list(objects([filename]))
    cluster = cluster_of(kubevirt_file, beside=made)
    vmi = _vmi(filename, made, cluster)
    chosen = _hypervisor(hypervisor, vmi, cluster)
    cache = guestimage.default_cache()
    emulated = _emulated(chosen, emulate, cache, progress)
    context = cluster.context(vmi["spec"].get("architecture", ""))
    vm = Standalone(
        vmi,
        chosen,
        msgspec.structs.replace(context, emulated=emulated),
        _sources(vmi, disks, cache, progress),
        cache=cache / "capabilities",
    )
    last = asyncio.run(_run(vm, progress, console=not no_console, to_errors=output == "json"))
    ended = f"{last.status} ({last.reason})" if last.reason else str(last.status)
    data = {"name": last.name, "status": last.status, "reason": last.reason, "emulated": emulated}
    result(output, data, f"{vmi['metadata']['name']}: {ended}")
    if last.reason not in ("Shutdown", "Destroyed"):
        sys.exit(1)


def _vmi(file: str, made: list[dict[str, Any]], cluster: Installation) -> dict[str, Any]:
    """The VMI with its defaults and an identity, as the API server would have it."""
    for obj in made:
        if obj["kind"] in _KINDS:
            wanted = obj if obj["kind"] == _KINDS[0] else instance(obj)
            wanted.setdefault("metadata", {}).setdefault("namespace", "default")
            wanted["metadata"].setdefault("name", "guest")
            completed, findings = complete(wanted, cluster)
            if not findings.allowed:
                raise refused(findings.causes)
            if completed["spec"]["domain"]["devices"].get("autoattachVSOCK"):
                raise CommandError(
                    "a VM without a cluster has no vsock: nobody gives it an address",
                    "Set spec.domain.devices.autoattachVSOCK to false.",
                )
            completed["metadata"]["uid"] = str(uuid.uuid4())
            return completed
    raise CommandError(f"{file} has no VirtualMachineInstance and no VirtualMachine")


def _hypervisor(named: str, vmi: dict[str, Any], cluster: Installation) -> Hypervisor:
    name = named or registry.resolve(vmi["spec"].get("hypervisor", ""), "", cluster.fleet.default_hypervisor)
    chosen = registry.get(name)
    if chosen.refusal:
        raise CommandError(chosen.refusal)
    return chosen


def _emulated(hypervisor: Hypervisor, wanted: bool, cache: Path, progress: Progress) -> bool:
    possible = bool(hypervisor.descriptor.emulation)
    reason = "" if wanted and possible else trial.trouble(hypervisor, cache)
    if reason and not possible:
        raise CommandError(f"hypervisor {hypervisor.descriptor.name} does not work here: {reason}")
    if reason:
        progress(f"CPUs are emulated: {reason}")
    return possible and (wanted or bool(reason))


def _sources(vmi: dict[str, Any], disks: tuple[str, ...], cache: Path, progress: Progress) -> dict[str, Path]:
    """What stands in for the VM's volumes: files that were named, and our own guest."""
    sources: dict[str, Path] = {}
    for disk in disks:
        name, _, path = disk.partition("=")
        if not Path(path).exists():
            raise CommandError(f"--disk {disk}: there is no {path or 'path'}", "Write it as VOLUME=PATH.")
        sources[name] = Path(path)
    for volume in read(VirtualMachineInstance, vmi).spec.volumes:
        if volume.container_disk and volume.name not in sources:
            if volume.container_disk.image != guestimage.IMAGE:
                raise CommandError(
                    f"volume {volume.name!r}: without a cluster, only the image {guestimage.IMAGE} is known",
                    f"Name a disk image instead: --disk {volume.name}=PATH.",
                )
            progress("building the guest, unless it is in the cache")
            sources[volume.name] = guestimage.build(cache).image
    return sources


async def _run(vm: Standalone, progress: Progress, *, console: bool, to_errors: bool) -> DomainState:
    """Start, attach, and wait for the end."""
    loop = asyncio.get_running_loop()
    interrupted = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, interrupted.set)
    async with vm:
        await vm.start()
        progress("the domain has started; ^] shuts it down")
        stopping = tasks.start(_stop_when(interrupted, vm), "shutdown")
        attached = tasks.start(_attach(vm.console, interrupted, to_errors), "console") if console else None
        last = DomainState()
        async for update in vm.client.watch():
            last = update.state
        for task in (stopping, attached):
            if task:
                task.cancel()
                with suppress(asyncio.CancelledError):
                    await task
        return last


async def _stop_when(interrupted: asyncio.Event, vm: Standalone) -> None:
    """The first interruption asks the guest to shut down, the second one kills it."""
    for request in (Shutdown(), Kill()):
        await interrupted.wait()
        interrupted.clear()
        with suppress(LauncherGone):
            await vm.client.call(request)


async def _attach(socket: Path, interrupted: asyncio.Event, to_errors: bool) -> None:
    """Show the console, and send it what is typed."""
    try:
        reader, writer = await asyncio.open_unix_connection(socket)
    except FileNotFoundError:
        return  # a VM without a serial console
    with terminal.raw():
        typing = tasks.start(_type(writer, interrupted), "typing")
        while data := await reader.read(4096):
            terminal.show(data, sys.stderr if to_errors else sys.stdout)
    typing.cancel()
    writer.close()


async def _type(writer: asyncio.StreamWriter, interrupted: asyncio.Event) -> None:
    async for data in terminal.typed():
        if not data:
            return  # nobody is there; the VM goes on
        writer.write(data)
    interrupted.set()
