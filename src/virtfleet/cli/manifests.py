"""Objects from manifest files: several documents, lists, `-` for standard input."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import yaml

from virtfleet.cli.output import CommandError

# PyYAML with libyaml is ten times as fast; not every build has it.
_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def objects(files: Iterable[str]) -> Iterator[dict[str, Any]]:
    """Every object in the files, in order; the items of a list one by one."""
    for file in files:
        for document in _documents(file):
            if not isinstance(document, dict) or not isinstance(document.get("kind"), str):
                raise CommandError(f"{file}: a document is not a Kubernetes object", "Give it apiVersion and kind.")
            if document["kind"].endswith("List") and isinstance(document.get("items"), list):
                yield from (item for item in document["items"] if isinstance(item, dict))
            else:
                yield document


def kubevirt_object(file: str | None) -> dict[str, Any]:
    """The KubeVirt object in a file; without a file, one that leaves everything at its default."""
    if file is None:
        return {"kind": "KubeVirt", "metadata": {"name": "kubevirt", "namespace": "kubevirt"}, "spec": {}}
    for obj in objects([file]):
        if obj["kind"] == "KubeVirt":
            return obj
    raise CommandError(
        f"{file} has no KubeVirt object", "Pass a file with one, or leave --kubevirt out for the defaults."
    )


def _documents(file: str) -> Iterator[Any]:
    try:
        text = sys.stdin.read() if file == "-" else Path(file).read_text()
    except OSError as error:
        raise CommandError(f"{file} cannot be read: {error.strerror}") from error
    try:
        yield from (document for document in yaml.load_all(text, Loader=_LOADER) if document is not None)
    except yaml.YAMLError as error:
        raise CommandError(f"{file} is not YAML: {error}") from error
