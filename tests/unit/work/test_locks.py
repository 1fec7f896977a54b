"""A lock is held by one at a time, and is free again however its holder ends."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from virtfleet.work.locks import locked

HOLDS = """
import pathlib, sys, time
from virtfleet.work.locks import locked
with locked(pathlib.Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(60)
"""


def test_who_does_not_wait_is_told_that_somebody_has_it(tmp_path: Path) -> None:
    lock = tmp_path / "lock"
    with locked(lock, wait=False), pytest.raises(BlockingIOError), locked(lock, wait=False):
        pass
    with locked(lock, wait=False):
        pass


def test_a_lock_goes_with_a_holder_that_is_killed(tmp_path: Path) -> None:
    lock = tmp_path / "lock"
    with subprocess.Popen([sys.executable, "-c", HOLDS, str(lock)], stdout=subprocess.PIPE) as holder:
        assert holder.stdout and holder.stdout.readline() == b"held\n"
        with pytest.raises(BlockingIOError), locked(lock, wait=False):
            pass
        holder.kill()
        with locked(lock):  # which waits for the end of the holder
            pass


def test_nothing_is_made_where_there_should_be_something(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError), locked(tmp_path / "device", create=False):
        pass
    assert not list(tmp_path.iterdir())
