"""`virtfleet vnc`: a VM's screen for any viewer on this machine, or a picture of it."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from virtfleet.cli.output import output_option, result
from virtfleet.cli.vm.access import Reached, Target, target_options, until_interrupted
from virtfleet.cli.vm.tunnel import listening


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
        _save(target.do(lambda vm: vm.screenshot()), screenshot, output)
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


def _save(png: bytes, file: Path, output: str) -> None:
    if str(file) == "-":
        sys.stdout.buffer.write(png)
        return
    file.write_bytes(png)
    result(output, {"file": str(file), "bytes": len(png)}, f"{file}: {len(png)} bytes")
