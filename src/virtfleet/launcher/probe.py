"""`virt-launcher probe --timeout SECONDS [-- COMMAND...]`: whether the guest is well, as the kubelet wants to know.

Run by the kubelet inside the compute container, every few seconds where a VMI has such a probe; so it imports little,
and leaves libvirt to the launcher that it asks. Without a command, it is enough that the guest's agent answers.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from pathlib import Path

from virtfleet.protocol.client import Client, LauncherGone, Refused
from virtfleet.protocol.messages import COMMAND_SOCKET, GuestExec, GuestPing
from virtfleet.protocol.wire import WireError


def options(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="virt-launcher probe", description="Asks whether the guest is well.")
    parser.add_argument("--timeout", type=int, default=1, help="seconds in which the guest must answer")
    parser.add_argument("--socket", default=COMMAND_SOCKET, help="the launcher's command socket")
    parser.add_argument("words", nargs="*", metavar="COMMAND", help="what to run in the guest, after --")
    return parser.parse_args(arguments)


async def ask(socket: str, words: list[str], seconds: int) -> int:
    """The exit code: the command's own, else 0 where the agent answers and 1 where it does not."""
    try:
        async with asyncio.timeout(seconds), await Client.connect(Path(socket)) as launcher:
            if not words:
                await launcher.call(GuestPing(timeout_seconds=seconds))
                return 0
            done = await launcher.call(GuestExec(command=words, timeout_seconds=seconds))
    except TimeoutError:
        why = f"the guest did not answer within {seconds} s"
    except OSError as error:
        why = f"the launcher cannot be reached: {error}"
    except (LauncherGone, Refused, WireError) as error:
        why = str(error)
    else:
        sys.stdout.write(done.stdout.decode(errors="replace"))
        sys.stderr.write(done.stderr.decode(errors="replace"))
        return done.exit_code
    sys.stderr.write(f"{why}\n")
    return 1


def main() -> None:
    wanted = options(sys.argv[2:])
    sys.exit(asyncio.run(ask(wanted.socket, wanted.words, wanted.timeout)))
