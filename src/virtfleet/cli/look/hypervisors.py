"""`virtfleet hypervisors`: which hypervisors there are, and what each of them can do."""

from __future__ import annotations

import asyncio
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click
import msgspec

import virtfleet
from virtfleet.cli.output import CommandError, Group, Progress, output_option, result, table, wide_option
from virtfleet.hypervisors import registry
from virtfleet.hypervisors.base import Hypervisor
from virtfleet.hypervisors.features import FEATURES, Feature, at, support
from virtfleet.hypervisors.support import Level, Support

if TYPE_CHECKING:
    from virtfleet.launcher.alone.check import Step

# In a checkout, and where VirtFleet is installed without one.
_EXAMPLES = (Path(virtfleet.__file__).parents[2] / "examples", Path(sys.prefix, "share", "virtfleet"))
_FILES = ("README.md", "pyproject.toml", "src/virtfleet_mock/__init__.py", "tests/test_contract.py")


@click.group(cls=Group, invoke_without_command=True)
@wide_option
@click.pass_context
def hypervisors(context: click.Context, output: str) -> None:
    """Hypervisors, and what each of them can do."""
    if context.invoked_subcommand:
        return
    known = [registry.get(name) for name in registry.names()]
    header = ["NAME", "VMS", "DEVICE", "URI", "DAEMON", "FEATURES", "EVIDENCE"]
    if output == "wide":
        header += ["CONNECTION", "EVENTS", "ROOT", "OVERHEAD", "IMAGE"]
    result(output, [_described(h) for h in known], table([_row(h)[: len(header)] for h in known], header))


@hypervisors.command()
@click.argument("name", required=False)
@click.option("--architecture", default="amd64", help="Architecture of the VM.")
@output_option
def features(name: str | None, architecture: str, output: str) -> None:
    """What a hypervisor can do, feature by feature, and why not; without NAME, those that run VMs side by side.

    works: as in KubeVirt. experimental: behind a feature gate. absent: VirtFleet does not do it yet. impossible:
    libvirt's driver, or the hypervisor, cannot.
    """
    chosen = [registry.get(n) for n in ([name] if name else registry.names())]
    if name is None:
        chosen = [h for h in chosen if not h.refusal]
    data = [_entry(h, f, support(h, f.key, architecture)) for h in chosen for f in FEATURES]
    if name is None:
        rows = [[f.key, *(support(h, f.key, architecture).level.value for h in chosen)] for f in FEATURES]
        text = table(rows, ("FEATURE", *(h.descriptor.name.upper() for h in chosen)))
    else:
        text = table([(e["feature"], e["support"], _why(e)) for e in data], ("FEATURE", "SUPPORT", "WHY NOT"))
        text = "\n\n".join(filter(None, (chosen[0].refusal, text)))
    result(output, data, text)


def _entry(hypervisor: Hypervisor, feature: Feature, offered: Support) -> dict[str, str]:
    return {
        "hypervisor": hypervisor.descriptor.name,
        "feature": feature.key,
        "title": feature.title,
        "field": feature.field,
        "support": offered.level.value,
        "reason": offered.reason,
        "advice": offered.advice,
        "gate": offered.gate,
    }


def _why(entry: dict[str, str]) -> str:
    return "; ".join(filter(None, (entry["reason"], entry["advice"])))


@hypervisors.command(name="probe")
@output_option
def probe_command(output: str) -> None:
    """What works on this machine, and why not. Hardware virtualisation is tried by running something on it."""
    from virtfleet.launcher.node import trial
    from virtfleet.local.guestimage import default_cache

    troubles = {name: trial.trouble(registry.get(name), default_cache()) for name in registry.names()}
    data = [{"name": name, "works": not reason, "reason": reason} for name, reason in troubles.items()]
    rows = [(name, "no" if reason else "yes", reason) for name, reason in troubles.items()]
    result(output, data, table(rows, ("NAME", "WORKS", "REASON")))


@hypervisors.command()
@click.argument("name")
@click.option("--emulate", is_flag=True, help="Emulate CPUs, where hardware cannot run them.")
@output_option
def check(name: str, emulate: bool, output: str) -> None:
    """Whether a hypervisor works on this machine, step by step, up to a tiny guest. Needs root.

    The first steps are those by which a node of a cluster earns its label.
    """
    hypervisor = registry.get(name)
    if emulate and not hypervisor.descriptor.emulation:
        raise CommandError(f"{name} cannot emulate CPUs", "Leave --emulate out.")
    taken = asyncio.run(_check(hypervisor, emulate, Progress(quiet=output == "json")))
    failed = next((step for step in taken if step.trouble), None)
    data = {"name": name, "works": failed is None, "steps": [msgspec.structs.asdict(step) for step in taken]}
    rows = [(step.name, "no" if step.trouble else "yes", f"{step.seconds:.1f} s", step.trouble) for step in taken]
    result(output, data, table(rows, ("STEP", "WORKS", "TOOK", "WHY NOT")))
    if failed:
        sys.exit(1)


async def _check(hypervisor: Hypervisor, emulate: bool, progress: Progress) -> list[Step]:
    from virtfleet.launcher.alone.check import check as steps

    taken = []
    async for step in steps(hypervisor, emulate=emulate):
        progress(f"{step.name}: {step.trouble or 'yes'}")
        taken.append(step)
    return taken


@hypervisors.command()
@click.argument("name")
@click.option("--directory", type=click.Path(path_type=Path), help="Where to put it; NAME here where not given.")
@output_option
def new(name: str, directory: Path | None, output: str) -> None:
    """A package that adds a hypervisor of your own: it works, on libvirt's test driver, and is yours to change."""
    place = directory or Path(name)
    if place.exists():
        raise CommandError(f"{place} exists already", "Name another place with --directory.")
    try:
        written = files(name)
    except ValueError as error:
        raise CommandError(str(error)) from None
    for path, text in written.items():
        (place / path).parent.mkdir(parents=True, exist_ok=True)
        (place / path).write_text(text)
    data = {"name": name, "directory": str(place), "files": sorted(written)}
    result(output, data, f"{place} is a package with the hypervisor {name}; its README.md says what to do next")


def files(name: str) -> dict[str, str]:
    """The example's files under another name, by their path. Raises ValueError for one that no hypervisor can have."""
    if not re.fullmatch(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?", name):
        raise ValueError(f"{name!r} is no name for a hypervisor: lower-case letters, digits and - between them")
    if name in registry.names() or name in registry.ALIASES:
        raise ValueError(f"there is a hypervisor {name!r} already; choose another name")
    words = {
        "virtfleet_mock": f"virtfleet_{name.replace('-', '_')}",
        "Mock": "".join(part.capitalize() for part in name.split("-")),
        "mock": name,
    }

    def renamed(text: str) -> str:
        return re.sub("|".join(words), lambda match: words[match[0]], text)

    example = next(place / "hypervisor-plugin" for place in _EXAMPLES if (place / "hypervisor-plugin").is_dir())
    return {renamed(path): renamed((example / path).read_text()) for path in _FILES}


def _row(hypervisor: Hypervisor) -> list[object]:
    d = hypervisor.descriptor
    return [
        d.name,
        "refused" if hypervisor.refusal else "admitted",
        f"/dev/{d.device}" if d.device else "-",
        d.uri,
        d.daemon or "-",
        f"{len(at(Level.WORKS, hypervisor))}/{len(FEATURES)}",
        hypervisor.evidence.value,
        d.connection.value,
        d.events.value,
        "yes" if d.root else "no",
        f"{'~' if d.overheads.estimate else ''}{d.overheads.total()}",
        d.launcher_image,
    ]


def _described(hypervisor: Hypervisor) -> dict[str, object]:
    d = hypervisor.descriptor
    return {
        "name": d.name,
        "title": d.title,
        "refusal": hypervisor.refusal,
        "evidence": hypervisor.evidence.value,
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
        "features": {f.key: support(hypervisor, f.key).level.value for f in FEATURES},
    }
