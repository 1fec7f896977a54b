"""`virtfleet dashboard`: the fleet in a browser, on this machine, with the rights of the kubeconfig."""

from __future__ import annotations

import asyncio
import ipaddress
import secrets
import socket
import sys
import webbrowser

import click

from virtfleet.cli.output import CommandError, output_option, result
from virtfleet.cli.reach import Where, cluster_options


@click.command()
@cluster_options
@click.option("--address", default="127.0.0.1", show_default=True, help="The local address for browsers.")
@click.option("--port", type=click.IntRange(0, 65535), default=0, help="The local port for browsers; any free one.")
@click.option("--open", "opened", is_flag=True, help="Have the desktop's browser open it.")
@output_option
def dashboard(where: Where, address: str, port: int, opened: bool, output: str) -> None:
    """The fleet in a browser, until ^C: VMs with their consoles and screens, nodes, pools, and why a VM is where it is.

    The link that is printed lets one browser in, which acts as the kubeconfig says; then one for the next is printed.
    """
    try:
        local = ipaddress.ip_address("127.0.0.1" if address == "localhost" else address)
    except ValueError:
        raise CommandError(f"--address {address!r} is no address", "Use 127.0.0.1 or ::1.") from None
    if not local.is_loopback:
        raise CommandError(
            "the dashboard of this command is for browsers on this machine",
            "Use an ssh tunnel, or set spec.configuration.dashboard of the KubeVirt object (docs/dashboard.md).",
        )
    asyncio.run(_serve(where, str(local), port, opened, output))


async def _serve(where: Where, address: str, port: int, opened: bool, output: str) -> None:
    from aiohttp import web

    from virtfleet.cli.vm.access import until_interrupted
    from virtfleet.dashboard.guard import Guard
    from virtfleet.dashboard.server import Dashboard
    from virtfleet.dashboard.visitors import Visitors

    cluster = where.config()
    listening = socket.create_server((address, port), family=socket.AF_INET6 if ":" in address else socket.AF_INET)
    chosen = listening.getsockname()[1]
    host = f"[{address}]:{chosen}" if ":" in address else f"{address}:{chosen}"

    def told(key: str) -> None:
        print(f"A browser has logged in. For another one: http://{host}/#key={key}", file=sys.stderr, flush=True)

    visitors = Visitors(lambda _: cluster, key=secrets.token_urlsafe(32), used=told)
    names = frozenset({host, f"localhost:{chosen}"})
    app = web.Application()
    app.add_routes(Dashboard(Guard(visitors, names, f"virtfleet-{chosen}", https=False)).routes())
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0)
    await runner.setup()
    try:
        await web.SockSite(runner, listening).start()
        link = f"http://{host}/#key={visitors.key}"
        async with until_interrupted() as interrupted:
            result(
                output,
                {"url": link, "port": chosen},
                f"The dashboard of {cluster.server} is at\n\n  {link}\n\n^C ends it.",
            )
            if opened:
                webbrowser.open(link)
            await interrupted.wait()
    finally:
        await visitors.close()
        await runner.cleanup()
