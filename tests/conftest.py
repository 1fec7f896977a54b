"""Settings of all tests: how hard property tests try, which tests are left out, and a place to work.

A test is left out by a mark, never by itself: `local_home` where KUBECONFIG names a cluster that is not ours to break,
`on_demand` unless somebody asks for it, `lacks` where the machine has not what it is about. What is left out is printed
at the end, and so is what skipped itself.
"""

from __future__ import annotations

import fcntl
import gc
import os
import shutil
import signal
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from _pytest.nodeid import NodeId
from hypothesis import settings

settings.register_profile("full", deadline=None)
settings.register_profile("fast", deadline=None, max_examples=15)
settings.load_profile("full")

# A shell has what it starts in the background ignore interrupts, and so would every command that a test interrupts.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture
def place() -> Iterator[Path]:
    """A directory whose name is short: sockets lie below it."""
    directory = Path(tempfile.mkdtemp(prefix="vfh"))
    yield directory
    shutil.rmtree(directory)


@pytest.fixture
def user_faults() -> Iterator[None]:
    """User faults for ordinary users, which post-copy needs; the machine has afterwards what it had before.

    One test at a time: what the first one puts back would be missing to the second.
    """
    setting = Path("/proc/sys/vm/unprivileged_userfaultfd")
    with open(Path(tempfile.gettempdir(), "virtfleet-user-faults.lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        before = setting.read_text()
        setting.write_text("1")
        yield
        setting.write_text(before)


LEFT_OUT = pytest.StashKey[Counter[str]]()


def pytest_configure(config: pytest.Config) -> None:
    config.stash[LEFT_OUT] = Counter()


@pytest.hookimpl(trylast=True)  # after the directories' own conftest files have marked their tests
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    left_out = {item: why for item in items if (why := _left_out(item))}
    config.stash[LEFT_OUT].update(left_out.values())
    config.hook.pytest_deselected(items=list(left_out))
    items[:] = [item for item in items if item not in left_out]
    _group(items)


def pytest_collection_finish() -> None:
    """What was collected stays until the end: the collector of rubbish need not look through it again and again."""
    gc.collect()
    gc.freeze()


def _group(items: list[pytest.Item]) -> None:
    """Have xdist deal out groups, so that one process has all tests of a cluster.

    xdist 3.8 writes a group's name to where pytest looked for the name of a test before 9.1, and nobody does since.
    """
    for item in items:
        if named := vars(item).get("_nodeid"):
            item._id = NodeId.parse(named)


def _left_out(item: pytest.Item) -> str:
    """Why a test does not run here."""
    if os.environ.get("KUBECONFIG") and (mark := item.get_closest_marker("local_home")):
        return f"local home only: {mark.args[0]}"
    if os.environ.get("KUBECONFIG") and not os.environ.get("ALL") and (mark := item.get_closest_marker("thorough")):
        return f"on a real Kubernetes with ALL=1: {mark.args[0]}"
    if mark := item.get_closest_marker("lacks"):
        return f"this machine lacks it: {mark.args[0]}"
    if mark := item.get_closest_marker("on_demand"):
        variable, why = mark.args
        return "" if os.environ.get(variable) else f"on demand ({variable}=1): {why}"
    return ""


def pytest_sessionfinish(session: pytest.Session) -> None:
    """A worker of several tells what it left out, which is the same with all of them."""
    output = getattr(session.config, "workeroutput", None)
    if output is not None:
        output["left_out"] = dict(session.config.stash[LEFT_OUT])


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    node.config.stash[LEFT_OUT] = Counter(getattr(node, "workeroutput", {}).get("left_out"))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    left_out = config.stash[LEFT_OUT] + Counter(
        f"skipped itself: {report.longrepr[2].removeprefix('Skipped: ')}"
        for report in terminalreporter.getreports("skipped")
        if isinstance(report.longrepr, tuple)
    )
    if not left_out:
        return
    terminalreporter.section(f"{left_out.total()} tests left out", sep="-")
    for why, count in left_out.most_common():
        terminalreporter.line(f"{count:5} {why}")
