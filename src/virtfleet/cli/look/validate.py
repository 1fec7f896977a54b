"""`virtfleet validate`: what the API server would say to manifests, with a cluster's configuration or without one."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

import click

from virtfleet.api.kinds import KUBEVIRT
from virtfleet.cli.manifests import Manifest, cluster_of, manifests
from virtfleet.cli.output import CommandError, explained, output_option, result
from virtfleet.cli.reach import Where, cluster_options, known_files, oldest_kubevirt, with_cluster

if TYPE_CHECKING:
    from virtfleet.cli.look.verdicts import Verdict
    from virtfleet.installation import Installation
    from virtfleet.kube.client import Client

_PATIENCE = 5.0
_HINT = "Name a file with --kubevirt to check without a cluster."


class NotChecked(CommandError):
    """No verdict could be had."""

    exit_code = 2  # as for wrong usage


@dataclass(frozen=True, slots=True)
class Basis:
    """What manifests are checked against, and in words where it was verdict."""

    cluster: Installation
    source: str
    served: frozenset[str] = field(default_factory=frozenset)
    """Groups with their versions that the cluster serves."""


@click.command()
@click.option("-f", "--filename", "files", multiple=True, required=True, help="Manifest to check; may be repeated.")
@click.option("--kubevirt", "kubevirt_file", help="File with the KubeVirt object in force, instead of a cluster's.")
@cluster_options
@output_option
@click.pass_context
def validate(ctx: click.Context, files: tuple[str, ...], kubevirt_file: str | None, where: Where, output: str) -> None:
    """Check manifests as the API server would, and say what to change. Nothing is written to a cluster.

    Gates, configuration and pools are those of the KubeVirt object in --kubevirt, else among the manifests, else in the
    cluster of --kubeconfig, of KUBECONFIG, of ~/.kube/config or of this machine (virtfleet up); without any of these,
    the defaults. Manifests are checked as new objects; kinds of others (Secrets, Services) are listed and not checked.

    Exits with 0 where nothing is refused, with 1 where something is, and with 2 where a check was not possible: a file
    that cannot be read, a cluster that does not answer.
    """
    from virtfleet.cli.look.verdicts import REFUSED

    try:
        checked = list(manifests(files))
        basis = _basis(kubevirt_file, where, checked)
        verdicts = asyncio.run(_judged(checked, basis))
    except CommandError as error:
        raise NotChecked(error.message) from None
    refused = any(verdict.verdict == REFUSED for verdict in verdicts)
    described = [_described(verdict) for verdict in verdicts]
    data = {
        "allowed": not refused,
        "configuration": basis.source,
        "objects": described,
        # Of all objects together, for those who check one at a time.
        "causes": [cause for obj in described for cause in obj["causes"]],
        "warnings": [warning for obj in described for warning in obj["warnings"]],
    }
    lines = [line for verdict in verdicts for line in _lines(verdict)]
    if output == "text":
        click.echo(f"Checked with {basis.source}.", err=True)
    result(output, data, "\n".join(lines) or "there is no object in it")
    ctx.exit(1 if refused else 0)


async def _judged(checked: Iterable[Manifest], basis: Basis) -> list[Verdict]:
    from virtfleet.cli.look.verdicts import judging

    async with judging(basis.cluster, basis.served) as judge:
        return [await judge.verdict(manifest) for manifest in checked]


# --- against what


def _basis(kubevirt_file: str | None, where: Where, checked: list[Manifest]) -> Basis:
    if kubevirt_file:
        return Basis(cluster_of(kubevirt_file), f"the KubeVirt object of {kubevirt_file}")
    beside = [manifest.obj for manifest in checked]
    if any(obj.get("kind") == KUBEVIRT.kind for obj in beside):
        return Basis(cluster_of(None, beside), "the KubeVirt object among the manifests")
    if where != Where() or os.environ.get("KUBECONFIG"):
        return _of_cluster(where)
    for path in known_files():
        try:
            return _of_cluster(Where(path))
        except CommandError as error:
            click.echo(f"{path}: {error.message.splitlines()[0]}", err=True)
    return Basis(cluster_of(None), "VirtFleet's defaults, as for a KubeVirt object without settings")


def _of_cluster(where: Where) -> Basis:
    try:
        return with_cluster(lambda api: _ask(api, where.config().server), where)
    except Exception as error:
        late = isinstance(error, TimeoutError) and f"the cluster does not answer within {_PATIENCE:.0f} s"
        raise CommandError(late or explained(error).message.partition("\n")[0], _HINT) from None


async def _ask(api: Client, server: str) -> Basis:
    import orjson

    from virtfleet.installation import Installation
    from virtfleet.kube.resource import KUBEVIRTS

    async with asyncio.timeout(_PATIENCE):
        groups = orjson.loads(await api.request("GET", "/apis"))["groups"]
        served = frozenset(version["groupVersion"] for group in groups for version in group["versions"])
        kubevirt = await oldest_kubevirt(api) if KUBEVIRTS.api_version in served else None
    if kubevirt is None:
        raise CommandError(f"the cluster at {server} has no KubeVirt object")
    return Basis(Installation(kubevirt), f"the configuration of the cluster at {server}", served)


# --- what is said


def _described(verdict: Verdict) -> dict[str, Any]:
    manifest = verdict.manifest
    return {
        "file": manifest.file,
        "index": manifest.index,
        "apiVersion": manifest.obj.get("apiVersion"),
        "kind": manifest.obj.get("kind"),
        "namespace": manifest.namespace,
        "name": manifest.name,
        "verdict": verdict.verdict,
        "causes": [asdict(cause) for cause in verdict.causes],
        "warnings": verdict.warnings,
        "note": verdict.note,
    }


def _lines(verdict: Verdict) -> list[str]:
    manifest = verdict.manifest
    says = f"is not checked: {verdict.note}" if verdict.note else f"is {verdict.verdict}"
    head = f"{manifest.kind.lower()}/{manifest.name or '(no name)'} {says}"
    causes = [f"  {cause.field or '(object)'}: {cause.message}" for cause in verdict.causes]
    return [head, *causes, *(f"  warning: {warning}" for warning in verdict.warnings)]
