"""The same trials for guests of every hypervisor, chosen by the registry of what works.

Guests differ as their hypervisors do: a machine boots from a disk, on Xen from a kernel; a container has a directory.
What is tried with them is the same. A trial that needs a feature which the hypervisor does not have is left out, with
the registry's reason; nothing else is.
"""

from __future__ import annotations

import os
import signal
import sys
import uuid
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from typing import Any

import msgspec

from virtfleet.admission.review import complete
from virtfleet.domain import paths
from virtfleet.domain.context import Context
from virtfleet.hypervisors import features, registry
from virtfleet.hypervisors.base import Hypervisor
from virtfleet.hypervisors.support import Level
from virtfleet.installation import Installation
from virtfleet.launcher.alone.standalone import KERNEL_BOOT, Standalone
from virtfleet.protocol.messages import Kill, Pause, Shutdown, Status, Unpause
from virtfleet.work import commands
from vm.guests import VM, container, eventually, machine, user_data

PASSED = "passed"
SECRET = "what only the VM may know"
_GRACE = 240


class Place(msgspec.Struct, frozen=True):
    """Where guests come from: the files of their image, their kernel and initrd, and where learned facts are kept."""

    image: Path
    boot: Path
    cache: Path | None = None


class Trial(msgspec.Struct, frozen=True):
    """One thing that is tried, and what the hypervisor must have for it."""

    title: str
    run: Callable[[VM], Awaitable[object]]
    needs: tuple[str, ...] = ()


class Report(msgspec.Struct, kw_only=True):
    """What came of the trials, by their titles, and how much memory was seen beside the guest, in KiB."""

    hypervisor: str
    versions: str = ""
    results: dict[str, str] = {}
    resident: dict[str, int] = {}

    @property
    def failures(self) -> dict[str, str]:
        return {title: said for title, said in self.results.items() if said.startswith("failed")}

    def write(self, directory: str) -> None:
        """For `scripts/results.py`, which makes a table of it."""
        if directory:
            Path(directory).mkdir(parents=True, exist_ok=True)
            text = msgspec.json.format(msgspec.json.encode(self), indent=2).decode()
            Path(directory, f"{self.hypervisor}.json").write_text(text + "\n")


async def _is(vm: VM, status: Status) -> bool:
    return (await vm.state()).status is status


async def boots(vm: VM) -> None:
    await vm.says(r"virtfleet-guest ready")


async def _reads_seed(vm: VM) -> None:
    await eventually(lambda: "the seed has arrived" in vm.output)


async def _hears(vm: VM) -> None:
    await vm.type("echo the guest $((40 + 2)) heard")
    await vm.says(r"\nthe guest 42 heard")


async def _reads_secret(vm: VM) -> None:
    look = "mount -r -t iso9660 $d /mnt 2>&- && cat /mnt/word 2>&-; umount /mnt 2>&-"
    await vm.type(f"cat /mnt/secret/word 2>&- || for d in /dev/vd? /dev/xvd? /dev/sr?; do {look}; done")
    await vm.says(SECRET)


async def _serves(vm: VM) -> None:
    await vm.type("ip -4 -o addr show eth0")
    await vm.says(r"inet 10\.0\.2\.2/24")
    assert "10.0.2.2" in await vm.standalone.sandbox.run("busybox", "wget", "-q", "-O", "-", "http://10.0.2.2/")


async def _survives_daemon(vm: VM) -> None:
    before = vm.processes()
    (daemon,) = before.keys() & {"libvirtd", *(registry.get(name).descriptor.daemon for name in registry.names())}
    os.kill(before[daemon], signal.SIGKILL)
    await eventually(lambda: vm.processes().get(daemon, before[daemon]) != before[daemon])
    await eventually(lambda: _is(vm, Status.RUNNING))
    await vm.type("echo the guest $((40 + 3)) goes on")
    await vm.says(r"\nthe guest 43 goes on")


async def _pauses(vm: VM) -> None:
    await vm.client.call(Pause())
    assert await _is(vm, Status.PAUSED)
    await vm.type("echo the guest $((40 + 4)) runs")
    assert "the guest 44 runs" not in vm.output
    await vm.client.call(Unpause())
    await vm.says(r"\nthe guest 44 runs")
    assert await _is(vm, Status.RUNNING)


async def _shuts_down(vm: VM) -> None:
    await vm.client.call(Shutdown(grace_seconds=_GRACE))
    last, code = await vm.ending()
    assert (last.status, last.reason, last.killed, code) == (Status.SHUTOFF, "Shutdown", False, 0)


async def _stands_still(vm: VM) -> None:
    assert await _is(vm, Status.PAUSED) and "ready" not in vm.output
    await vm.client.call(Unpause())
    await vm.says(r"virtfleet-guest ready")


async def _is_killed(vm: VM) -> None:
    await vm.client.call(Kill())
    last, code = await vm.ending()
    assert (last.status, last.reason, code) == (Status.SHUTOFF, "Destroyed", 0)


async def _loses_its_launcher(vm: VM) -> None:
    before = vm.processes()
    os.kill(before["launcher"], signal.SIGKILL)
    await eventually(lambda: not [name for name, process in before.items() if os.path.exists(f"/proc/{process}")])


async def _starts_again(vm: VM) -> None:
    """While nobody has cleared away yet what the killed launcher left, in the hypervisor for one."""
    hypervisor, vmi = vm.standalone.hypervisor, vm.standalone.vmi
    async with Standalone(vmi, hypervisor, vm.standalone.context, vm.standalone.sources) as standalone:
        _write_secret(standalone)
        await standalone.start()
        again = VM(standalone)
        await boots(again)
        if how := hypervisor.descriptor.outliving:
            found = [line for line in (await commands.run(*how.listing)).splitlines() if "default_guest" in line]
            assert len(found) == 1, found
        await _is_killed(again)


FIRST = (
    Trial("boots, and is heard on its console", boots, ("serial-console",)),
    Trial("reads its cloud-init seed", _reads_seed, ("serial-console", "cloud-init")),
    Trial("hears what is typed", _hears, ("serial-console",)),
    Trial("reads a Secret on a disk of its own", _reads_secret, ("serial-console", "config-disk")),
    Trial("has an address by DHCP, and answers", _serves, ("serial-console", "net-masquerade")),
    Trial("goes on when libvirt's daemon is killed", _survives_daemon, ("serial-console",)),
    Trial("stands still when paused, and goes on", _pauses, ("serial-console",)),
    Trial("shuts down when asked", _shuts_down),
)
PAUSED = (Trial("starts paused, and runs when let", _stands_still, ("serial-console", "start-paused")),)
KILLED = (Trial("is killed", _is_killed),)
LEFT = (
    Trial("its processes end with a launcher that is killed", _loses_its_launcher),
    Trial("starts again after that, and is there once", _starts_again, ("serial-console",)),
)


def lacking(hypervisor: Hypervisor, needs: Iterable[str]) -> str:
    """Why a hypervisor cannot be tried for what needs these features, or ""."""
    supports = [features.support(hypervisor, key) for key in needs]
    return next((has.reason for has in supports if has.level not in (Level.WORKS, Level.EXPERIMENTAL)), "")


def guest(hypervisor: Hypervisor, **spec: Any) -> dict[str, Any]:
    """A VMI that boots our guest, with all that the hypervisor can be tried for."""
    volumes = [user_data("echo the seed has arrived")] if not lacking(hypervisor, ["cloud-init"]) else []
    volumes += [{"name": "secret", "secret": {"secretName": "s"}}] if not lacking(hypervisor, ["config-disk"]) else []
    if hypervisor.descriptor.container:
        return container(volumes)
    vmi = machine(volumes, **spec)
    domain = vmi["spec"]["domain"]
    domain["devices"].pop("rng")
    vmi["spec"]["hypervisor"] = hypervisor.descriptor.name
    if lacking(hypervisor, ["graphics"]):
        domain["devices"]["autoattachGraphicsDevice"] = False
    if hypervisor.descriptor.name == "xen":  # where a disk takes too long to boot from when all is emulated
        boot = {"image": "x", "kernelPath": "/vmlinuz", "initrdPath": "/initrd"}
        domain["firmware"] = {"kernelBoot": {"container": boot, "kernelArgs": "console=hvc0 quiet panic=5"}}
        domain["memory"] = {"guest": "192Mi"}
    return vmi


def alone(hypervisor: Hypervisor, place: Place, vmi: dict[str, Any]) -> Standalone:
    """The VMI, admitted, in a sandbox that is not started yet."""
    name = hypervisor.descriptor.name
    cluster = Installation({"spec": {"configuration": {"hypervisors": [{"name": name}]}}})
    completed, found = complete(vmi, cluster)
    assert found.allowed, found.causes
    completed["metadata"]["uid"] = str(uuid.uuid4())
    root = completed["spec"]["volumes"][0]["name"]
    sources = {root: place.image, KERNEL_BOOT: place.boot}
    context = Context(emulated=bool(hypervisor.descriptor.emulation))
    return Standalone(completed, hypervisor, context, sources, cache=place.cache)


async def try_all(hypervisor: Hypervisor, place: Place) -> Report:
    """What comes of every trial. Those of one guest come one after the other."""
    report = Report(hypervisor=hypervisor.descriptor.name)
    for trials, spec in ((FIRST, {}), ((*PAUSED, *KILLED), {"startStrategy": "Paused"}), (LEFT, {})):
        if spec and lacking(hypervisor, PAUSED[0].needs):
            spec = {}
        await _try(hypervisor, place, guest(hypervisor, **spec), trials, report)
    return report


async def _try(
    hypervisor: Hypervisor, place: Place, vmi: dict[str, Any], trials: tuple[Trial, ...], report: Report
) -> None:
    async with alone(hypervisor, place, vmi) as standalone:
        try:
            _write_secret(standalone)
            await standalone.start()
            vm = VM(standalone)
            for trial in trials:
                reason = lacking(hypervisor, trial.needs)
                if not reason:
                    sys.stderr.write(f"{report.hypervisor}: {trial.title}\n")
                    await trial.run(vm)
                report.results[trial.title] = reason or PASSED
                if trial.run is boots:
                    report.resident = report.resident or {name: vm.resident(name) for name in vm.processes()}
        except Exception as error:
            missed = next(trial for trial in trials if trial.title not in report.results)
            report.results[missed.title] = f"failed: {error}"
            sys.stderr.write(vm_said(standalone))


def _write_secret(standalone: Standalone) -> None:
    """Where a Pod has it mounted."""
    directory = standalone.sandbox.path(paths.config_dir("secret", "secret"))
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "word").write_text(SECRET + "\n")


def vm_said(standalone: Standalone) -> str:
    """The ends of what guest and launcher said."""
    console = Path(f"{standalone.console}-log")
    said = console.read_text(errors="replace")[-2000:] if console.exists() else ""
    return f"{said}\n{standalone.log.read_text(errors='replace')[-4000:]}"


def dotted(version: int) -> str:
    """A version as libvirt counts them, for people."""
    return f"{version // 1_000_000}.{version // 1_000 % 1_000}.{version % 1_000}"
