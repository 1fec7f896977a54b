"""`virtfleet vnc`: a VM's screen for any viewer on this machine, or a picture of it."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from virtfleet.cli.output import CommandError, output_option, result
from virtfleet.cli.vm.access import Cluster, Reached, cluster_options, until_interrupted
from virtfleet.cli.vm.tunnel import listening


@click.command()
@click.argument("name")
@click.option("--screenshot", type=click.Path(path_type=Path, allow_dash=True), help="Only write a PNG there and end.")
@click.option("--address", default="127.0.0.1", show_default=True, help="The local address for viewers.")
@click.option("--port", type=click.IntRange(0, 65535), default=0, help="The local port for viewers; any free one.")
@click.option("--preserve-session", is_flag=True, help="Do not take over from somebody who is looking already.")
@cluster_options
@output_option
def vnc(
    name: str,
    screenshot: Path | None,
    address: str,
    port: int,
    preserve_session: bool,
    output: str,
    kubeconfig: Path | None,
    namespace: str | None,
) -> None:
    """The screen of the VM NAME: a local port for any VNC viewer, until ^C."""
    cluster = Cluster(kubeconfig, namespace)
    if screenshot:
        png = cluster.do(name, lambda vm: vm.screenshot())
        _save(png, screenshot, output)
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
            sys.stdout.flush()
            await interrupted.wait()

    cluster.do(name, work)


def _save(png: bytes, file: Path, output: str) -> None:
    if str(file) == "-":
        sys.stdout.buffer.write(png)
        return
    try:
        file.write_bytes(png)
    except OSError as error:
        raise CommandError(f"{file} cannot be written: {error.strerror}") from None
    result(output, {"file": str(file), "bytes": len(png)}, f"{file}: {len(png)} bytes")
