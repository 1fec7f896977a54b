"""`virtfleet render`: what VirtFleet would make of an object, without a cluster.

The same pure functions that the components call, so what is printed is what would be created.
"""

from __future__ import annotations

import click

from virtfleet.cli.look.render_domain import domain
from virtfleet.cli.look.render_operator import operator
from virtfleet.cli.look.render_pod import pod
from virtfleet.cli.look.render_vmi import vmi


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def render() -> None:
    """What VirtFleet would make of an object, without a cluster."""


render.add_command(domain)
render.add_command(operator)
render.add_command(pod)
render.add_command(vmi)
