"""Volumes whose files come from API objects: what is in them (pure), and how they change under a running reader.

The files of one version lie in a hidden directory; `..data` points to it, and the visible names point through
`..data`. Moving that one link switches all files at once, as programs that watch such volumes expect.
"""

from __future__ import annotations

import base64
import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from virtfleet.kube import certificates
from virtfleet.kube.api import KubeApi
from virtfleet.kube.errors import ignoring, is_not_found
from virtfleet.kube.resource import Obj, Resource
from virtfleet.local.node.security import ConfigError


@dataclass(frozen=True, slots=True)
class File:
    """One file of a volume."""

    content: bytes
    mode: int


Files = dict[str, File]  # by path in the volume


async def object_of(api: KubeApi, pod: Obj, res: Resource, name: str, source: Obj) -> Obj:
    """An object beside the pod that a source refers to; an empty one where it is absent and may be so."""
    with ignoring(lambda error: is_not_found(error) and bool(source.get("optional"))):
        return await api.get(res, name, pod["metadata"]["namespace"])
    return {}


def values_of(obj: Obj) -> dict[str, bytes]:
    """What a ConfigMap or Secret holds, by key."""
    if obj.get("kind") == "Secret":
        return {key: base64.b64decode(value) for key, value in (obj.get("data") or {}).items()}
    text = {key: value.encode() for key, value in (obj.get("data") or {}).items()}
    return text | {key: base64.b64decode(value) for key, value in (obj.get("binaryData") or {}).items()}


def keyed(obj: Obj, source: Obj, default_mode: int) -> Files:
    """The files of a configMap or secret source: all keys, or the items it names."""
    values = values_of(obj)
    items = source.get("items")
    if not items:
        return {key: File(value, default_mode) for key, value in values.items()}
    files: Files = {}
    for item in items:
        if item["key"] in values:
            files[item["path"]] = File(values[item["key"]], mode_of(item, default_mode))
        elif not source.get("optional"):
            raise ConfigError(f"references non-existent config key: {item['key']}")
    return files


def mode_of(item: Obj, default: int) -> int:
    return int(item["mode"]) if item.get("mode") is not None else default


def write(directory: Path, files: Mapping[str, File], group: int | None = None) -> None:
    """Make `directory` hold exactly `files`."""
    if _holds(directory / "..data", files):
        return
    version = Path(tempfile.mkdtemp(prefix="..", dir=directory))
    version.chmod(0o755)
    for name, file in files.items():
        path = version / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(file.content)
        path.chmod(file.mode | (0o040 if group is not None else 0))
        if group is not None:
            os.chown(path, -1, group)
    wanted = {name.partition("/")[0] for name in files}
    certificates.show(directory, version, wanted)
    for entry in list(directory.iterdir()):
        if not entry.name.startswith("..") and entry.name not in wanted:
            entry.unlink()


def _holds(version: Path, files: Mapping[str, File]) -> bool:
    if not version.is_dir():
        return False
    there = {str(path.relative_to(version)) for path in version.rglob("*") if path.is_file()}
    return there == set(files) and all((version / name).read_bytes() == file.content for name, file in files.items())
