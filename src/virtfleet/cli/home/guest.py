"""`virtfleet guest`: the small guest that examples and tests boot."""

from __future__ import annotations

from pathlib import Path

import click

from virtfleet.cli.output import Group, Progress, output_option, result
from virtfleet.local import guestimage


@click.group(cls=Group)
def guest() -> None:
    """A small guest to try VirtFleet with."""


@guest.command()
@click.option("--cache", type=click.Path(path_type=Path), help="Where builds are kept.")
@output_option
def build(cache: Path | None, output: str) -> None:
    """Build the guest's disk and container image from Debian packages."""
    progress = Progress(quiet=output == "json")
    progress("building the guest, unless it is in the cache")
    built = guestimage.build(cache or guestimage.default_cache())
    progress("from the cache" if built.cached else "built")
    size = built.disk.stat().st_size
    data = {
        "disk": str(built.disk),
        "archive": str(built.archive),
        "image": guestimage.IMAGE,
        "kernel": str(built.kernel),
        "initrd": str(built.initrd),
        "bytes": size,
        "cached": built.cached,
    }
    result(
        output,
        data,
        f"disk:   {built.disk} ({size / 2**20:.1f} MiB)\nimage:  {guestimage.IMAGE} in {built.archive}\n"
        f"kernel: {built.kernel}\ninitrd: {built.initrd}",
    )
