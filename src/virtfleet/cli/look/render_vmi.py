"""`virtfleet render vmi`: the VMI that admission makes of a manifest."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import click

from virtfleet.api.kinds import BY_NAME, VMI
from virtfleet.cli.manifests import cluster_of, objects
from virtfleet.cli.output import CommandError, yaml_documents

if TYPE_CHECKING:
    from virtfleet.installation import Installation


@click.command()
@click.option("-f", "--filename", "files", multiple=True, required=True, help="VMIs, or what makes them; repeatable.")
@click.option("--kubevirt", "kubevirt_file", help="File with the KubeVirt object in force; defaults where left out.")
def vmi(files: tuple[str, ...], kubevirt_file: str | None) -> None:
    """Print VMIs with their defaults. For a VM or a replica set, the VMI that it makes."""
    made = list(objects(files))
    documents = completed_instances(made, cluster_of(kubevirt_file, beside=made))
    click.echo(yaml_documents(documents), nl=False)


def completed_instances(made: Iterable[dict[str, Any]], cluster: Installation) -> list[dict[str, Any]]:
    """The VMIs among the objects, and those that their VMs and replica sets make, with their defaults."""
    from virtfleet.admission.review import complete

    found_instances = []
    for obj in made:
        kind = BY_NAME.get(obj["kind"])
        if kind is None or not kind.instance:
            continue
        completed, found = complete(obj, cluster)
        if found.allowed and kind is not VMI:
            completed, found = complete(instance(completed), cluster)
        if not found.allowed:
            raise CommandError("\n".join(f"{cause.field}: {cause.message}" for cause in found.causes))
        found_instances.append(completed)
    if not found_instances:
        raise CommandError("no VMI, VM or replica set to work on", "Name a file with one after -f.")
    return found_instances


def instance(maker: dict[str, Any]) -> dict[str, Any]:
    """The VMI that a VM or a replica set makes."""
    template = maker.get("spec", {}).get("template") or {}
    own = maker.get("metadata", {})
    metadata = {
        **template.get("metadata", {}),
        "name": own.get("name", ""),
        "namespace": own.get("namespace", "default"),
    }
    return {
        "apiVersion": VMI.api_version,
        "kind": VMI.kind,
        "metadata": metadata,
        "spec": template.get("spec", {}),
    }
