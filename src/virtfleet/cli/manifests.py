"""Objects from manifest files: several documents, lists, `-` for standard input."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from virtfleet.cli.output import CommandError

if TYPE_CHECKING:
    from virtfleet.admission.cluster import Cluster

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


def cluster_of(file: str | None, beside: Iterable[dict[str, Any]] = ()) -> Cluster:
    """The cluster of the KubeVirt object in a file; without a file, of one that is `beside`, else with all defaults."""
    from virtfleet.admission import shape
    from virtfleet.admission.cluster import Cluster
    from virtfleet.admission.findings import Findings

    found = Findings()
    kubevirt = next((obj for obj in (beside if file is None else objects([file])) if obj["kind"] == "KubeVirt"), None)
    if kubevirt is None:
        if file is not None:
            raise CommandError(f"{file} has no KubeVirt object", "Name a file with one, or leave --kubevirt out.")
        return Cluster({})
    kubevirt = shape.without_nulls(kubevirt)
    shape.check(kubevirt, found)
    if file is not None and not found.allowed:
        raise CommandError(f"{file}: {found.causes[0].message}")
    return Cluster(kubevirt if found.allowed else {})


def _documents(file: str) -> Iterator[Any]:
    try:
        text = sys.stdin.read() if file == "-" else Path(file).read_text()
    except OSError as error:
        raise CommandError(f"{file} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError:
        raise CommandError(f"{file} is not a text file", "Name a manifest, in YAML or JSON.") from None
    try:
        yield from [document for document in yaml.load_all(text, Loader=_LOADER) if document is not None]
    except RecursionError:
        raise CommandError(f"{file} is nested too deeply for a manifest") from None
    except (yaml.YAMLError, ValueError) as error:  # a date that does not exist, for one
        raise CommandError(f"{file} is not YAML: {error}") from error
