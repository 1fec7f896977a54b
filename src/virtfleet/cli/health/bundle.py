"""`virtfleet support-bundle`: one file with what others need to help. Secrets are not in it (redaction.py)."""

from __future__ import annotations

import io
import os
import sys
import tarfile
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import click
import orjson

import virtfleet
from virtfleet.api import names
from virtfleet.api.kinds import KINDS
from virtfleet.cli.health import redaction
from virtfleet.cli.home.cluster import data_option, or_of
from virtfleet.cli.output import CommandError, Progress, explained, mib, output_option, result
from virtfleet.cli.reach import Where, cluster_options, with_cluster
from virtfleet.kube import resource as resources
from virtfleet.kube.client import Client
from virtfleet.kube.errors import ApiError
from virtfleet.kube.resource import Obj, Resource, of_kind
from virtfleet.operator.manifest import NAMESPACE

_LOG_BYTES = 2 << 20  # of each log, its end
# Secrets and ConfigMaps are not among them, and their contents are in none of these.
_ASKED: tuple[Resource, ...] = (
    *map(of_kind, KINDS),
    resources.NODES,
    resources.EVENTS,
    resources.DAEMON_SETS,
    resources.DEPLOYMENTS,
    resources.PERSISTENT_VOLUMES,
    resources.PERSISTENT_VOLUME_CLAIMS,
    resources.STORAGE_CLASSES,
    resources.POD_DISRUPTION_BUDGETS,
    resources.NETWORK_ATTACHMENTS,
    resources.API_SERVICES,
    resources.MUTATING_WEBHOOKS,
    resources.VALIDATING_WEBHOOKS,
)
Entry = tuple[str, bytes]


@click.command()
@data_option
@click.option("--to", "file", type=click.Path(path_type=Path, dir_okay=False), help="The file; a new one here else.")
@cluster_options
@output_option
def support_bundle(data: Path, file: Path | None, where: Where, output: str) -> None:
    """Write logs, objects and states into one file that others can look at.

    Not in it: Secrets, contents of ConfigMaps, cloud-init data, values of variables that look like passwords, keys,
    tokens, guests' disks and consoles. Names of VMs, nodes, images and addresses are in it: look before you send it.
    """
    progress = Progress(quiet=output == "json")
    file = file or Path(f"virtfleet-support-{time.strftime('%Y%m%d-%H%M%S')}.tar.gz")
    if file.exists():
        raise CommandError(f"{file} is there already", "Name another one with --to.")
    where = or_of(data, where)
    fresh, entries = file.with_name(f".{file.name}.new"), 0
    try:
        private = partial(os.open, mode=0o600)  # nobody else may read it
        with open(fresh, "xb", opener=private) as target, tarfile.open(fileobj=target, mode="w:gz") as archive:
            for name, content in _entries(data, where, progress):
                _add(archive, f"{file.name.partition('.')[0]}/{name}", content)
                entries += 1
        fresh.replace(file)
    finally:
        fresh.unlink(missing_ok=True)
    size = file.stat().st_size
    said = f"{file}: {entries} files, {mib(size)}. No Secrets are in it; look before you send it."
    result(output, {"file": str(file), "bytes": size, "entries": entries}, said)


def _add(archive: tarfile.TarFile, name: str, content: bytes) -> None:
    entry = tarfile.TarInfo(name)
    entry.size, entry.mtime, entry.mode = len(content), int(time.time()), 0o600
    archive.addfile(entry, io.BytesIO(content))


def _entries(data: Path, where: Where, progress: Progress) -> Iterator[Entry]:
    from virtfleet.cli.health.doctor import findings_of

    yield "version.txt", f"virtfleet {virtfleet.__version__}, Python {sys.version}\n{' '.join(os.uname())}\n".encode()
    progress("looking for what is wrong")
    yield "doctor.json", _json([asdict(finding) for finding in findings_of(data, where)])
    yield from _of_machine(data)
    progress("asking the cluster")
    try:
        yield from with_cluster(_of_cluster, where, patience=3.0)
    except Exception as error:
        yield "cluster-error.txt", redaction.text(explained(error).message).encode()


def _of_machine(data: Path) -> Iterator[Entry]:
    """The local cluster's own files: what it was asked for, and logs. Neither its keys nor its store."""
    from virtfleet.cli.home.cluster import facts_of, load

    if settings := load(data):
        yield "local/status.json", _json(facts_of(data, settings))
        for path in sorted((data / "logs").glob("*.log*")):
            with path.open("rb") as log:
                log.seek(max(0, path.stat().st_size - _LOG_BYTES))
                yield f"local/logs/{path.name}", _text(log.read())


async def _of_cluster(api: Client) -> list[Entry]:
    return [entry async for entry in _objects(api)]


async def _objects(api: Client) -> AsyncIterator[Entry]:
    unseen: list[str] = []
    for resource in _ASKED:
        try:
            objects = await api.list(resource)
        except ApiError as error:
            unseen.append(f"{resource}: {error.message}")
            continue
        yield f"objects/{resource}.json", _json([redaction.cleaned(obj) for obj in objects])
    pods = [pod for pod in await api.list(resources.PODS) if _ours(pod)]
    yield "objects/pods.json", _json([redaction.cleaned(pod) for pod in pods])
    for pod in pods:
        for container in pod["spec"]["containers"]:
            for previous in ("false", "true"):
                name = f"{pod['metadata']['namespace']}/{pod['metadata']['name']}"
                try:
                    content = await _log(api, pod, container["name"], previous)
                except ApiError as error:
                    if previous == "false":
                        unseen.append(f"log of {name}: {error.message}")
                    continue
                yield f"logs/{name}/{container['name']}{'.previous' if previous == 'true' else ''}.log", content
    yield "not-seen.txt", redaction.text("\n".join(unseen)).encode()


def _ours(pod: Obj) -> bool:
    """Whether a Pod is a component of VirtFleet or a VM's."""
    labels = pod["metadata"].get("labels") or {}
    return pod["metadata"]["namespace"] == NAMESPACE or names.APP_LABEL in labels


async def _log(api: Client, pod: Obj, container: str, previous: str) -> bytes:
    wanted = {"container": container, "previous": previous, "tailLines": "20000"}
    content = bytearray()
    async with api.log(pod["metadata"]["name"], pod["metadata"]["namespace"], wanted) as chunks:
        async for chunk in chunks:
            content += chunk
            del content[:-_LOG_BYTES]
    return _text(bytes(content))


def _text(content: bytes) -> bytes:
    return redaction.text(content.decode(errors="replace")).encode()


def _json(value: Any) -> bytes:
    return orjson.dumps(value, option=orjson.OPT_INDENT_2, default=str)
