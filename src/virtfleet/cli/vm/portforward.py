"""`virtfleet port-forward`, `ssh` and `vnc`: ports and the screen of the guest from this machine."""

from __future__ import annotations

import functools
import os
import re
import shlex
import shutil
import sys
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import dataclass, replace
from pathlib import Path

import click

from virtfleet.cli.output import CommandError, output_option, result
from virtfleet.cli.vm.access import Reached, Target, target_options, until_interrupted
from virtfleet.cli.vm.tunnel import carry, listening, receiving, standard_streams

_PORTS = re.compile(r"(?:(?P<protocol>tcp|udp)/)?(?P<local>\d{1,5})(?::(?P<remote>\d{1,5}))?")


@dataclass(frozen=True, slots=True)
class Forwarded:
    """A local port, and the guest's port behind it. Local port 0 is any free one."""

    protocol: str
    local: int
    remote: int


def forwarded(text: str) -> Forwarded:
    """From `[tcp/|udp/]LOCAL[:REMOTE]`."""
    if ports := _PORTS.fullmatch(text):
        local = int(ports["local"])
        remote = int(ports["remote"] or local)
        if local < 1 << 16 and 0 < remote < 1 << 16:
            return Forwarded(ports["protocol"] or "tcp", local, remote)
    raise CommandError(f"{text!r} names no ports", "Write [tcp/|udp/]LOCAL[:REMOTE], for instance 8080:80.")


@click.command("port-forward")
@target_options
@click.argument("ports", nargs=-1, required=True, metavar="[PROTOCOL/]LOCAL[:REMOTE]...")
@click.option("--address", default="127.0.0.1", show_default=True, help="The local address to listen on.")
@output_option
def port_forward(target: Target, ports: tuple[str, ...], address: str, output: str) -> None:
    """Ports of the VM NAME on this machine, until ^C."""
    wanted = [forwarded(text) for text in ports]

    async def work(vm: Reached) -> None:
        await vm.look()
        async with until_interrupted() as interrupted, AsyncExitStack() as opened:
            data = []
            for one in wanted:
                local = await opened.enter_async_context(_forward(vm, address, one))
                data.append({"protocol": one.protocol, "address": address, "port": local, "target": one.remote})
            lines = [f"{d['address']}:{d['port']} is {d['protocol']} port {d['target']} of {vm}" for d in data]
            result(output, data, "\n".join(lines))
            await interrupted.wait()

    target.do(work)


def _forward(vm: Reached, address: str, one: Forwarded) -> AbstractAsyncContextManager[int]:
    serve = receiving if one.protocol == "udp" else listening
    return serve(address, one.local, lambda: vm.stream(f"portforward/{one.remote}/{one.protocol}"))


@click.command(context_settings={"allow_interspersed_args": False})
@functools.partial(target_options, metavar="[USER@]NAME")
@click.argument("ssh_arguments", nargs=-1, type=click.UNPROCESSED, metavar="[SSH-OPTION...] [COMMAND...]")
@click.option("-p", "--port", type=click.IntRange(1, 65535), default=22, show_default=True, help="The guest's port.")
@click.option("--proxy", is_flag=True, help="Only carry the connection between standard input and output.")
def ssh(target: Target, ssh_arguments: tuple[str, ...], port: int, proxy: bool) -> None:
    """Log in to the VM NAME, or run a command there, with this machine's ssh. Options of ssh come after the name.

    With --proxy it is for ssh's own configuration: `ProxyCommand virtfleet ssh --proxy %h`.
    """
    whom, vm = target.name, replace(target, name=target.name.rpartition("@")[2])
    if proxy:
        vm.do(lambda reached: _carry_standard_streams(reached, port))
        return
    if not shutil.which("ssh"):
        raise CommandError("there is no ssh on this machine", "Install an ssh client (openssh-client).")
    # The same VM from wherever it is started, and its keys apart from those of machines with that name.
    place = vm.namespace or vm.where.config().namespace
    itself = [os.path.abspath(sys.argv[0]), "ssh", "--proxy", "--port", str(port), "--namespace", place]
    itself += vm.where.arguments()
    options = {"ProxyCommand": shlex.join([*itself, vm.name]), "HostKeyAlias": f"vm.{vm.name}.{place}"}
    flags = [flag for key, value in options.items() for flag in ("-o", f"{key}={value}")]
    os.execvp("ssh", ["ssh", *flags, whom, *ssh_arguments])


async def _carry_standard_streams(vm: Reached, port: int) -> None:
    async with vm.stream(f"portforward/{port}/tcp") as websocket:
        await carry(websocket, *await standard_streams())


@click.command()
@target_options
@click.option("--screenshot", type=click.Path(path_type=Path, allow_dash=True), help="Only write a PNG there and end.")
@click.option("--address", default="127.0.0.1", show_default=True, help="The local address for viewers.")
@click.option("--port", type=click.IntRange(0, 65535), default=0, help="The local port for viewers; any free one.")
@click.option("--preserve-session", is_flag=True, help="Do not take over from somebody who is looking already.")
@output_option
def vnc(target: Target, screenshot: Path | None, address: str, port: int, preserve_session: bool, output: str) -> None:
    """The screen of the VM NAME: a local port for any VNC viewer, until ^C."""
    if screenshot:
        png = target.do(lambda vm: vm.screenshot())
        if str(screenshot) == "-":
            sys.stdout.buffer.write(png)
            return
        screenshot.write_bytes(png)
        result(output, {"file": str(screenshot), "bytes": len(png)}, f"{screenshot}: {len(png)} bytes")
        return

    async def work(vm: Reached) -> None:
        await vm.look()
        params = {"preserveSession": "true" if preserve_session else "false"}
        async with (
            until_interrupted() as interrupted,
            listening(address, port, lambda: vm.stream("vnc", params)) as chosen,
        ):
            data = {"namespace": vm.namespace, "name": vm.name, "address": address, "port": chosen}
            result(output, data, f"The screen of {vm} is at {address}:{chosen}. Try: vncviewer {address}::{chosen}")
            await interrupted.wait()

    target.do(work)
