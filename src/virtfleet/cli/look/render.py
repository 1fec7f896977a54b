"""`virtfleet render`: what VirtFleet would make of an object, without a cluster.

The same pure functions that the components call, so what is printed is what would be created.
"""

from __future__ import annotations

import click

from virtfleet.cli.look.instances import completed_instances, identified
from virtfleet.cli.look.render_domain import domain
from virtfleet.cli.manifests import cluster_of, files_option, kubevirt_option, objects
from virtfleet.cli.output import Group, yaml_documents


@click.group(cls=Group)
def render() -> None:
    """What VirtFleet would make of an object, without a cluster."""


render.add_command(domain)


@render.command()
@kubevirt_option
def operator(kubevirt_file: str | None) -> None:
    """Print what the operator would install for a KubeVirt object. Certificates are made on the cluster only."""
    from virtfleet.operator.render import render as installed

    click.echo(yaml_documents(installed(cluster_of(kubevirt_file))), nl=False)


@render.command()
@files_option
@kubevirt_option
@click.option("--block-volume", "block_volumes", multiple=True, help="A volume whose claim is a block device.")
def pod(files: tuple[str, ...], kubevirt_file: str | None, block_volumes: tuple[str, ...]) -> None:
    """Print the launcher Pods of VMIs. For a VM or a replica set, of the VMI that it makes."""
    from virtfleet.pods.launcher import render as launcher

    made = list(objects(files))
    cluster = cluster_of(kubevirt_file, beside=made)
    vmis = map(identified, completed_instances(made, cluster))
    click.echo(yaml_documents(launcher(vmi, cluster, block_volumes=block_volumes) for vmi in vmis), nl=False)


@render.command()
@files_option
@kubevirt_option
def vmi(files: tuple[str, ...], kubevirt_file: str | None) -> None:
    """Print VMIs with their defaults. For a VM or a replica set, the VMI that it makes."""
    made = list(objects(files))
    click.echo(yaml_documents(completed_instances(made, cluster_of(kubevirt_file, beside=made))), nl=False)
