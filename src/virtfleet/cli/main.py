"""Entry point of the command line: the root command, and the place where the others are hung up."""

from __future__ import annotations

import click

import virtfleet


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(virtfleet.__version__, prog_name="virtfleet")
def main() -> None:
    """Virtual machines on Kubernetes for mixed fleets of nodes."""
