"""`virtfleet image`: the images that the local cluster's containers are made of; `virtfleet guest`: one to boot."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from virtfleet.api.names import FINAL
from virtfleet.cli.home.cluster import data_option, is_running, load_existing
from virtfleet.cli.home.readiness import ask
from virtfleet.cli.output import CommandError, Group, Progress, mib, output_option, pair, result, table
from virtfleet.kube.resource import PODS

if TYPE_CHECKING:
    from virtfleet.local.node.images import Image, ImageStore


@click.group(cls=Group)
def image() -> None:
    """Images of the local cluster."""


@image.command("ls")
@data_option
@output_option
def ls(data: Path, output: str) -> None:
    """List the images."""
    from virtfleet.local.node.images import ImageStore

    load_existing(data)
    images = list(ImageStore(data / "images").all())
    rows = [[i.name, i.id.partition(":")[2][:12], mib(i.size), "host" if i.on_host else "", i.origin] for i in images]
    result(output, [_facts(i) for i in images], table(rows, ["NAME", "ID", "SIZE", "BASE", "ORIGIN"]))


@image.command("import")
@data_option
@click.argument("path", type=click.Path(exists=True, path_type=Path))
@click.argument("name")
@output_option
def import_(data: Path, path: Path, name: str, output: str) -> None:
    """Import the OCI archive, OCI layout or Docker archive at PATH as NAME."""
    from virtfleet.local.node import registry

    progress = Progress(quiet=output == "json")
    _done(output, asyncio.run(registry.load(_store(data), path.absolute(), name, progress)), "imported")


@image.command("pull")
@data_option
@click.argument("name")
@output_option
def pull(data: Path, name: str, output: str) -> None:
    """Bring NAME from its registry."""
    from virtfleet.local.node import registry

    progress = Progress(quiet=output == "json")
    _done(output, asyncio.run(registry.pull(_store(data), name, progress)), "pulled")


@image.command("derive")
@data_option
@click.argument("new")
@click.option("--from", "old", required=True, help="The image to start from, such as host.")
@click.option("--add", multiple=True, metavar="SRC:DST", help="A file or directory, and where it goes in the image.")
@click.option("--env", multiple=True, metavar="K=V", help="A variable that containers of the image get.")
@output_option
def derive(data: Path, new: str, old: str, add: tuple[str, ...], env: tuple[str, ...], output: str) -> None:
    """Make NEW: another image with more files and variables, for example to try a launcher image of a pool."""
    files = [(Path(source), target) for source, target in (pair("--add", text, "SRC:DST") for text in add)]
    variables = dict(pair("--env", text) for text in env)
    _done(output, _store(data).derive(new, old, files, variables), "made")


@image.command("rm")
@data_option
@click.argument("name")
@output_option
def rm(data: Path, name: str, output: str) -> None:
    """Remove an image that no Pod uses."""
    from virtfleet.local.node.hostimage import comes_with_virtfleet
    from virtfleet.local.node.images import canonical

    if comes_with_virtfleet(name):
        raise CommandError(f"{canonical(name)} comes with VirtFleet: it would be made again")
    store = _store(data)
    if users := _users(data, canonical(name)):
        raise CommandError(
            f"{canonical(name)} is in use by {', '.join(users)}", "Delete these Pods, or what they belong to, first."
        )
    store.remove(name)
    result(output, {"removed": canonical(name)}, f"{canonical(name)} removed")


def _users(data: Path, name: str) -> list[str]:
    """Pods that run, or are about to run, with an image. Where no cluster runs, there are none."""
    pods = ask(data, lambda api: api.list(PODS)) if is_running(data) else []
    return [
        f"pod {pod['metadata']['namespace']}/{pod['metadata']['name']}"
        for pod in pods
        if pod.get("status", {}).get("phase") not in FINAL and name in _images(pod["spec"])
    ]


def _images(spec: dict[str, Any]) -> set[str]:
    from virtfleet.local.node.images import canonical

    containers = [*spec.get("initContainers", ()), *spec["containers"], *spec.get("ephemeralContainers", ())]
    volumes = [volume["image"].get("reference", "") for volume in spec.get("volumes", ()) if volume.get("image")]
    return {canonical(image) for image in (*volumes, *(c.get("image", "") for c in containers)) if image}


def _store(data: Path) -> ImageStore:
    from virtfleet.local.node.hostimage import open_store

    load_existing(data)
    return open_store(data / "images")


def _done(output: str, made: Image, what: str) -> None:
    result(output, _facts(made), f"{made.name} {what}")


def _facts(made: Image) -> dict[str, Any]:
    return {
        "name": made.name,
        "id": made.id,
        "size": made.size,
        "onHost": made.on_host,
        "origin": made.origin,
        "layers": list(made.layers),
        "env": list(made.env),
        "entrypoint": list(made.entrypoint),
        "command": list(made.command),
    }


@click.group(cls=Group)
def guest() -> None:
    """A small guest to try VirtFleet with."""


@guest.command()
@click.option("--cache", type=click.Path(path_type=Path), help="Where builds are kept.")
@output_option
def build(cache: Path | None, output: str) -> None:
    """Build the guest's disk and container image from Debian packages."""
    from virtfleet.local import guestimage

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
        f"disk:   {built.disk} ({mib(size)})\nimage:  {guestimage.IMAGE} in {built.archive}\n"
        f"kernel: {built.kernel}\ninitrd: {built.initrd}",
    )
