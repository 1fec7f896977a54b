"""The supervisor keeps a cluster's processes running, and leaves none behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from virtfleet.local import supervisor
from virtfleet.local.supervisor import NotRunning, ask
from waiting import eventually

# Waits for a signal without spending time; says in its log that it runs.
IDLE = [sys.executable, "-c", "import signal; print('here', flush=True); signal.pause()"]
STUBBORN = [
    sys.executable,
    "-c",
    "import signal; signal.signal(15, signal.SIG_IGN); print('here', flush=True)\nwhile True: signal.pause()",
]


@pytest.fixture
def supervise(tmp_path: Path) -> Iterator[Callable[[], subprocess.Popen[bytes]]]:
    running: list[subprocess.Popen[bytes]] = []

    def start() -> subprocess.Popen[bytes]:
        process = subprocess.Popen([sys.executable, "-m", supervisor.__name__, str(tmp_path)], stderr=subprocess.PIPE)
        running.append(process)
        eventually(lambda: (tmp_path / supervisor.SOCKET).exists() or process.poll() is not None)
        return process

    yield start
    for process in running:
        process.terminate()
        process.communicate(timeout=30)


def pid_of(directory: Path, name: str) -> int | None:
    children = {c["name"]: c["pid"] for c in ask(directory, op="status")["children"]}
    pid: int | None = children.get(name)
    return pid


def gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z"
    except FileNotFoundError:
        return True


def test_a_killed_child_is_started_again(supervise: Callable[[], object], tmp_path: Path) -> None:
    supervise()
    ask(tmp_path, op="run", name="part", argv=IDLE)
    pids = set()
    for _ in range(3):
        pid = eventually(lambda: pid_of(tmp_path, "part"))
        assert pid not in pids
        pids.add(pid)
        os.kill(pid, signal.SIGKILL)
        eventually(lambda pid=pid: pid_of(tmp_path, "part") not in (None, pid))


def test_running_the_same_again_changes_nothing_and_another_command_replaces(
    supervise: Callable[[], object], tmp_path: Path
) -> None:
    supervise()
    ask(tmp_path, op="run", name="part", argv=IDLE)
    pid = eventually(lambda: pid_of(tmp_path, "part"))
    ask(tmp_path, op="run", name="part", argv=IDLE)
    assert pid_of(tmp_path, "part") == pid
    ask(tmp_path, op="run", name="part", argv=[*IDLE, "other"])
    eventually(lambda: pid_of(tmp_path, "part") not in (None, pid))
    assert gone(pid)


def test_an_ended_child_stays_ended_and_the_answer_waits_for_it(
    supervise: Callable[[], object], tmp_path: Path
) -> None:
    supervise()
    ask(tmp_path, op="run", name="part", argv=IDLE)
    pid = eventually(lambda: pid_of(tmp_path, "part"))
    ask(tmp_path, op="end", name="part")
    assert gone(pid)
    assert pid_of(tmp_path, "part") is None
    ask(tmp_path, op="end", name="part")  # ending what is not there is fine


def test_a_child_that_does_not_listen_can_be_killed(supervise: Callable[[], object], tmp_path: Path) -> None:
    supervise()
    ask(tmp_path, op="run", name="part", argv=STUBBORN)
    eventually(lambda: (tmp_path / "logs" / "part.log").read_bytes() == b"here\n")
    pid = pid_of(tmp_path, "part")
    assert pid
    ask(tmp_path, op="end", name="part", signal=int(signal.SIGKILL))
    assert gone(pid)


def test_a_command_that_cannot_start_is_tried_again_and_harms_nobody(
    supervise: Callable[[], object], tmp_path: Path
) -> None:
    supervise()
    ask(tmp_path, op="run", name="broken", argv=["/nonexistent"])
    ask(tmp_path, op="run", name="part", argv=IDLE)
    eventually(lambda: pid_of(tmp_path, "part"))
    eventually(
        lambda: next(c for c in ask(tmp_path, op="status")["children"] if c["name"] == "broken")["restarts"] >= 2
    )
    ask(tmp_path, op="end", name="broken")


def test_stop_ends_everything(supervise: Callable[[], subprocess.Popen[bytes]], tmp_path: Path) -> None:
    process = supervise()
    for name in ("a", "b"):
        ask(tmp_path, op="run", name=name, argv=IDLE)
    pids = [eventually(lambda name=name: pid_of(tmp_path, name)) for name in ("a", "b")]
    ask(tmp_path, op="stop")
    assert process.wait(30) == 0
    assert all(map(gone, pids))
    with pytest.raises(NotRunning):
        ask(tmp_path, op="status")


def test_children_end_with_a_killed_supervisor_and_the_next_one_starts_clean(
    supervise: Callable[[], subprocess.Popen[bytes]], tmp_path: Path
) -> None:
    first = supervise()
    ask(tmp_path, op="run", name="part", argv=IDLE)
    pid = eventually(lambda: pid_of(tmp_path, "part"))
    first.kill()
    first.wait()
    eventually(lambda: gone(pid))
    supervise()
    eventually(lambda: ask(tmp_path, op="status")["children"] == [])


def test_a_directory_has_one_supervisor(supervise: Callable[[], subprocess.Popen[bytes]], tmp_path: Path) -> None:
    supervise()
    second = subprocess.run([sys.executable, "-m", supervisor.__name__, str(tmp_path)], capture_output=True, text=True)
    assert second.returncode == 1
    assert "another supervisor runs" in second.stderr
    assert ask(tmp_path, op="status")["children"] == []


def test_nonsense_on_the_socket_is_answered_with_an_error(supervise: Callable[[], object], tmp_path: Path) -> None:
    supervise()
    with pytest.raises(RuntimeError, match="does not know"):
        ask(tmp_path, op="dance")
    with pytest.raises(RuntimeError, match="cannot do that"):
        ask(tmp_path, op="run")
