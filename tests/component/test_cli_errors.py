"""No traceback reaches whoever runs a command: one line says what is wrong, and another one what to do."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from virtfleet import __version__ as virtfleet_version
from virtfleet.cli.output import TRACE, explained
from virtfleet.kube.errors import ApiError

VIRTFLEET = str(Path(sys.executable).parent / "virtfleet")
ENVIRONMENT = {"PATH": os.environ["PATH"]}
# Manifests of a kind that nobody means.
FILES = {
    "binary": b"\x7fELF\x02\x01\x01\x00\xff\xfe" * 100,
    "control characters": b"kind: \x01\x02",
    "no such date": b"kind: X\na: 2023-99-99",
    "deep": b"[" * 5000,
    "nothing": b"",
    "a list": b"- 1",
    "a number": b"1" * 5000,
}


def virtfleet(*args: str, **env: str) -> subprocess.CompletedProcess[str]:
    command = [VIRTFLEET, *args]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, env={**ENVIRONMENT, **env})


def is_told(done: subprocess.CompletedProcess[str], *words: str) -> None:
    said = done.stdout + done.stderr
    assert "Traceback" not in said, said
    assert done.returncode in (1, 2), said
    assert all(word in said for word in words), said


@pytest.mark.parametrize("content", FILES.values(), ids=FILES)
@pytest.mark.parametrize("command", ["validate", "launch"])
def test_a_file_that_is_no_manifest(command: str, content: bytes, tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(content)
    done = virtfleet(command, "-f", str(file), VIRTFLEET_CACHE=str(tmp_path))
    said = done.stdout + done.stderr
    assert "Traceback" not in said, said
    failed = {"validate": 2, "launch": 1}[command]  # for validate, 1 is that a manifest was refused
    assert done.returncode == (0 if (command, content) == ("validate", b"") else failed), said
    assert content == b"" or str(file) in said


def test_a_program_is_not_a_manifest() -> None:
    is_told(virtfleet("validate", "-f", "/bin/ls"), "/bin/ls is not text in UTF-8", "name a manifest")


@pytest.mark.skipif(os.geteuid() != 0, reason="becomes another user")
@pytest.mark.parametrize("home", [{}, {"HOME": "/nonexistent"}], ids=["nobody knows it", "it is not there"])
def test_a_user_without_a_home(home: dict[str, str], tmp_path: Path) -> None:
    manifest = tmp_path / "vmi.yaml"
    manifest.write_text(
        "{apiVersion: kubevirt.io/v1, kind: VirtualMachineInstance, metadata: {name: a}, spec: {domain: "
        "{memory: {guest: 64Mi}, devices: {}}}}"
    )
    for directory in (tmp_path, *tmp_path.parents[:-2]):
        directory.chmod(0o755)
    as_nobody = ["setpriv", "--reuid=54321", "--regid=54321", "--clear-groups", VIRTFLEET]
    for command, variable in ((["launch", "-f", str(manifest)], "VIRTFLEET_CACHE"), (["status"], "VIRTFLEET_DATA")):
        environment = {**ENVIRONMENT, **home}
        done = subprocess.run([*as_nobody, *command], capture_output=True, text=True, timeout=60, env=environment)
        is_told(done, "no home directory", f"{variable}=DIR")


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting needs root")
def test_a_new_cluster_on_a_disk_without_room(tmp_path: Path) -> None:
    disk = tmp_path / "d"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "vft-tiny", str(disk)], check=True)
    try:
        (disk / "junk").write_bytes(bytes(48 << 10))
        is_told(virtfleet("up", "--data", str(disk / "c"), "--bare"), "is full", "Make room")
        is_told(virtfleet("status", "--data", str(disk / "c")), "there is no cluster")
    finally:
        subprocess.run(["umount", "-l", str(disk)], check=True)


def test_what_nobody_foresaw_is_one_line_with_a_next_step() -> None:
    full = explained(ExceptionGroup("a", [OSError(28, "No space left on device", "/x/y")])).message
    assert full == "/x/y: No space left on device\nMake room on that disk, then repeat the command."
    bug = explained(KeyError("spec")).message
    assert bug.splitlines()[0] == "this should not have happened: KeyError: 'spec'"
    assert TRACE in bug


def test_advice_of_the_cluster_is_about_this_command() -> None:
    said = explained(ApiError("Conflict", "VMI is paused; let it go on with virtctl unpause vmi web")).message
    assert said == "VMI is paused; let it go on with virtfleet unpause web"


def test_a_command_that_is_spelt_wrong() -> None:
    is_told(virtfleet("mirgate", "web"), "there is no command 'mirgate'; did you mean 'migrate'?")


@pytest.mark.slow
def test_the_version_of_a_cluster_that_is_away(tmp_path: Path) -> None:
    (tmp_path / "config").write_text("apiVersion: v1\nkind: Config\n")
    done = virtfleet("version", "--kubeconfig", str(tmp_path / "config"), "-o", "json")
    said = json.loads(done.stdout)
    assert said["client"] == virtfleet_version and said["error"], done
    assert done.returncode == 0 and "cluster" not in said
    assert json.loads(virtfleet("version", "--client", "-o", "json").stdout) == {"client": virtfleet_version}


@pytest.mark.slow
@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_shell_learns_to_complete(shell: str) -> None:
    assert "_VIRTFLEET_COMPLETE" in virtfleet("completion", shell).stdout
    asked = virtfleet(_VIRTFLEET_COMPLETE="bash_complete", COMP_WORDS="virtfleet mig", COMP_CWORD="1")
    assert "migrate" in asked.stdout


def test_a_vm_without_a_cluster_has_no_vsock_and_what_it_would_have_there_is_shown(tmp_path: Path) -> None:
    manifest = tmp_path / "vmi.yaml"
    manifest.write_text(
        "{apiVersion: kubevirt.io/v1, kind: VirtualMachineInstance, metadata: {name: a}, spec: {domain: "
        "{memory: {guest: 64Mi}, devices: {autoattachVSOCK: true}}}}"
    )
    is_told(
        virtfleet("launch", "-f", str(manifest)), "has no vsock", "Set spec.domain.devices.autoattachVSOCK to false"
    )
    assert '<cid auto="no" address="3"/>' in virtfleet("render", "domain", "-f", str(manifest)).stdout
