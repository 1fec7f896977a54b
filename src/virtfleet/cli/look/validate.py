"""`virtfleet validate`: what the API server would say to manifests, with a cluster's configuration or without one."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from virtfleet.api.kinds import KUBEVIRT
from virtfleet.cli.manifests import Manifest, cluster_of, manifests
from virtfleet.cli.output import CommandError, output_option, result

if TYPE_CHECKING:
    from virtfleet.cli.look.verdicts import Verdict
    from virtfleet.installation import Installation

_PATIENCE = 5.0
_HINT = "Name a file with --kubevirt to check without a cluster."


class NotChecked(CommandError):
    """No verdict could be had."""

    exit_code = 2  # as for wrong usage


@dataclass(frozen=True, slots=True)
class Basis:
    """What manifests are checked against, and in words where it was found."""

    cluster: Installation
    source: str
    served: frozenset[str] = field(default_factory=frozenset)
    """Groups with their versions that the cluster serves."""


@click.command()
@click.option("-f", "--filename", "files", multiple=True, required=True, help="Manifest to check; may be repeated.")
@click.option("--kubevirt", "kubevirt_file", help="File with the KubeVirt object in force, instead of a cluster's.")
@click.option("--kubeconfig", type=click.Path(path_type=Path, dir_okay=False), help="The cluster to check for.")
@output_option
@click.pass_context
def validate(
    ctx: click.Context, files: tuple[str, ...], kubevirt_file: str | None, kubeconfig: Path | None, output: str
) -> None:
    """Check manifests as the API server would, and say what to change. Nothing is written to a cluster.

    Gates, configuration and pools are those of the KubeVirt object in --kubevirt, else among the manifests, else in the
    cluster of --kubeconfig, of KUBECONFIG, of this machine (virtfleet up) or of ~/.kube/config; without any of these,
    the defaults. Manifests are checked as new objects; kinds of others (Secrets, Services) are listed and not checked.

    Exits with 0 where nothing is refused, with 1 where something is, and with 2 where a check was not possible: a file
    that cannot be read, a cluster that does not answer.
    """
    from virtfleet.cli.look.verdicts import REFUSED

    try:
        checked = list(manifests(files))
        basis = _basis(kubevirt_file, kubeconfig, checked)
        verdicts = asyncio.run(_judged(checked, basis))
    except CommandError as error:
        raise NotChecked(error.message) from None
    refused = any(found.verdict == REFUSED for found in verdicts)
    described = [_described(found) for found in verdicts]
    data = {
        "allowed": not refused,
        "configuration": basis.source,
        "objects": described,
        # Of all objects together, for those who check one at a time.
        "causes": [cause for obj in described for cause in obj["causes"]],
        "warnings": [warning for obj in described for warning in obj["warnings"]],
    }
    lines = [line for found in verdicts for line in _lines(found)]
    if output == "text":
        click.echo(f"Checked with {basis.source}.", err=True)
    result(output, data, "\n".join(lines) or "there is no object in it")
    ctx.exit(1 if refused else 0)


async def _judged(checked: Iterable[Manifest], basis: Basis) -> list[Verdict]:
    from virtfleet.cli.look.verdicts import judging

    async with judging(basis.cluster, basis.served) as judge:
        return [await judge.verdict(manifest) for manifest in checked]


# --- against what


def _basis(kubevirt_file: str | None, kubeconfig: Path | None, checked: list[Manifest]) -> Basis:
    from virtfleet.local.directory import default_directory

    if kubevirt_file:
        return Basis(cluster_of(kubevirt_file), f"the KubeVirt object of {kubevirt_file}")
    beside = [manifest.obj for manifest in checked]
    if any(obj.get("kind") == KUBEVIRT.kind for obj in beside):
        return Basis(cluster_of(None, beside), "the KubeVirt object among the manifests")
    if kubeconfig or os.environ.get("KUBECONFIG"):
        return _of_cluster(kubeconfig)
    found = [path for path in (default_directory() / "kubeconfig", Path.home() / ".kube/config") if path.exists()]
    for path in found:
        try:
            return _of_cluster(path)
        except CommandError as error:
            click.echo(f"{path}: {error.message.splitlines()[0]}", err=True)
    return Basis(cluster_of(None), "VirtFleet's defaults, as for a KubeVirt object without settings")


def _of_cluster(kubeconfig: Path | None) -> Basis:
    from virtfleet.installation import Installation
    from virtfleet.kube.credentials import ConfigError
    from virtfleet.kube.errors import ApiError

    try:
        server, kubevirt, served = asyncio.run(_ask(kubeconfig))
    except (ConfigError, TimeoutError) as error:
        raise CommandError(str(error) or f"the cluster does not answer within {_PATIENCE:.0f} s", _HINT) from None
    except ApiError as error:
        raise CommandError(f"the cluster does not answer: {error.message}", _HINT) from None
    if kubevirt is None:
        raise CommandError(f"the cluster at {server} has no KubeVirt object", _HINT)
    return Basis(Installation(kubevirt), f"the configuration of the cluster at {server}", served)


async def _ask(kubeconfig: Path | None) -> tuple[str, dict[str, Any] | None, frozenset[str]]:
    import orjson

    from virtfleet.kube import config
    from virtfleet.kube.client import Client
    from virtfleet.kube.resource import KUBEVIRTS

    where = config.load(kubeconfig)
    async with asyncio.timeout(_PATIENCE), Client(where) as api:
        groups = orjson.loads(await api.request("GET", "/apis"))["groups"]
        served = frozenset(version["groupVersion"] for group in groups for version in group["versions"])
        kubevirts = await api.list(KUBEVIRTS) if KUBEVIRTS.api_version in served else []
    return where.server, min(kubevirts, key=lambda kv: kv["metadata"]["creationTimestamp"], default=None), served


# --- what is said


def _described(found: Verdict) -> dict[str, Any]:
    manifest = found.manifest
    return {
        "file": manifest.file,
        "index": manifest.index,
        "apiVersion": manifest.obj.get("apiVersion"),
        "kind": manifest.obj.get("kind"),
        "namespace": manifest.namespace,
        "name": manifest.name,
        "verdict": found.verdict,
        "causes": [{"field": c.field, "reason": c.reason, "message": c.message} for c in found.causes],
        "warnings": found.warnings,
        "note": found.note,
    }


def _lines(found: Verdict) -> list[str]:
    manifest = found.manifest
    verdict = f"is not checked: {found.note}" if found.note else f"is {found.verdict}"
    head = f"{manifest.kind.lower()}/{manifest.name or '(no name)'} {verdict}"
    causes = [f"  {cause.field or '(object)'}: {cause.message}" for cause in found.causes]
    return [head, *causes, *(f"  warning: {warning}" for warning in found.warnings)]
