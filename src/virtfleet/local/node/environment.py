"""What a container learns of its own pod and of objects beside it: fields and resources, and the variables of its spec.

The container's references are looked up, and $(NAME) is expanded.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import orjson

from virtfleet.api.quantity import Quantity
from virtfleet.kube.api import KubeApi
from virtfleet.kube.errors import ApiError, ignoring, is_not_found
from virtfleet.kube.resource import CONFIG_MAPS, SECRETS, Obj, Resource
from virtfleet.local.node.lifecycle import all_containers
from virtfleet.local.node.security import ConfigError

_REFERENCE = re.compile(r"\$(\$|\(([A-Za-z_.\-][\w.\-]*)\))")
_OBJECTS = {"configMapRef": CONFIG_MAPS, "configMapKeyRef": CONFIG_MAPS, "secretRef": SECRETS, "secretKeyRef": SECRETS}
_KEYED = re.compile(r"metadata\.(labels|annotations)\['(.+)'\]")


@dataclass(frozen=True, slots=True)
class Facts:
    """What the node knows before any of it is written to the pod's status."""

    pod_ips: Sequence[str]
    host_ips: Sequence[str]
    allocatable: Mapping[str, str]


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


async def declared(pod: Obj, container: Obj, api: KubeApi, facts: Facts, given: Mapping[str, str]) -> dict[str, str]:
    """`given` are variables that a spec may refer to and override, such as the API server's address."""
    result = dict(given)
    for source in container.get("envFrom") or ():
        for kind, reference in source.items():
            if kind in _OBJECTS:
                values, prefix = await _values(pod, kind, reference, api), source.get("prefix") or ""
                result |= {prefix + key: value for key, value in values.items()}
    for entry in container.get("env") or ():
        source = entry.get("valueFrom") or {}
        kind = next(iter(source), "")
        if kind in _OBJECTS:
            reference = source[kind]
            value = (await _values(pod, kind, reference, api)).get(reference["key"])
            if value is None and not reference.get("optional"):
                where = f"{_OBJECTS[kind].kind} {pod['metadata']['namespace']}/{reference['name']}"
                raise ConfigError(f"couldn't find key {reference['key']} in {where}")
        else:
            value = learned(pod, source, container["name"], facts) if kind else expand(entry.get("value") or "", result)
        if value is not None:
            result[entry["name"]] = value
    return result


async def _values(pod: Obj, kind: str, reference: Obj, api: KubeApi) -> dict[str, str]:
    try:
        obj = await object_of(api, pod, _OBJECTS[kind], reference["name"], reference)
    except ApiError as error:
        raise ConfigError(error.message) from None
    return {key: value.decode(errors="replace") for key, value in values_of(obj).items()}


def expand(text: str, variables: Mapping[str, str]) -> str:
    """$(NAME) becomes the variable; an unknown one stays as written; $$ is a dollar sign."""
    return _REFERENCE.sub(lambda m: "$" if m[1] == "$" else variables.get(m[2], m[0]), text)


def learned(pod: Obj, source: Obj, container: str, facts: Facts) -> str:
    """What a fieldRef or a resourceFieldRef says, in a variable or file of the container."""
    if "fieldRef" in source:
        return field(pod, source["fieldRef"]["fieldPath"], facts)
    if "resourceFieldRef" in source:
        return resource(pod, source["resourceFieldRef"], container, facts)
    raise ConfigError(f"this node knows nothing of {', '.join(source)}")


def field(pod: Obj, path: str, facts: Facts) -> str:
    """A field of the pod as text."""
    meta, name = pod["metadata"], path.partition(".")[2]
    if match := _KEYED.fullmatch(path):
        return str((meta.get(match[1]) or {}).get(match[2], ""))
    match path:
        case "metadata.name" | "metadata.namespace" | "metadata.uid":
            return str(meta[name])
        case "metadata.labels" | "metadata.annotations":
            pairs = sorted((meta.get(name) or {}).items())
            return "\n".join(f"{key}={orjson.dumps(value).decode()}" for key, value in pairs)
        case "spec.nodeName" | "spec.serviceAccountName":
            return str(pod["spec"].get(name) or "")
        case "status.podIP" | "status.podIPs" | "status.hostIP" | "status.hostIPs":
            addresses = facts.pod_ips if name.startswith("pod") else facts.host_ips
            return ",".join(addresses if name.endswith("s") else addresses[:1])
    raise ConfigError(f"fieldRef: field {path!r} is not one that a container can learn of its pod")


def resource(pod: Obj, reference: Obj, default_container: str, facts: Facts) -> str:
    """A request or limit of a container in units of the divisor, rounded up; the node's where it has none."""
    name = reference.get("containerName") or default_container
    container = next((c for c in all_containers(pod) if c["name"] == name), None)
    if container is None:
        raise ConfigError(f"resourceFieldRef: the pod has no container {name!r}")
    kind, _, wanted = reference["resource"].partition(".")
    declared = container.get("resources") or {}
    limits, requests = declared.get("limits") or {}, declared.get("requests") or {}
    amounts = {**limits, **requests} if kind == "requests" else {**facts.allocatable, **limits}
    amount = Quantity.parse(amounts.get(wanted, 0))
    divisor = Quantity.parse(reference.get("divisor") or 0) or Quantity.parse(1)
    if wanted == "cpu":
        return str(-(-amount.milli() // divisor.milli()))
    return str(-(-amount.value() // divisor.value()))
