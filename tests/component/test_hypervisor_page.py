"""The page for developers of hypervisors does what it says, from the first command to a guest that was tried."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs/hypervisor-development.md"
VMI = """kind: VirtualMachineInstance
metadata: {name: a, namespace: b}
spec: {domain: {memory: {guest: 64Mi}, devices: {}}}
"""
# Blocks whose commands need a cluster, or a driver of the reader's own.
ELSEWHERE = ("virtfleet validate", "virtfleet launch", "--target lib ../mine", "virtfleet up")


def blocks() -> list[list[tuple[str, list[str]]]]:
    """Commands with what they print, block by block."""
    found = []
    for block in re.findall(r"```console\n(.*?)```", PAGE.read_text(), re.DOTALL):
        commands: list[tuple[str, list[str]]] = []
        for line in block.splitlines():
            if line.startswith(("$ ", "# ")):
                commands.append((line[2:], []))
            else:
                commands[-1][1].append(line)
        if not any(word in command for command, _ in commands for word in ELSEWHERE):
            found.append(commands)
    return found


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.skipif(os.getuid() != 0, reason="trying a hypervisor needs root")
def test_the_page_runs() -> None:
    with TemporaryDirectory(prefix="virtfleet-") as directory:
        Path(directory).chmod(0o755)  # launchers are another user, and import the package
        follow_the_page(Path(directory))


def follow_the_page(tmp_path: Path) -> None:
    (tmp_path / "vm.yaml").write_text(VMI)
    path = f"{ROOT}/.venv/bin:{ROOT}/.tools/bin:{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "VIRTUAL_ENV": str(ROOT / ".venv")}
    commands = [pair for block in blocks() for pair in block]
    assert len(commands) == 7, "each block of the page is run here, or named above"
    for command, printed in commands:
        if command.startswith("export "):
            name, _, value = command.removeprefix("export ").partition("=")
            environment[name] = str(tmp_path / value)
            continue
        done = subprocess.run(
            ["bash", "-c", command],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
        for line in printed:
            words = r"\s+".join(map(re.escape, line.split()))
            assert re.search(words, done.stdout), f"{command} prints no {line!r}:\n{done.stdout}"


def test_the_example_is_what_the_command_writes() -> None:
    from virtfleet.cli.look.newhypervisor import files

    example = ROOT / "examples/hypervisor-plugin"
    written = files("mock")
    assert {path: (example / path).read_text() for path in written} == written
    with pytest.raises(ValueError, match="already"):
        files("kvm")
    with pytest.raises(ValueError, match="no name"):
        files("../kvm")
