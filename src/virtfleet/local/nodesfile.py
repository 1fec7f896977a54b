"""The nodes file: which nodes a local cluster has, with their labels, taints and pretend devices.

nodes:
- name: node-a
- name: node-c
  labels: {superduper.io/megaslop: "true"}
  taints: [{key: dedicated, value: gpu, effect: NoSchedule}]
  devices: {superduper.io/MegaSlop_9000: 2}
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import yaml

from virtfleet.api.selectors import label_key_error, label_value_error

DESCRIBED = "virtfleet.io/nodes-file"
"""Annotation of a Node: what the nodes file said of it when its agent last looked."""

AGENT = "virtfleet.io/agent"
"""Annotation of a Node: the process of the agent that has said how all its pods are."""

_DNS_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_EFFECTS = ("NoSchedule", "PreferNoSchedule", "NoExecute")


class NodesFileError(ValueError):
    """What is wrong in the file, where, and what would be right."""


class Taint(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    key: str
    effect: str
    value: str = ""


class NodeSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """One node as the file describes it. `devices` maps a resource name to a number of pretend devices."""

    name: str
    labels: dict[str, str] = {}
    taints: list[Taint] = []
    devices: dict[str, int] = {}


class NodesFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    nodes: list[NodeSpec]


def load(path: Path) -> list[NodeSpec]:
    """Read and check a nodes file."""
    try:
        return parse(yaml.safe_load(path.read_text()))
    except (OSError, yaml.YAMLError, NodesFileError) as error:
        raise NodesFileError(f"{path}: {error}") from error


def parse(data: Any) -> list[NodeSpec]:
    """Check a nodes file's content."""
    try:
        nodes = msgspec.convert(data, NodesFile).nodes
    except msgspec.ValidationError as error:
        raise NodesFileError(f"{error}; a node has name, labels, taints and devices") from error
    seen: set[str] = set()
    for i, node in enumerate(nodes):
        if problem := next(_problems(node, seen), ""):
            raise NodesFileError(f"nodes[{i}].{problem}")
        seen.add(node.name)
    return nodes


def _problems(node: NodeSpec, seen: set[str]) -> Iterator[str]:
    if not _DNS_LABEL.fullmatch(node.name):
        yield f"name: {node.name!r} is not a name of lower-case letters, digits and '-' (at most 63)"
    if node.name in seen:
        yield f"name: {node.name!r} is used twice"
    for key, value in node.labels.items():
        if why := label_key_error(key):
            yield f"labels: {key!r}: {why}"
        if why := label_value_error(value):
            yield f"labels[{key}]: {value!r}: {why}"
    for i, taint in enumerate(node.taints):
        if why := label_key_error(taint.key):
            yield f"taints[{i}].key: {taint.key!r}: {why}"
        if taint.effect not in _EFFECTS:
            yield f"taints[{i}].effect: {taint.effect!r} is none of {', '.join(_EFFECTS)}"
    for resource, count in node.devices.items():
        if "/" not in resource or label_key_error(resource):
            yield f"devices: {resource!r} is not a resource name such as vendor.example/device"
        if count < 0:
            yield f"devices: {resource!r} needs a number of 0 or more, not {count}"
