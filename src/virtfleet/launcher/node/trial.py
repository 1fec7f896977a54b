"""Whether a hypervisor really works here, by taking the steps of its proof. The answer holds until the next reboot."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path

import msgspec

from virtfleet.hypervisors.base import Hypervisor
from virtfleet.hypervisors.proof import Device, Program, Step, TinyGuest
from virtfleet.launcher.libvirtd.daemons import lacking
from virtfleet.launcher.node import keep

_CPU = 2
"""Seconds of it that a tiny guest has, where a broken device keeps one busy. It may wait longer for its turn."""
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


class _Record(msgspec.Struct):
    boot_id: str
    reason: str


def trouble(hypervisor: Hypervisor, cache: Path) -> str:
    """Why a hypervisor does not work on this machine, or "". What a guest was run for is kept in `cache`."""
    if missing := hypervisor.refusal or lacking(hypervisor):
        return missing
    steps = hypervisor.proof(os.uname().machine)
    if not any(isinstance(step, TinyGuest) for step in steps):
        return _first_trouble(steps)
    boot_id, kept = _BOOT_ID.read_text().strip(), cache / f"trial-{hypervisor.descriptor.name}.json"
    with suppress(OSError, msgspec.MsgspecError):
        record = msgspec.json.decode(kept.read_bytes(), type=_Record)
        if record.boot_id == boot_id:
            return record.reason
    reason = _first_trouble(steps)
    keep(kept, msgspec.json.encode(_Record(boot_id, reason)))
    return reason


def steps(hypervisor: Hypervisor, *, emulated: bool = False) -> Iterator[tuple[str, str]]:
    """The same, step by step: what each is about, and why it fails. Nothing is taken from memory."""
    yield "libvirt has a driver for it", hypervisor.refusal or lacking(hypervisor)
    for step in hypervisor.proof(os.uname().machine):
        if not (emulated and isinstance(step, Device | TinyGuest)):
            yield _title(step), _trouble(step)


def _first_trouble(steps: tuple[Step, ...]) -> str:
    return next(filter(None, map(_trouble, steps)), "")


def _title(step: Step) -> str:
    match step:
        case Device(name):
            return f"/dev/{name} opens"
        case Program(name):
            return f"{name} is installed"
        case TinyGuest():
            return f"a guest {step.does} on hardware"


def _trouble(step: Step) -> str:
    """Why a step fails, or "" where it does not."""
    match step:
        case Device(name):
            try:
                os.close(os.open(f"/dev/{name}", os.O_RDWR | os.O_CLOEXEC))
            except OSError as error:
                return f"/dev/{name}: {error.strerror}"
        case Program(name):
            from shutil import which

            return "" if which(name) else f"{name} is not installed"
        case TinyGuest():
            return _guest(step)
    return ""


def _guest(wanted: TinyGuest) -> str:
    import tempfile  # which launchers, whose trials are over, need not hold in memory

    with tempfile.TemporaryDirectory(prefix="virtfleet-trial-") as directory:
        places = {name: f"{directory}/{name}" for name in wanted.files}
        for name, content in wanted.files.items():
            Path(places[name]).write_bytes(content)
        command = [word.format_map(places) for word in wanted.command]
        limited = partial(resource.setrlimit, resource.RLIMIT_CPU, (_CPU, _CPU + 1))
        try:
            done = subprocess.run(
                command,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=wanted.seconds,
                check=False,
                preexec_fn=limited,
            )
        except subprocess.TimeoutExpired:
            return f"a guest that {wanted.does} did not end within {wanted.seconds:.0f} s, although its device opens"
    if done.returncode == -signal.SIGXCPU:
        return f"a guest that {wanted.does} did not end within {_CPU} s of CPU time, although its device opens"
    if done.returncode == wanted.status:
        return ""
    return f"a tiny guest ended with status {done.returncode}: {done.stderr.strip()}"
