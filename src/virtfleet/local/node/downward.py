"""What a container may learn of its own pod: fieldRef and resourceFieldRef, for variables and for files. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from virtfleet.api.quantity import Quantity
from virtfleet.kube.resource import Obj
from virtfleet.local.node.lifecycle import all_containers
from virtfleet.local.node.security import ConfigError

_KEYED = re.compile(r"metadata\.(labels|annotations)\['(.+)'\]")


@dataclass(frozen=True, slots=True)
class Facts:
    """What the node knows before any of it is written to the pod's status."""

    pod_ips: Sequence[str]
    host_ips: Sequence[str]
    allocatable: Mapping[str, str]


def field(pod: Obj, path: str, facts: Facts) -> str:
    """A field of the pod as text."""
    meta, spec = pod["metadata"], pod["spec"]
    if match := _KEYED.fullmatch(path):
        return str((meta.get(match[1]) or {}).get(match[2], ""))
    match path:
        case "metadata.name" | "metadata.namespace" | "metadata.uid":
            return str(meta[path.partition(".")[2]])
        case "metadata.labels" | "metadata.annotations":
            pairs = sorted((meta.get(path.partition(".")[2]) or {}).items())
            return "\n".join(f'{key}="{_escaped(value)}"' for key, value in pairs)
        case "spec.nodeName" | "spec.serviceAccountName":
            return str(spec.get(path.partition(".")[2]) or "")
        case "status.podIP" | "status.hostIP":
            return next(iter(facts.pod_ips if path == "status.podIP" else facts.host_ips), "")
        case "status.podIPs" | "status.hostIPs":
            return ",".join(facts.pod_ips if path == "status.podIPs" else facts.host_ips)
    raise ConfigError(f"fieldRef: field {path!r} is not one that a container can learn of its pod")


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def resource(pod: Obj, reference: Obj, default_container: str, facts: Facts) -> str:
    """A request or limit of a container in units of the divisor, rounded up; the node's where it has none."""
    name = reference.get("containerName") or default_container
    container = next((c for c in all_containers(pod) if c["name"] == name), None)
    if container is None:
        raise ConfigError(f"resourceFieldRef: the pod has no container {name!r}")
    kind, _, wanted = reference["resource"].partition(".")
    declared = container.get("resources") or {}
    amounts = {**(declared.get("limits") or {}), **(declared.get("requests") or {})} if kind == "requests" else {}
    amounts = amounts or declared.get(kind) or {}
    amount = Quantity.parse(amounts.get(wanted, facts.allocatable.get(wanted, 0) if kind == "limits" else 0))
    divisor = Quantity.parse(reference.get("divisor") or 0)
    if not divisor:
        divisor = Quantity.parse(1)
    if wanted == "cpu":
        return str(-(-amount.milli() // divisor.milli()))
    return str(-(-amount.value() // divisor.value()))
