"""`virtfleet image`: the images that the local cluster's containers are made of."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from virtfleet.api.names import FINAL
from virtfleet.cli.home.cluster import data_option, is_running, load
from virtfleet.cli.output import CommandError, Progress, output_option, result, table

if TYPE_CHECKING:
    from virtfleet.local.node.images import Image, ImageStore


@click.group()
def image() -> None:
    """Images of the local cluster."""


@image.command("ls")
@data_option
@output_option
def ls(data: Path, output: str) -> None:
    """List the images."""
    from virtfleet.local.node.images import ImageStore

    _cluster(data)
    images = list(ImageStore(data / "images").all())
    rows = [[i.name, i.id.partition(":")[2][:12], _size(i.size), "host" if i.on_host else "", i.origin] for i in images]
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
    _done(output, _wait(registry.load(_store(data), path.absolute(), name, progress)), "imported")


@image.command("pull")
@data_option
@click.argument("name")
@output_option
def pull(data: Path, name: str, output: str) -> None:
    """Bring NAME from its registry."""
    from virtfleet.local.node import registry

    progress = Progress(quiet=output == "json")
    _done(output, _wait(registry.pull(_store(data), name, progress)), "pulled")


@image.command("derive")
@data_option
@click.argument("new")
@click.option("--from", "old", required=True, help="The image to start from, such as host.")
@click.option("--add", multiple=True, metavar="SRC:DST", help="A file or directory, and where it goes in the image.")
@click.option("--env", multiple=True, metavar="K=V", help="A variable that containers of the image get.")
@output_option
def derive(data: Path, new: str, old: str, add: tuple[str, ...], env: tuple[str, ...], output: str) -> None:
    """Make NEW: another image with more files and variables, for example to try a launcher image of a pool."""
    from virtfleet.local.node.images import ImageError

    files = [(Path(source), target) for source, target in (_pair("--add", text, ":", "SRC:DST") for text in add)]
    variables = dict(_pair("--env", text, "=", "K=V") for text in env)
    try:
        _done(output, _store(data).derive(new, old, files, variables), "made")
    except ImageError as error:
        raise CommandError(str(error)) from None


@image.command("rm")
@data_option
@click.argument("name")
@output_option
def rm(data: Path, name: str, output: str) -> None:
    """Remove an image that no Pod uses."""
    from virtfleet.local.node.hostimage import comes_with_virtfleet
    from virtfleet.local.node.images import ImageError, canonical

    if comes_with_virtfleet(name):
        raise CommandError(f"{canonical(name)} comes with VirtFleet: it would be made again")
    store = _store(data)
    if users := asyncio.run(_users(data, canonical(name))):
        raise CommandError(
            f"{canonical(name)} is in use by {', '.join(users)}", "Delete these Pods, or what they belong to, first."
        )
    try:
        store.remove(name)
    except ImageError as error:
        raise CommandError(str(error)) from None
    result(output, {"removed": canonical(name)}, f"{canonical(name)} removed")


async def _users(data: Path, name: str) -> list[str]:
    """Pods that run, or are about to run, with an image. Where no cluster runs, there are none."""
    from virtfleet.kube import config
    from virtfleet.kube.client import Client
    from virtfleet.kube.errors import ApiError
    from virtfleet.kube.resource import PODS

    if not is_running(data):
        return []
    try:
        async with Client(config.load(data / "kubeconfig")) as api:
            pods = await api.list(PODS)
    except ApiError as error:
        raise CommandError(
            f"who uses {name} is not known: {error.message}", f"See: virtfleet status --data {data}"
        ) from None
    return [
        f"pod {pod['metadata']['namespace']}/{pod['metadata']['name']}"
        for pod in pods
        if pod.get("status", {}).get("phase") not in FINAL and name in _images(pod["spec"])
    ]


def _images(spec: dict[str, Any]) -> set[str]:
    from virtfleet.local.node.images import canonical

    containers = [*spec.get("initContainers", ()), *spec["containers"]]
    volumes = [volume["image"].get("reference", "") for volume in spec.get("volumes", ()) if volume.get("image")]
    return {canonical(image) for image in (*volumes, *(c.get("image", "") for c in containers)) if image}


def _cluster(data: Path) -> None:
    if load(data) is None:
        raise CommandError(f"there is no cluster in {data}", "Start one with: virtfleet up")


def _store(data: Path) -> ImageStore:
    from virtfleet.local.node.hostimage import open_store
    from virtfleet.local.node.images import ImageError

    _cluster(data)
    try:
        return open_store(data / "images")
    except (ImageError, OSError) as error:
        raise CommandError(f"the images in {data} cannot be used: {error}") from None


def _wait(work: Any) -> Image:
    from virtfleet.local.node.images import ImageError

    try:
        made: Image = asyncio.run(work)
    except ImageError as error:
        raise CommandError(str(error)) from None
    return made


def _pair(option: str, text: str, separator: str, form: str) -> tuple[str, str]:
    left, found, right = text.partition(separator)
    if not (left and found and (right or separator == "=")):
        raise CommandError(f"{option} {text!r} is not of the form {form}")
    return left, right


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


def _size(size: int) -> str:
    return f"{size / (1 << 20):.1f} MiB"
