"""A small sound VMI, and edits of it by path: what the tests of admission are written with."""

from __future__ import annotations

import re
from itertools import pairwise
from typing import Any

import orjson

from virtfleet.admission.findings import Cause, Findings
from virtfleet.admission.review import complete, review
from virtfleet.installation import Installation

GONE = object()
"""As the value of an edit: the field is taken away."""

BASE = {
    "apiVersion": "kubevirt.io/v1",
    "kind": "VirtualMachineInstance",
    "metadata": {"name": "vmi", "namespace": "default"},
    "spec": {
        "domain": {
            "memory": {"guest": "1Gi"},
            "devices": {
                "disks": [{"name": "root", "disk": {"bus": "virtio"}}],
                "interfaces": [{"name": "default", "masquerade": {}}],
            },
        },
        "networks": [{"name": "default", "pod": {}}],
        "volumes": [{"name": "root", "containerDisk": {"image": "registry.example.com/disk:v1"}}],
    },
}

_STEP = re.compile(r"[^.\[\]]+")


def edited(obj: dict[str, Any], edits: dict[str, Any]) -> dict[str, Any]:
    """A copy with fields set by path, `domain.cpu.cores`. An index one past the end appends."""
    copy: Any = orjson.loads(orjson.dumps(obj))
    for path, value in edits.items():
        steps: list[Any] = [int(s) if s.isdigit() else s for s in _STEP.findall(path)]
        parent = copy
        for step, following in pairwise(steps):
            if isinstance(step, int):
                if step == len(parent):
                    parent.append({})
            elif parent.get(step) is None:
                parent[step] = [] if isinstance(following, int) else {}
            parent = parent[step]
        last = steps[-1]
        value = value if value is GONE else orjson.loads(orjson.dumps(value))
        if value is GONE:
            del parent[last]
        elif isinstance(last, int) and last == len(parent):
            parent.append(value)
        else:
            parent[last] = value
    return copy


def vmi(edits: dict[str, Any] | None = None) -> dict[str, Any]:
    """The base VMI with edits of its spec; a path that begins with `metadata` is one of the object."""
    paths = {path if path.startswith("metadata") else f"spec.{path}": value for path, value in (edits or {}).items()}
    return edited(BASE, paths)


def cluster(*gates: str, **configuration: Any) -> Installation:
    settings = {"developerConfiguration": {"featureGates": list(gates)}, **configuration}
    return Installation({"metadata": {"namespace": "kubevirt"}, "spec": {"configuration": settings}})


def completed(edits: dict[str, Any] | None = None, where: Installation | None = None) -> dict[str, Any]:
    """The spec of the VMI with its defaults."""
    obj, found = complete(vmi(edits), where or cluster())
    assert found.allowed, found.causes
    spec: dict[str, Any] = obj["spec"]
    return spec


def verdict(obj: dict[str, Any], where: Installation | None = None) -> Findings:
    """What happens to a new object: defaults, then rules."""
    where = where or cluster()
    return review(complete(obj, where)[0], where)


def causes(edits: dict[str, Any], where: Installation | None = None) -> dict[str, Cause]:
    """The causes that refuse an edited VMI, by field."""
    return {cause.field: cause for cause in verdict(vmi(edits), where).causes}
