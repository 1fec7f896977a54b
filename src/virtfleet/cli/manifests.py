"""Objects from manifest files: several documents, lists, `-` for standard input."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import orjson
import yaml

from virtfleet.api.kinds import BY_NAME, KUBEVIRT
from virtfleet.cli.output import CommandError, refused

if TYPE_CHECKING:
    from virtfleet.installation import Installation


_LARGEST = 1_000_000  # parts of a document

files_option = click.option(
    "-f", "--filename", "files", multiple=True, required=True, help="VMIs, or what makes them; repeatable."
)
kubevirt_option = click.option(
    "--kubevirt", "kubevirt_file", help="File with the KubeVirt object in force; defaults where left out."
)


# PyYAML with libyaml is ten times as fast; not every build has it.
class _Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """YAML as kubectl reads it: a key that is given twice is an error, and not the last one's victory."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.value != "<<" and key.value in seen:
                raise yaml.constructor.ConstructorError(None, None, f"{key.value!r} is given twice", key.start_mark)
            seen.add(str(key.value))
        mapping: dict[Any, Any] = super().construct_mapping(node, deep)
        return mapping


@dataclass(frozen=True, slots=True)
class Manifest:
    """An object, and where it was written."""

    file: str
    index: int
    """Which object of the file, from 0."""
    obj: dict[str, Any]

    def _metadata(self, field: str) -> str:
        metadata = self.obj.get("metadata")
        value = metadata.get(field) if isinstance(metadata, dict) else None
        return value if isinstance(value, str) else ""

    @property
    def kind(self) -> str:
        return str(self.obj.get("kind") or "object")

    @property
    def name(self) -> str:
        return self._metadata("name")

    @property
    def namespace(self) -> str:
        return self._metadata("namespace") or "default"


def manifests(files: Iterable[str]) -> Iterator[Manifest]:
    """Every object in the files, in order; the items of a list one by one."""
    for file in files:
        for index, obj in enumerate(_items(file)):
            yield Manifest(file, index, obj)


def _items(file: str) -> Iterator[dict[str, Any]]:
    for document in _documents(file):
        if not isinstance(document, dict):
            raise CommandError(f"{file}: a document is not a Kubernetes object", "Give it apiVersion and kind.")
        if str(document.get("kind")).endswith("List") and isinstance(document.get("items"), list):
            yield from (item for item in document["items"] if isinstance(item, dict))
        else:
            yield document


def objects(files: Iterable[str]) -> Iterator[dict[str, Any]]:
    """Every object in the files, each with a kind."""
    for manifest in manifests(files):
        if not isinstance(manifest.obj.get("kind"), str):
            raise CommandError(
                f"{manifest.file}: a document is not a Kubernetes object", "Give it apiVersion and kind."
            )
        yield manifest.obj


def cluster_of(file: str | None, beside: Iterable[dict[str, Any]] = ()) -> Installation:
    """The cluster of the KubeVirt object in a file; without a file, of one that is `beside`, else with all defaults."""
    from virtfleet.admission import shape
    from virtfleet.admission.findings import Findings
    from virtfleet.installation import Installation

    findings = Findings()
    among = beside if file is None else objects([file])
    kubevirt = next((obj for obj in among if obj.get("kind") == KUBEVIRT.kind), None)
    if kubevirt is None:
        if file is not None:
            raise CommandError(f"{file} has no KubeVirt object", "Name a file with one, or leave --kubevirt out.")
        return Installation({})
    kubevirt = shape.without_nulls(kubevirt)
    shape.check(kubevirt, findings)
    if file is not None and not findings.allowed:
        raise CommandError(f"{file}: {findings.causes[0].message}")
    return Installation(kubevirt if findings.allowed else {})


def completed_instances(made: Iterable[dict[str, Any]], cluster: Installation) -> list[dict[str, Any]]:
    """The VMIs among the objects, and those that their VMs and replica sets make, with their defaults."""
    from virtfleet.reasons.instances import completed_instance

    instances = []
    for obj in made:
        if (kind := BY_NAME.get(obj["kind"])) and kind.instance:
            completed, findings = completed_instance(obj, cluster)
            if not findings.allowed:
                raise refused(findings.causes)
            instances.append(completed)
    if not instances:
        raise CommandError("no VMI, VM or replica set to work on", "Name a file with one after -f.")
    return instances


def _documents(file: str) -> Iterator[Any]:
    try:
        text = sys.stdin.read() if file == "-" else Path(file).read_text()
    except OSError as error:
        raise CommandError(f"{file} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError:
        raise CommandError(f"{file} is not text in UTF-8: name a manifest, in YAML or JSON") from None
    try:
        for document in yaml.load_all(text, Loader=_Loader):
            if _size(document, {}) > _LARGEST:
                raise CommandError(f"{file} says by its aliases more than any API server takes")
            if document is not None:
                # What the API server gets is JSON: dates become text again, and keys always are.
                yield orjson.loads(orjson.dumps(document, option=orjson.OPT_NON_STR_KEYS))
    except yaml.YAMLError as error:
        raise CommandError(f"{file} is not YAML: {' '.join(str(error).split())}") from error
    except (TypeError, ValueError, RecursionError) as error:
        raise CommandError(f"{file} has something that JSON has not: {error}") from error


def _size(value: Any, known: dict[int, int]) -> int:
    """Of how many parts a document is made when its aliases are written out: a few lines can stand for billions."""
    if not isinstance(value, dict | list):
        return 1
    if id(value) not in known:
        known[id(value)] = 0
        parts = value.values() if isinstance(value, dict) else value
        known[id(value)] = 1 + sum(_size(part, known) for part in parts)
    return known[id(value)]
