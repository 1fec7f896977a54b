"""`virtfleet render pod`: the launcher Pod that the controller would make of a VMI."""

from __future__ import annotations

import uuid
from typing import Any

import click

from virtfleet.cli.look.render_vmi import completed_instances
from virtfleet.cli.manifests import cluster_of, objects
from virtfleet.cli.output import CommandError, yaml_documents


@click.command()
@click.option("-f", "--filename", "files", multiple=True, required=True, help="VMIs, or what makes them; repeatable.")
@click.option("--kubevirt", "kubevirt_file", help="File with the KubeVirt object in force; defaults where left out.")
@click.option("--block-volume", "block_volumes", multiple=True, help="A volume whose claim is a block device.")
def pod(files: tuple[str, ...], kubevirt_file: str | None, block_volumes: tuple[str, ...]) -> None:
    """Print the launcher Pods of VMIs. For a VM or a replica set, of the VMI that it makes."""
    from virtfleet.pods.launcher import Unrenderable, render

    made = list(objects(files))
    cluster = cluster_of(kubevirt_file, beside=made)
    try:
        documents = [
            render(identified(vmi), cluster, block_volumes=block_volumes) for vmi in completed_instances(made, cluster)
        ]
    except Unrenderable as error:
        raise CommandError(str(error)) from None
    click.echo(yaml_documents(documents), nl=False)


def identified(vmi: dict[str, Any]) -> dict[str, Any]:
    """The VMI with a UID, which only a cluster gives; made up from its name, so that it stays the same."""
    meta = {"namespace": "default", **vmi["metadata"]}
    uid = meta.get("uid") or str(uuid.uuid5(uuid.NAMESPACE_DNS, f"{meta.get('name')}.{meta['namespace']}"))
    return {**vmi, "metadata": {**meta, "uid": uid}}
