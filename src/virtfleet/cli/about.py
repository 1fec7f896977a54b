"""`virtfleet version` and `virtfleet completion`: the command itself."""

from __future__ import annotations

import asyncio
from typing import Any

import click
from click.shell_completion import get_completion_class

import virtfleet
from virtfleet.cli.output import CommandError, explained, output_option, result
from virtfleet.cli.reach import Where, cluster_options, oldest_kubevirt, with_cluster

_PATIENCE = 5.0  # seconds; whoever asks for a version does not wait for a cluster that is away


@click.command()
@click.option("--client", is_flag=True, help="Only this command's; no cluster is asked.")
@cluster_options
@output_option
def version(client: bool, where: Where, output: str) -> None:
    """Versions of this command and of the VirtFleet that runs in the cluster."""
    versions: dict[str, Any] = {"client": virtfleet.__version__}
    lines = [f"client: {virtfleet.__version__}"]
    if not client:
        try:
            versions["cluster"] = _of_cluster(where)
            lines.append(f"cluster: {versions['cluster'] or 'VirtFleet is not installed there'}")
        except Exception as error:
            versions["error"] = explained(error).format_message()
            lines.append(f"cluster: {versions['error']}")
    result(output, versions, "\n".join(lines))


def _of_cluster(where: Where) -> str:
    async def installed(api: Any) -> str:
        try:
            async with asyncio.timeout(_PATIENCE):
                kubevirt = await oldest_kubevirt(api)
        except TimeoutError:
            raise CommandError(f"{where.config().server} does not answer within {_PATIENCE:.0f} s") from None
        return str(((kubevirt or {}).get("status") or {}).get("observedKubeVirtVersion") or "")

    return with_cluster(installed, where)


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(ctx: click.Context, shell: str) -> None:
    """Print what makes a shell complete `virtfleet`: `source <(virtfleet completion bash)` in ~/.bashrc."""
    made = get_completion_class(shell)
    assert made is not None
    click.echo(made(ctx.find_root().command, {}, "virtfleet", "_VIRTFLEET_COMPLETE").source())
