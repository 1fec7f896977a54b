"""Processes end cleanly when told to, at once when told twice, and say why when they fail."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable, Iterator

import orjson
import pytest

MAIN = """
import asyncio, sys
from virtfleet.kube import process

async def wait_and_clean_up():
    try:
        print("ready", flush=True)
        await asyncio.Event().wait()
    finally:
        print("cleaning up", flush=True)
        if sys.argv[1] == "stubborn":
            await asyncio.Event().wait()

async def fail():
    raise RuntimeError("no disk")

async def finish():
    return

process.log_as_json("test")
main = {"fail": fail, "finish": finish}.get(sys.argv[1], wait_and_clean_up)
sys.exit(process.run(main()))
"""

Start = Callable[[str], "subprocess.Popen[bytes]"]


@pytest.fixture
def start() -> Iterator[Start]:
    started = []

    def start(how: str) -> subprocess.Popen[bytes]:
        child = subprocess.Popen([sys.executable, "-c", MAIN, how], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        started.append(child)
        return child

    yield start
    for child in started:
        child.kill()
        child.communicate()


def line(child: subprocess.Popen[bytes]) -> bytes:
    assert child.stdout is not None
    return child.stdout.readline()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_lets_the_main_task_clean_up(start: Start, number: signal.Signals) -> None:
    child = start("wait")
    assert line(child) == b"ready\n"
    child.send_signal(number)
    out, err = child.communicate(timeout=30)
    assert (child.returncode, out) == (0, b"cleaning up\n")
    assert orjson.loads(err)["msg"] == f"{number.name}: stopping"


def test_a_second_signal_ends_it_at_once(start: Start) -> None:
    child = start("stubborn")
    assert line(child) == b"ready\n"
    child.send_signal(signal.SIGTERM)
    assert line(child) == b"cleaning up\n"
    child.send_signal(signal.SIGTERM)
    child.communicate(timeout=30)
    assert child.returncode == 128 + signal.SIGTERM


def test_a_failure_is_logged_with_its_trace_and_gives_1(start: Start) -> None:
    child = start("fail")
    _, err = child.communicate(timeout=30)
    logged = orjson.loads(err)
    assert child.returncode == 1
    assert (logged["msg"], logged["level"], logged["component"]) == ("no disk", "error", "test")
    assert "RuntimeError: no disk" in logged["trace"]


def test_a_main_task_that_returns_is_a_success(start: Start) -> None:
    child = start("finish")
    assert child.communicate(timeout=30) == (b"", b"")
    assert child.returncode == 0
