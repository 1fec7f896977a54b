"""Whether a hypervisor works on a machine: the steps of its proof, and the first one that fails as the reason."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar
from xml.etree.ElementTree import Element

import pytest

from virtfleet.api.vmi import VirtualMachineInstance
from virtfleet.domain.context import Context
from virtfleet.hypervisors import registry
from virtfleet.hypervisors.base import Connection, DaemonPlan, DaemonSettings, Descriptor, Hypervisor, Overheads
from virtfleet.hypervisors.proof import Device, Program, Step, TinyGuest
from virtfleet.launcher.node import trial


class Theirs(Hypervisor):
    """A hypervisor whose proof is what a test says."""

    descriptor: ClassVar[Descriptor] = Descriptor(
        name="theirs",
        title="Theirs",
        overheads=Overheads(daemon="0", vmm="0"),
        launcher_image="l",
        connection=Connection.LIBRARY,
        uri="theirs:///",
    )

    def __init__(self, *steps: Step) -> None:
        self.steps = steps

    def proof(self, machine: str) -> tuple[Step, ...]:
        return self.steps

    def build(self, vmi: VirtualMachineInstance, context: Context) -> Element:
        return Element("domain")

    def daemon(self, settings: DaemonSettings) -> DaemonPlan:
        return DaemonPlan(uri=self.descriptor.uri)


def guest(script: str, seconds: float = 30) -> TinyGuest:
    files = {"said": b"hello"}
    return TinyGuest(command=("sh", "-c", script), files=files, does="greets", status=33, seconds=seconds)


@pytest.mark.parametrize(
    ("steps", "reason"),
    [
        ((), ""),
        ((Device("null"), Program("sh"), guest("grep -q hello {said} && exit 33")), ""),
        ((Device("nowhere"), Program("nothing-of-the-kind")), "/dev/nowhere: No such file or directory"),
        ((Device("null"), Program("nothing-of-the-kind")), "nothing-of-the-kind is not installed"),
        ((guest("echo no luck >&2; exit 1"),), "a tiny guest ended with status 1: no luck"),
        ((guest("exec cat /dev/zero >/dev/null", 0.2),), "a guest that greets did not end within 0 s"),
        ((guest("exec cat /dev/zero >/dev/null"),), "a guest that greets did not end within 2 s of CPU time"),
    ],
)
def test_the_first_step_that_fails_is_the_reason(tmp_path: Path, steps: tuple[Step, ...], reason: str) -> None:
    trouble = trial.trouble(Theirs(*steps), tmp_path)
    assert bool(trouble) == bool(reason)
    assert trouble.startswith(reason)


def test_a_guest_is_run_once_until_the_machine_is_booted_again(tmp_path: Path) -> None:
    counted = f"echo run >> {tmp_path}/runs; exit 33"
    for _ in range(2):
        assert not trial.trouble(Theirs(guest(counted)), tmp_path / "cache")
    assert (tmp_path / "runs").read_text() == "run\n"
    (kept,) = (tmp_path / "cache").iterdir()
    kept.write_bytes(kept.read_bytes().replace(Path("/proc/sys/kernel/random/boot_id").read_bytes().strip(), b"before"))
    assert not trial.trouble(Theirs(guest(counted)), tmp_path / "cache")
    assert (tmp_path / "runs").read_text() == "run\nrun\n"


def test_a_hypervisor_that_runs_no_vms_yet_does_not_work_here() -> None:
    remote = registry.get("esx")
    assert trial.trouble(remote, Path("/nonexistent")) == remote.refusal
