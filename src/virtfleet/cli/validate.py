"""`virtfleet validate`: what admission would say, without a cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from virtfleet.cli.manifests import cluster_of, objects
from virtfleet.cli.output import output_option, result

if TYPE_CHECKING:
    from virtfleet.admission.cluster import Cluster
    from virtfleet.admission.findings import Findings


@click.command()
@click.option("-f", "--filename", "files", multiple=True, required=True, help="Manifest to check; may be repeated.")
@click.option("--kubevirt", "kubevirt_file", help="File with the KubeVirt object in force; defaults where left out.")
@output_option
@click.pass_context
def validate(ctx: click.Context, files: tuple[str, ...], kubevirt_file: str | None, output: str) -> None:
    """Check manifests as the cluster would, and say what to change. Exits with 1 where one is refused.

    Objects of other API groups than kubevirt.io are passed over.
    """
    checked = [obj for obj in objects(files) if str(obj.get("apiVersion", "kubevirt.io/")).startswith("kubevirt.io/")]
    cluster = cluster_of(kubevirt_file, beside=checked)
    verdicts = [(obj, _verdict(obj, cluster)) for obj in checked]
    causes = [cause for _, found in verdicts for cause in found.causes]
    data = {
        "allowed": not causes,
        "causes": [{"field": c.field, "reason": c.reason, "message": c.message} for c in causes],
        "warnings": [warning for _, found in verdicts for warning in found.warnings],
    }
    lines = [line for obj, found in verdicts for line in _lines(obj, found)]
    result(output, data, "\n".join(lines) or "nothing to check")
    ctx.exit(1 if causes else 0)


def _verdict(obj: dict[str, Any], cluster: Cluster) -> Findings:
    from virtfleet.admission.review import complete, review
    from virtfleet.admission.spelling import unknown_fields

    completed, shape = complete(obj, cluster)
    found = review(completed, cluster)
    if shape.allowed:
        for warning in unknown_fields(completed):
            found.warn(warning)
    return found


def _lines(obj: dict[str, Any], found: Findings) -> list[str]:
    metadata = obj.get("metadata")
    name = metadata.get("name") if isinstance(metadata, dict) else None
    head = f"{obj['kind'].lower()}/{name or '(no name)'} {'is allowed' if found.allowed else 'is refused'}"
    causes = [f"  {cause.field or '(object)'}: {cause.message}" for cause in found.causes]
    return [head, *causes, *(f"  warning: {warning}" for warning in found.warnings)]
