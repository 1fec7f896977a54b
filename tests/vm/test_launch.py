"""`virtfleet launch`: one VM with no cluster at all."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from virtfleet.launcher.alone.sandbox import sweep
from vm.guests import PATIENCE, guest, machine, user_data
from waiting import eventually

VIRTFLEET = str(Path(sys.executable).parent / "virtfleet")


def launch(file: Path, *options: str) -> list[str]:
    guest()  # built before anything is measured or killed
    return [VIRTFLEET, "launch", "-f", str(file), "--emulate", "-o", "json", *options]


@pytest.fixture
def manifest(tmp_path: Path) -> Path:
    file = tmp_path / "vmi.yaml"
    file.write_text(yaml.safe_dump(machine([user_data("echo hello from the seed", "poweroff")])))
    return file


@pytest.fixture
def temporary(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A place of our own for sandboxes, with a short name."""
    directory = tempfile.mkdtemp(prefix="t-")
    os.chmod(directory, 0o755)
    monkeypatch.setattr(tempfile, "tempdir", directory)
    monkeypatch.setenv("TMPDIR", directory)
    yield Path(directory)
    shutil.rmtree(directory)


def test_a_vm_boots_from_one_file_and_the_command_ends_with_it(manifest: Path, temporary: Path) -> None:
    done = subprocess.run(
        launch(manifest), stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=PATIENCE, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "hello from the seed" in done.stderr
    result = json.loads(done.stdout)
    assert (result["status"], result["reason"], result["emulated"]) == ("Shutoff", "Shutdown", True)
    assert list(temporary.iterdir()) == []


def test_on_a_terminal_the_console_is_shown_there(manifest: Path, temporary: Path) -> None:
    guest()
    command = f"{VIRTFLEET} launch -f {manifest} --emulate"
    done = subprocess.run(
        ["script", "-qec", command, "/dev/null"], capture_output=True, text=True, timeout=PATIENCE, check=False
    )
    assert done.returncode == 0, done.stdout
    assert "hello from the seed" in done.stdout
    assert "guest: Shutoff (Shutdown)" in done.stdout


def test_a_killed_command_takes_its_vm_with_it(manifest: Path, temporary: Path) -> None:
    command = subprocess.Popen(launch(manifest, "--no-console"), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    try:
        eventually(lambda: list(temporary.glob("vf-*/run/kubevirt-private/*/virt-serial0")), PATIENCE)
        (sandbox,) = temporary.iterdir()
        assert processes_of(sandbox)
    finally:
        command.kill()
        command.wait()
    eventually(lambda: not processes_of(sandbox))
    other = temporary / "vf-of-somebody-else" / "run"
    other.mkdir(parents=True)
    sweep()  # as the next launch would
    assert list(temporary.iterdir()) == [other.parent], "what others made is theirs"


def processes_of(sandbox: Path) -> list[int]:
    """Processes that have the sandbox's directory mounted."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if f"{sandbox}/run " in (entry / "mountinfo").read_text():
                found.append(int(entry.name))
        except OSError:
            continue
    return found


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"volumes": [{"name": "root", "containerDisk": {"image": "example/other"}}]}, "--disk root=PATH"),
        ({"hypervisor": "esx"}, "cannot run on hypervisor esx yet"),
        ({"hypervisor": "xen"}, "hypervisor xen does not work here: "),
        ({"domain": {"memory": {"guest": "many"}}}, "spec.domain.memory.guest"),
    ],
)
def test_what_cannot_be_launched_is_refused_with_what_to_do(
    change: dict[str, object], message: str, tmp_path: Path
) -> None:
    vmi = machine()
    vmi["spec"] |= change
    file = tmp_path / "vmi.yaml"
    file.write_text(yaml.safe_dump(vmi))
    done = subprocess.run(
        launch(file), stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=PATIENCE, check=False
    )
    assert done.returncode != 0
    assert message in done.stderr
