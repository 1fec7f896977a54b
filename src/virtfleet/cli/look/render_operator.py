"""`virtfleet render operator`: every object that the operator would install."""

from __future__ import annotations

import click

from virtfleet.cli.manifests import cluster_of
from virtfleet.cli.output import CommandError, yaml_documents


@click.command()
@click.option("--kubevirt", "kubevirt_file", help="File with the KubeVirt object; defaults where left out.")
def operator(kubevirt_file: str | None) -> None:
    """Print what the operator would install for a KubeVirt object. Certificates are made on the cluster only."""
    from virtfleet.operator.customize import PatchError
    from virtfleet.operator.render import render
    from virtfleet.pools.terms import TooManyTermsError

    try:
        objects = render(cluster_of(kubevirt_file))
    except (PatchError, TooManyTermsError) as error:
        raise CommandError(str(error)) from None
    click.echo(yaml_documents(objects), nl=False)
