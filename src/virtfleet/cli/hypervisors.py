"""`virtfleet hypervisors`: which hypervisors there are, and what each of them can do."""

from __future__ import annotations

import json

import click
import msgspec

from virtfleet.cli.output import CommandError, output_option, result, table
from virtfleet.hypervisors import registry
from virtfleet.hypervisors.base import Hypervisor
from virtfleet.hypervisors.features import FEATURES, support
from virtfleet.hypervisors.support import Level


@click.group(invoke_without_command=True, context_settings={"help_option_names": ["-h", "--help"]})
@click.option("-o", "--output", type=click.Choice(["text", "wide", "json"]), default="text", help="Form of the result.")
@click.pass_context
def hypervisors(context: click.Context, output: str) -> None:
    """Hypervisors, and what each of them can do."""
    if context.invoked_subcommand:
        return
    found = [registry.get(name) for name in registry.names()]
    if output == "json":
        click.echo(json.dumps([_described(h) for h in found], indent=2))
        return
    header = ["NAME", "RUNS", "DEVICE", "URI", "DAEMON", "FEATURES"]
    rows = [_row(h) for h in found]
    if output == "wide":
        header += ["CONNECTION", "EVENTS", "ROOT", "OVERHEAD", "IMAGE"]
        rows = [row + _wide(h) for row, h in zip(rows, found, strict=True)]
    click.echo(table(rows, header))


@hypervisors.command()
@click.argument("name")
@click.option("--architecture", default="amd64", help="Architecture of the VM.")
@output_option
def features(name: str, architecture: str, output: str) -> None:
    """What a hypervisor can do, feature by feature."""
    try:
        hypervisor = registry.get(name)
    except registry.UnknownHypervisor as error:
        raise CommandError(str(error)) from None
    found = [(f, support(hypervisor, f.key, architecture)) for f in FEATURES]
    data = [
        {
            "feature": f.key,
            "title": f.title,
            "field": f.field,
            "support": s.level.value,
            "reason": s.reason,
            "gate": s.gate,
        }
        for f, s in found
    ]
    text = table([(f.key, s.level.value, s.reason) for f, s in found], ("FEATURE", "SUPPORT", "REASON"))
    result(output, data, f"{hypervisor.refusal}\n\n{text}" if hypervisor.refusal else text)


@hypervisors.command(name="probe")
@output_option
def probe_command(output: str) -> None:
    """What works on this machine, and why not. KVM is tried by running something on it."""
    from virtfleet.launcher import probe
    from virtfleet.local.guestimage import default_cache

    found = {name: probe.hypervisor(registry.get(name), default_cache()) for name in registry.names()}
    data = [{"name": name, "works": verdict.works, "reason": verdict.reason} for name, verdict in found.items()]
    rows = [(name, "yes" if verdict.works else "no", verdict.reason) for name, verdict in found.items()]
    result(output, data, table(rows, ("NAME", "WORKS", "REASON")))


def _row(hypervisor: Hypervisor) -> list[object]:
    d = hypervisor.descriptor
    supported = sum(support(hypervisor, f.key).level is not Level.UNSUPPORTED for f in FEATURES)
    device = f"/dev/{d.device}" if d.device else "-"
    return [
        d.name,
        "no" if hypervisor.refusal else "yes",
        device,
        d.uri,
        d.daemon or "-",
        f"{supported}/{len(FEATURES)}",
    ]


def _wide(hypervisor: Hypervisor) -> list[object]:
    d = hypervisor.descriptor
    overhead = f"{'~' if d.overheads.estimate else ''}{d.overheads.total()}"
    return [d.connection.value, d.events.value, "yes" if d.root else "no", overhead, d.launcher_image]


def _described(hypervisor: Hypervisor) -> dict[str, object]:
    d = hypervisor.descriptor
    return {
        "name": d.name,
        "title": d.title,
        "refusal": hypervisor.refusal,
        "device": d.device,
        "uri": d.uri,
        "daemon": d.daemon,
        "connection": d.connection.value,
        "events": d.events.value,
        "root": d.root,
        "capabilities": d.capabilities,
        "privileged": d.privileged,
        "container": d.container,
        "needsListing": d.by_leave,
        "launcherImage": d.launcher_image,
        "overheads": {name: str(value) for name, value in msgspec.structs.asdict(d.overheads).items()},
        "unsupported": {
            f.key: s.reason for f in FEATURES if (s := support(hypervisor, f.key)).level is Level.UNSUPPORTED
        },
    }
