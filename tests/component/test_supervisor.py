"""The supervisor keeps a cluster's processes running, and leaves none behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

import pytest

from virtfleet.local import supervisor
from virtfleet.local.supervisor import NotRunning, ask
from waiting import eventually

# Waits for a signal without spending time; says in its log that it runs.
IDLE = [sys.executable, "-c", "import signal; print('here', flush=True); signal.pause()"]
# Gives signs of life as the processes of a cluster do.
ALIVE = [
    sys.executable,
    "-c",
    "import asyncio; from virtfleet.local import signsoflife\n"
    "async def work(): await asyncio.sleep(0.1); print('here', flush=True); await asyncio.Event().wait()\n"
    "asyncio.run(signsoflife.giving(work()))",
]
TALKATIVE = [
    sys.executable,
    "-c",
    "import itertools, time\n"
    "for n in itertools.count(): print(n, 'x' * 100_000, flush=True); time.sleep(0 if n < 250 else 0.1)",
]
STUBBORN = [
    sys.executable,
    "-c",
    "import signal; signal.signal(15, signal.SIG_IGN); print('here', flush=True)\nwhile True: signal.pause()",
]


@pytest.fixture
def supervise(tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    running: list[subprocess.Popen[bytes]] = []

    def start(stderr: int | IO[bytes] = subprocess.PIPE) -> subprocess.Popen[bytes]:
        process = subprocess.Popen([sys.executable, "-m", supervisor.__name__, str(tmp_path)], stderr=stderr)
        running.append(process)
        eventually(lambda: ask(tmp_path, op="status")["pid"] == process.pid or process.poll() is not None)
        return process

    yield start
    for process in running:
        process.terminate()
        process.communicate(timeout=30)


def child_of(directory: Path, name: str) -> dict[str, Any]:
    return next(c for c in ask(directory, op="status")["children"] if c["name"] == name)


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
    eventually(lambda: child_of(tmp_path, "broken")["restarts"] >= 2)
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


# What the disk, or the machine, may do to it.


def test_a_log_that_takes_nothing_more_kills_nobody(supervise: Callable[..., object], tmp_path: Path) -> None:
    """Its own log and that of a child on a full disk; a directory for logs that cannot be had."""
    with open("/dev/full", "wb") as full:
        process = supervise(stderr=full)
    assert isinstance(process, subprocess.Popen)
    (tmp_path / "logs").write_text("in the way")
    ask(tmp_path, op="run", name="part", argv=IDLE)
    for _ in range(3):
        pid = eventually(lambda: pid_of(tmp_path, "part"))
        os.kill(pid, signal.SIGKILL)
        eventually(lambda pid=pid: pid_of(tmp_path, "part") not in (None, pid))
    (tmp_path / "logs").unlink()
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "full.log").symlink_to("/dev/full")
    ask(tmp_path, op="run", name="full", argv=ALIVE)
    eventually(lambda: pid_of(tmp_path, "full"))
    assert process.poll() is None


@pytest.mark.slow
def test_a_log_is_bounded_while_its_process_runs(supervise: Callable[[], object], tmp_path: Path) -> None:
    supervise()
    ask(tmp_path, op="run", name="part", argv=TALKATIVE)
    pid, log = eventually(lambda: pid_of(tmp_path, "part")), tmp_path / "logs" / "part.log"
    older = log.with_suffix(".log.1")
    eventually(lambda: ask(tmp_path, op="status") and older.exists() and log.stat().st_size < supervisor.LOG_LIMIT)
    assert older.stat().st_size >= supervisor.LOG_LIMIT
    grown = log.stat().st_size
    eventually(lambda: log.stat().st_size > grown)
    assert pid_of(tmp_path, "part") == pid
    lines = older.read_bytes().splitlines()[:150]
    assert [int(line.split()[0]) for line in lines] == list(range(150))  # nothing of it is lost


def test_a_frozen_child_is_replaced_and_its_status_says_why(supervise: Callable[[], object], tmp_path: Path) -> None:
    supervise()
    ask(tmp_path, op="run", name="part", argv=ALIVE, silence=3)
    ask(tmp_path, op="run", name="quiet", argv=IDLE)  # promises nothing, so nobody waits for it
    pid, quiet = eventually(lambda: pid_of(tmp_path, "part")), eventually(lambda: pid_of(tmp_path, "quiet"))
    # Before its first sign of life, it has longer.
    eventually(lambda: (tmp_path / "logs" / "part.log").read_bytes() == b"here\n")
    os.kill(pid, signal.SIGSTOP)
    eventually(lambda: pid_of(tmp_path, "part") not in (None, pid))
    assert gone(pid)
    assert child_of(tmp_path, "part")["reason"] == "gave no sign of life for 3 s and was killed"
    assert pid_of(tmp_path, "quiet") == quiet


def test_a_supervisor_that_was_frozen_blames_nobody_else(tmp_path: Path) -> None:
    watched = supervisor.Supervisor(tmp_path)
    child = supervisor.Child("part", [], {}, silence=3.0, process=subprocess.Popen(IDLE, stdout=subprocess.DEVNULL))
    assert child.process is not None
    try:
        watched.children["part"] = child
        now = time.monotonic()
        child.silent_at, watched._looked = now - 1, now - 60  # it was stopped for a minute
        watched._kill_silent()
        assert not child.hung
        child.silent_at = time.monotonic() - 1
        watched._kill_silent()
        assert child.hung
        child.process.wait(10)
    finally:
        child.process.kill()
        child.process.wait()


def test_a_frozen_child_does_not_outlive_its_supervisor(
    supervise: Callable[[], subprocess.Popen[bytes]], tmp_path: Path
) -> None:
    process = supervise()
    ask(tmp_path, op="run", name="part", argv=ALIVE, silence=30)
    pid = eventually(lambda: pid_of(tmp_path, "part"))
    os.kill(pid, signal.SIGSTOP)
    process.kill()
    process.wait()
    eventually(lambda: gone(pid))
