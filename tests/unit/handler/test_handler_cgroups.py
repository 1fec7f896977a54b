"""Threads beside the guest's get CPUs of their own on either version of control groups."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from virtfleet.handler.pods.cgroups import ControlGroup


def group(tmp_path: Path, lines: str) -> ControlGroup:
    return ControlGroup(lines, tmp_path / "sys")


@pytest.fixture
def threads() -> Iterator[list[int]]:
    """Real threads, which may be bound."""
    over = threading.Event()
    started = [threading.Thread(target=over.wait) for _ in range(2)]
    for thread in started:
        thread.start()
    yield [thread.native_id for thread in started if thread.native_id]
    over.set()
    for thread in started:
        thread.join()


def test_version_1_moves_threads_to_a_group_below(tmp_path: Path) -> None:
    made = group(tmp_path, "4:cpuset:/pod\n0::/pod\n")
    parent = tmp_path / "sys/cpuset/pod"
    parent.mkdir(parents=True)
    (parent / "cpuset.mems").write_text("0")
    made.housekeep([41], {3, 1})
    assert (parent / "housekeeping/cpuset.cpus").read_text() == "1,3"
    assert (parent / "housekeeping/tasks").read_text() == "41"


def test_version_2_makes_a_threaded_group(tmp_path: Path) -> None:
    made = group(tmp_path, "0::/kubepods/pod\n")
    parent = tmp_path / "sys/kubepods/pod"
    parent.mkdir(parents=True)
    made.housekeep([41], {1})
    child = parent / "housekeeping"
    assert (child / "cgroup.type").read_text() == "threaded"
    assert (parent / "cgroup.subtree_control").read_text() == "+cpuset"
    assert (child / "cpuset.cpus").read_text() == "1"
    assert (child / "cgroup.threads").read_text() == "41"


def test_where_the_kernel_has_no_such_group_threads_are_bound(tmp_path: Path, threads: list[int]) -> None:
    cpu = min(os.sched_getaffinity(0))
    gone = 2**22 - 1
    group(tmp_path, "0::/kubepods/pod\n").housekeep([*threads, gone], {cpu})  # there is no such directory
    assert [os.sched_getaffinity(thread) for thread in threads] == [{cpu}, {cpu}]
    assert os.sched_getaffinity(0) != {cpu} or os.cpu_count() == 1


@pytest.mark.parametrize("lines", ["4:cpuset:/pod/housekeeping\n0::/pod\n", "0::/pod/housekeeping\n"])
def test_a_process_that_was_moved_is_still_of_the_group_above(tmp_path: Path, lines: str) -> None:
    parent = tmp_path / ("sys/cpuset/pod" if "cpuset" in lines else "sys/pod")
    parent.mkdir(parents=True)
    (parent / "cpuset.mems").write_text("0")
    (parent / "cgroup.procs").write_text("41\n")
    made = group(tmp_path, lines)
    made.housekeep([41], {1})
    assert [path.name for path in parent.iterdir() if path.is_dir()] == ["housekeeping"]
    assert not (parent / "housekeeping/housekeeping").exists()
    if "cpuset" not in lines:
        assert made.processes() == [41]
