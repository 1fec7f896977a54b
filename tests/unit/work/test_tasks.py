"""Tasks with an owner: what ends by an error is logged and counted, and begun again where it must go on."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from source import Call, modules
from virtfleet.work import tasks
from waiting import eventually


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    seen: list[str] = []
    monkeypatch.setattr(tasks, "witnesses", [seen.append])
    return seen


async def fail() -> None:
    raise KeyError("surprise")


async def test_an_unexpected_end_is_logged_with_its_trace_and_counted(
    counted: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    task = tasks.start(fail(), "guest: default/vm")
    await asyncio.wait([task])
    await asyncio.sleep(0)
    assert counted == ["guest"]
    assert "guest: default/vm: KeyError: 'surprise'" in caplog.text and "in fail" in caplog.text


async def test_cancelling_and_expected_errors_are_ends_like_any_other(
    counted: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    expected = tasks.start(fail(), "one", expected=(LookupError,))
    cancelled = tasks.start(asyncio.sleep(60), "other")
    cancelled.cancel()
    await asyncio.wait([expected, cancelled])
    await asyncio.sleep(0)
    assert not counted and not caplog.records


async def test_what_is_kept_is_begun_again_until_it_is_done(
    counted: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tasks, "FIRST_PAUSE", 0.001)
    begun: list[int] = []

    async def work() -> None:
        begun.append(1)
        if len(begun) < 4:
            raise OSError("not yet")

    await tasks.keep(work, "daemon: x")
    assert len(begun) == 4 and counted == ["daemon"] * 3


async def test_what_is_kept_ends_with_its_owner(counted: list[str]) -> None:
    begun = asyncio.Event()

    async def work() -> None:
        begun.set()
        await asyncio.sleep(60)

    task = tasks.keep(work, "x")
    await begun.wait()
    task.cancel()
    await asyncio.to_thread(eventually, task.done)
    assert task.cancelled() and not counted


async def test_the_first_to_be_done_ends_the_others() -> None:
    ended: list[str] = []

    async def endless() -> str:
        try:
            await asyncio.sleep(60)
        finally:
            ended.append("endless")
        return "never"

    async def quick() -> str:
        return "quick"

    assert await tasks.first_of(endless(), quick()) == [None, "quick"]
    assert ended == ["endless"]


async def test_a_broken_connection_is_forgiven_and_a_mistake_is_not() -> None:
    async def broken() -> None:
        raise ConnectionResetError

    assert await tasks.first_of(broken(), asyncio.sleep(60)) == [None, None]
    with pytest.raises(KeyError):
        await tasks.first_of(fail(), asyncio.sleep(60))
    with pytest.raises(ConnectionResetError):
        await tasks.first_of(broken(), asyncio.sleep(60), forgiven=())


# In the source.


def calls() -> Iterator[tuple[str, Call]]:
    """Every call with the file that it is in."""
    return ((file, call) for file, module in modules().items() for call in module.calls)


def test_nothing_waits_in_a_way_that_loses_a_cancellation() -> None:
    """Python 3.11's `wait_for` does, where what it waits for comes at the same moment; `asyncio.timeout` does not."""
    assert not [f"{file}:{call.line}" for file, call in calls() if call.name.rpartition(".")[2] == "wait_for"]


def test_no_task_is_made_that_nobody_owns() -> None:
    made = [
        f"{file}:{call.line}"
        for file, call in calls()
        if call.name.rpartition(".")[2] in ("create_task", "ensure_future")
        and not call.name.startswith("group.")  # a TaskGroup owns its tasks
        and file != "work/tasks.py"
    ]
    assert not made, "use virtfleet.work.tasks, or a TaskGroup named `group`"


LIVES_ON = {
    "work/commands.py": "has the limit",
    "launcher/libvirtd/daemons.py": "a daemon that is kept running",
    "launcher/storage/mapped.py": "holds a namespace while it is used, and ends with its standard input",
    "launcher/alone/sandbox.py": "the launcher itself",
    "local/node/runtime.py": "conmon and commands of users, each with its own limit",
    "local/supervisor.py": "processes that are kept running",
    "cli/home/up.py": "the supervisor",
    "kube/credentials.py": "a plugin that may talk to the user, else has a limit of its own",
}


def test_no_command_runs_without_a_limit() -> None:
    starters = ("create_subprocess_exec", "create_subprocess_shell", "Popen", "check_output", "check_call", "system")
    unlimited = [
        f"{file}:{call.line}"
        for file, call in calls()
        if (call.name.rpartition(".")[2] in starters and file not in LIVES_ON)
        or (call.name == "subprocess.run" and "timeout" not in call.keywords)
    ]
    assert not unlimited, "use virtfleet.work.commands, or give it a timeout"
