"""Commands have a limit: what is not done in time is killed with all that it has started."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from virtfleet.work.commands import CommandError, run
from waiting import eventually


async def test_what_it_printed_comes_back() -> None:
    assert await run("cat", feed="hello") == "hello"
    assert await run("cat", feed=b"\xff") == "\ufffd"
    assert await run("sh", "-c", "exit 3", accept=(0, 3)) == ""


async def test_an_error_says_what_the_command_said() -> None:
    with pytest.raises(CommandError, match=r"^sh: no disk$") as caught:
        await run("sh", "-c", "echo no disk >&2; exit 4")
    assert caught.value.code == 4
    with pytest.raises(CommandError, match="nothing-like-it: there is no such command"):
        await run("nothing-like-it")


async def test_one_that_hangs_is_killed_with_its_children(tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    with pytest.raises(CommandError, match="sh: not done within 0 s, and killed"):
        await run("sh", "-c", f"sleep 300 & echo $! > {pid}; wait", limit=0.3)
    await asyncio.to_thread(eventually, lambda: not alive(int(pid.read_text())))


async def test_cancelling_kills_it_too(tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    work = asyncio.ensure_future(run("sh", "-c", f"echo $$ > {pid}.new; mv {pid}.new {pid}; exec sleep 300"))
    await asyncio.to_thread(eventually, pid.exists)
    work.cancel()
    await asyncio.wait([work])
    await asyncio.to_thread(eventually, lambda: not alive(int(pid.read_text())))


def alive(process: int) -> bool:
    try:
        state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z" and os.path.exists(f"/proc/{process}")
