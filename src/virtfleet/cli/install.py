"""`virtfleet install` and `virtfleet uninstall`: VirtFleet in any Kubernetes cluster, in one command."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import click

import virtfleet
from virtfleet.cli import installing
from virtfleet.cli.output import Progress, on_interrupt, output_option, result
from virtfleet.cli.reach import Where, cluster_options, with_cluster
from virtfleet.installation import Installation
from virtfleet.kube.client import Client
from virtfleet.operator.manifest import NAMESPACE

_REPEAT = "Repeat the command to see how far it is."


def _options(function: Callable[..., Any]) -> Callable[..., Any]:
    for option in (
        output_option,
        click.option("--timeout", type=float, default=600.0, show_default=True, help="Seconds to wait at each step."),
        cluster_options,
    ):
        function = option(function)
    return function


@click.command()
@click.option("--registry", help="Where the images are: what `make images REGISTRY=...` was told.")
@click.option("--tag", help=f"The images' tag, where it is not that of this version ({virtfleet.__version__}).")
@click.option("--kubevirt", "kubevirt_file", help="A file with the KubeVirt object to install; a plain one else.")
@_options
def install(
    registry: str | None, tag: str | None, kubevirt_file: str | None, timeout: float, output: str, where: Where
) -> None:
    """Install VirtFleet into a cluster, or bring what is there to this version, and wait until VMs can be made.

    A KubeVirt object that is there stays as it is but for what is named. (The cluster of `virtfleet up` has VirtFleet
    already.)
    """
    progress = Progress(quiet=output == "json")
    kubevirt = installing.read(kubevirt_file) if kubevirt_file else None
    spec = {key: value for key, value in (("imageRegistry", registry), ("imageTag", tag)) if value}

    async def work(api: Client) -> dict[str, Any]:
        await installing.install(api, kubevirt, progress, spec, installing.DEFAULT)
        await installing.wait(api, installing.why_not_ready, progress, timeout)
        return await installing.installed(api) or {}

    on_interrupt(f"the operator goes on with the installation. {_REPEAT}")
    made = with_cluster(work, where)
    installation, status = Installation(made), made.get("status") or {}
    data = {
        "server": where.config().server,
        "namespace": NAMESPACE,
        "version": status.get("observedKubeVirtVersion", ""),
        "registry": installation.registry,
        "tag": installation.tag,
        "health": status.get("health", ""),
        "seconds": round(time.monotonic() - progress.began, 1),
    }
    text = f"VirtFleet {data['version']} is installed in {data['server']} ({data['seconds']} s). Go on with:\n"
    result(output, data, f"{text}\n  kubectl -n {NAMESPACE} get kubevirt,pods\n  virtfleet pools")


@click.command()
@click.option("--force", is_flag=True, help="Take VMs away, too, whatever uninstallStrategy says.")
@_options
def uninstall(force: bool, timeout: float, output: str, where: Where) -> None:
    """Take VirtFleet out of a cluster, with all its kinds. Volumes stay.

    Refused while there are VMs, unless the KubeVirt object's uninstallStrategy is RemoveWorkloads.
    """
    progress = Progress(quiet=output == "json")

    async def work(api: Client) -> list[str]:
        if await installing.uninstall(api, progress, force=force):
            await installing.wait(api, installing.why_still_there, progress, timeout)
        removed = [name async for name in installing.remove_manifest(api)]
        await installing.wait(api, installing.why_manifest_is_there, progress, timeout)
        return removed

    on_interrupt(f"what was begun to be deleted goes on to end. {_REPEAT}")
    removed = with_cluster(work, where)
    text = "VirtFleet is gone" if removed else "VirtFleet was not installed"
    result(output, {"server": where.config().server, "removed": removed}, f"{text}.")
