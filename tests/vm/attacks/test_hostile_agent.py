"""A guest's agent that hangs, lies or floods: who asks gets an error in time, and nothing else waits for it."""

from __future__ import annotations

import asyncio
import base64
import time
from collections.abc import AsyncIterator

import pytest

from virtfleet.protocol.client import Refused
from virtfleet.protocol.messages import Freeze, GetGuestInfo, GuestExec, GuestPing, SoftReboot, Status, Unfreeze
from vm.guests import VM, eventually, machine, running, user_data

pytestmark = pytest.mark.slow

AGENT = """#!/bin/sh
# Says that it is there, as an agent has to, and answers other questions as it was last told to: mode-X is no command.
take() { until command exec 3<>/dev/virtio-ports/org.qemu.guest_agent.0; do sleep 1; done; }
again() { exec 3<&-; sleep 2; mode=plain; take; }
mode=plain
take
while :; do
    read -r line <&3 || { sleep 0.2; continue; }
    case "$line" in
    *guest-sync*) id=${line##*:}; echo "{\\"return\\": ${id%%\\}*}}" >&3 ;;
    *guest-exec-status*) echo '{"return": {"exited": true}}' >&3 ;;
    *mode-*) mode=${line##*mode-}; mode=${mode%%\\"*}; echo '{"return": {"pid": 1}}' >&3 ;;
    *) case "$mode" in
        garbage) printf '}{\\001 \\303\\050 nonsense\\n' >&3; again ;;
        wrong) echo '{"return": {"version": 5, "supported_commands": "all"}}' >&3 ;;
        huge) { printf '{"return": {"version": "'; head -c 3000000 /dev/zero | tr '\\0' a; echo '"}}'; } >&3; again ;;
        slow) sleep 3; echo '{"return": {"version": "1", "supported_commands": []}}' >&3 ;;
        esac ;;
    esac
done
"""
LONGEST = 20.0  # seconds: a sign of life, an answer, and a machine with other things to do


@pytest.fixture
async def vm() -> AsyncIterator[VM]:
    """A guest for each test: what libvirt lost of one agent must not decide about the next."""
    script = base64.b64encode(AGENT.encode()).decode()
    start = "kill -9 $(pidof qemu-ga); sleep 2; setsid /hostile </dev/null >/dev/null 2>&1 &"
    async with running(
        machine([user_data(f"echo {script} | base64 -d >/hostile", "chmod +x /hostile", start)])
    ) as made:
        await made.says(r"virtfleet-guest ready.*\n")
        yield made


async def answers(vm: VM, how: str) -> None:
    """Tell the agent how to answer from now on."""
    await eventually(lambda: _told(vm, how))


async def _told(vm: VM, how: str) -> bool:
    try:
        return (await vm.client.call(GuestExec(command=[f"mode-{how}"]))).exit_code == 0
    except Refused:  # it comes, or libvirt has just lost it
        return False


async def refused(vm: VM, request: object) -> str:
    """Why the launcher could not do it, which it says in time."""
    began = time.monotonic()
    with pytest.raises(Refused) as caught:
        await vm.client.call(request)  # type: ignore[arg-type]
    assert time.monotonic() - began < LONGEST
    return str(caught.value)


async def test_an_agent_that_never_answers_holds_up_nobody(vm: VM) -> None:
    await answers(vm, "mute")
    questions = [asyncio.create_task(refused(vm, request)) for request in (GetGuestInfo(), GuestPing())]
    told = 0
    while not any(question.done() for question in questions):  # several seconds
        assert (await vm.state()).status is Status.RUNNING
        told += 1
    assert told > 3, "the state waits for the guest"
    for why in await asyncio.gather(*questions):
        assert "not responding" in why or "not available" in why or "busy" in why, why


async def test_a_thaw_does_not_wait_behind_other_questions(vm: VM) -> None:
    await answers(vm, "mute")
    questions = [asyncio.create_task(refused(vm, GuestPing(timeout_seconds=2))) for _ in range(20)]
    await asyncio.sleep(0)
    await refused(vm, Unfreeze())
    done = sum(question.done() for question in questions)
    assert done <= 8, "it has waited for all of them"
    for question in questions:
        question.cancel()
    await asyncio.gather(*questions, return_exceptions=True)


async def test_a_freeze_that_is_not_answered_is_taken_back(vm: VM) -> None:
    await answers(vm, "mute")
    await refused(vm, Freeze(timeout_seconds=0))
    await eventually(lambda: "cannot be thawed yet" in vm.standalone.log.read_text(errors="replace"))
    await refused(vm, Unfreeze())  # and nobody tries it again


async def test_a_command_that_never_begins_is_given_up(vm: VM) -> None:
    await answers(vm, "mute")
    await refused(vm, GuestExec(command=["true"], timeout_seconds=1))


async def test_a_slow_agent_is_waited_for(vm: VM) -> None:
    await answers(vm, "slow")
    assert (await vm.client.call(GetGuestInfo())).agent_version == "1"


@pytest.mark.parametrize(
    ("how", "why"), [("wrong", "guest-info"), ("garbage", ""), ("huge", "")], ids=["wrong", "garbage", "huge"]
)
async def test_what_is_no_answer_is_an_error(vm: VM, how: str, why: str) -> None:
    await answers(vm, how)
    said = [await refused(vm, GetGuestInfo()) for _ in range(2)]
    assert any(why in each for each in said), said
    assert vm.resident("launcher") < 80 << 10
    assert (await vm.state()).status is Status.RUNNING
    traces = [line for line in vm.standalone.log.read_text(errors="replace").splitlines() if "Traceback" in line]
    assert not traces, traces[0]


async def test_a_guest_whose_agent_hangs_can_be_rebooted(vm: VM) -> None:
    await answers(vm, "mute")
    async with asyncio.timeout(LONGEST):  # libvirt itself would wait for a minute
        await vm.client.call(SoftReboot())
    await vm.says(r"virtfleet-guest ready.*\n")
