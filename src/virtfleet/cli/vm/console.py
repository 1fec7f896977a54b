"""`virtfleet console`: a VM's serial console on this terminal."""

from __future__ import annotations

import asyncio
import sys
import time

import aiohttp
import click
from aiohttp import WSCloseCode, WSMsgType

from virtfleet.api.names import Phase
from virtfleet.cli.output import CommandError
from virtfleet.cli.vm import terminal
from virtfleet.cli.vm.access import Reached, Target, target_options, until_interrupted
from virtfleet.cli.vm.tunnel import BROKEN
from virtfleet.kube.errors import ApiError, is_not_found
from virtfleet.kube.resource import VMS
from virtfleet.work.tasks import first_of

_LOOK_AGAIN = 0.5


@click.command()
@target_options
@click.option("--timeout", type=float, default=300.0, show_default=True, help="Seconds to wait for the VM to run.")
def console(target: Target, timeout: float) -> None:
    """The serial console of the VM NAME. ^] (or ^5) ends it; the VM goes on."""

    async def work(vm: Reached) -> None:
        async with until_interrupted() as interrupted:
            _, stopped = await first_of(_attach(vm, timeout), interrupted.wait(), forgiven=())
            if stopped:
                print(file=sys.stderr)

    target.do(work)


async def _attach(vm: Reached, timeout: float) -> None:
    await _until_running(vm, timeout)
    async with vm.stream("console") as websocket:
        print(f"Connected to the console of {vm}. ^] ends the connection.", file=sys.stderr)
        with terminal.raw():
            left = await _talk(websocket)
        print(file=sys.stderr)
        if not left:
            _say_why(websocket, vm)


async def _until_running(vm: Reached, timeout: float) -> None:
    """A VM that is being started is waited for; one that does not exist is not."""
    deadline = time.monotonic() + timeout
    said = False
    while True:
        phase = await _phase(vm)
        if phase in (Phase.RUNNING, Phase.SUCCEEDED, Phase.FAILED):
            return  # of the last two the server says what is the matter
        if time.monotonic() > deadline:
            raise CommandError(
                f"{vm} did not run within {timeout:.0f} s; its phase is {phase or 'not known: it has no VMI'}",
                f"Start it with: virtfleet start {vm.name} -n {vm.namespace}",
            )
        if not said:
            print(f"{vm} does not run yet; waiting. ^C gives up.", file=sys.stderr)
            said = True
        await asyncio.sleep(_LOOK_AGAIN)


async def _phase(vm: Reached) -> str:
    try:
        vmi = await vm.look()
    except ApiError as error:
        if not is_not_found(error):
            raise
        await vm.api.get(VMS, vm.name, vm.namespace)  # there is neither: the error says so
        return ""
    return str((vmi.get("status") or {}).get("phase", ""))


async def _talk(websocket: aiohttp.ClientWebSocketResponse) -> bool:
    """Carry bytes both ways; the answer is whether this side ended it."""
    _, shown = await first_of(_type(websocket), _show(websocket), forgiven=BROKEN)
    return not shown


async def _type(websocket: aiohttp.ClientWebSocketResponse) -> None:
    async for data in terminal.typed():
        if not data:
            return
        await websocket.send_bytes(data)


async def _show(websocket: aiohttp.ClientWebSocketResponse) -> bool:
    """Until the other side ends it."""
    async for message in websocket:
        if message.type is WSMsgType.BINARY:
            terminal.show(message.data)
    return True


def _say_why(websocket: aiohttp.ClientWebSocketResponse, vm: Reached) -> None:
    again = f"Connect again with: virtfleet console {vm.name} -n {vm.namespace}"
    match websocket.close_code:
        case WSCloseCode.OK:
            print(f"The console of {vm} has ended.", file=sys.stderr)
        case WSCloseCode.POLICY_VIOLATION:
            raise CommandError(f"somebody else has connected to the console of {vm}", again)
        case _:
            raise CommandError(f"the connection to the console of {vm} was lost", again)
