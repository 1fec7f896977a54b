"""`virtfleet validate`: what admission would say, without a cluster."""

from __future__ import annotations

from typing import Any

import click

from virtfleet.cli.manifests import cluster_of, objects
from virtfleet.cli.output import output_option, result


@click.command()
@click.option("-f", "--filename", "files", multiple=True, required=True, help="Manifest to check; may be repeated.")
@click.option("--kubevirt", "kubevirt_file", help="File with the KubeVirt object in force; defaults where left out.")
@output_option
@click.pass_context
def validate(ctx: click.Context, files: tuple[str, ...], kubevirt_file: str | None, output: str) -> None:
    """Check manifests as the cluster would, and say what to change. Exits with 1 where one is refused."""
    from virtfleet.admission.findings import Findings
    from virtfleet.admission.review import complete, review

    checked = list(objects(files))
    cluster = cluster_of(kubevirt_file, beside=checked)
    all_found, lines = Findings(), []
    for obj in checked:
        completed, found = complete(obj, cluster)
        if found.allowed:
            found = review(completed, cluster)
        all_found.causes += found.causes
        all_found.warnings += found.warnings
        lines += _lines(obj, found)
    data = {
        "allowed": all_found.allowed,
        "causes": [{"field": c.field, "reason": c.reason, "message": c.message} for c in all_found.causes],
        "warnings": all_found.warnings,
    }
    result(output, data, "\n".join(lines) or "nothing to check")
    ctx.exit(0 if all_found.allowed else 1)


def _lines(obj: dict[str, Any], found: Any) -> list[str]:
    metadata = obj.get("metadata")
    name = metadata.get("name") if isinstance(metadata, dict) else None
    head = f"{obj['kind'].lower()}/{name or '(no name)'} {'is allowed' if found.allowed else 'is refused'}"
    causes = [f"  {cause.field or '(object)'}: {cause.message}" for cause in found.causes]
    return [head, *causes, *(f"  warning: {warning}" for warning in found.warnings)]
