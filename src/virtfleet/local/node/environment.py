"""What a container learns of its own pod and of objects beside it: fields and resources, and the variables of its spec.

The container's references are looked up, and $(NAME) is expanded.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from virtfleet.api.quantity import Quantity
from virtfleet.kube.api import KubeApi
from virtfleet.kube.errors import ApiError
from virtfleet.kube.resource import CONFIG_MAPS, SECRETS, Obj, Resource
from virtfleet.local.node.lifecycle import all_containers
from virtfleet.local.node.projections import object_of, values_of
from virtfleet.local.node.security import ConfigError

_REFERENCE = re.compile(r"\$(\$|\(([A-Za-z_.\-][\w.\-]*)\))")
_KEYED = re.compile(r"metadata\.(labels|annotations)\['(.+)'\]")


@dataclass(frozen=True, slots=True)
class Facts:
    """What the node knows before any of it is written to the pod's status."""

    pod_ips: Sequence[str]
    host_ips: Sequence[str]
    allocatable: Mapping[str, str]


async def declared(pod: Obj, container: Obj, api: KubeApi, facts: Facts, given: Mapping[str, str]) -> dict[str, str]:
    """`given` are variables that a spec may refer to and override, such as the API server's address."""
    result = dict(given)
    for source in container.get("envFrom") or ():
        result |= await _whole_object(pod, source, api)
    for entry in container.get("env") or ():
        source = entry.get("valueFrom")
        if not source:
            value: str | None = expand(entry.get("value") or "", result)
        elif "configMapKeyRef" in source:
            value = await _key(pod, source["configMapKeyRef"], CONFIG_MAPS, api)
        elif "secretKeyRef" in source:
            value = await _key(pod, source["secretKeyRef"], SECRETS, api)
        else:
            value = learned(pod, source, container["name"], facts)
        if value is not None:
            result[entry["name"]] = value
    return result


def expand(text: str, variables: Mapping[str, str]) -> str:
    """$(NAME) becomes the variable; an unknown one stays as written; $$ is a dollar sign."""
    return _REFERENCE.sub(lambda m: "$" if m[1] == "$" else variables.get(m[2], m[0]), text)


async def _whole_object(pod: Obj, source: Obj, api: KubeApi) -> dict[str, str]:
    prefix = source.get("prefix") or ""
    for kind, res in (("configMapRef", CONFIG_MAPS), ("secretRef", SECRETS)):
        if kind in source:
            values = await _values(pod, source[kind], res, api)
            return {prefix + key: value.decode(errors="replace") for key, value in values.items()}
    return {}


async def _values(pod: Obj, reference: Obj, res: Resource, api: KubeApi) -> Mapping[str, bytes]:
    try:
        return values_of(await object_of(api, pod, res, reference["name"], reference) or {})
    except ApiError as error:
        raise ConfigError(error.message) from None


async def _key(pod: Obj, reference: Obj, res: Resource, api: KubeApi) -> str | None:
    value = (await _values(pod, reference, res, api)).get(reference["key"])
    if value is not None:
        return value.decode(errors="replace")
    if reference.get("optional"):
        return None
    where = f"{pod['metadata']['namespace']}/{reference['name']}"
    raise ConfigError(f"couldn't find key {reference['key']} in {res.kind} {where}")


def learned(pod: Obj, source: Obj, container: str, facts: Facts) -> str:
    """What a fieldRef or a resourceFieldRef says, in a variable or file of the container."""
    if "fieldRef" in source:
        return field(pod, source["fieldRef"]["fieldPath"], facts)
    if "resourceFieldRef" in source:
        return resource(pod, source["resourceFieldRef"], container, facts)
    raise ConfigError(f"this node knows nothing of {', '.join(source)}")


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
    limits, requests = declared.get("limits") or {}, declared.get("requests") or {}
    amounts = {**limits, **requests} if kind == "requests" else {**facts.allocatable, **limits}
    amount = Quantity.parse(amounts.get(wanted, 0))
    divisor = Quantity.parse(reference.get("divisor") or 0) or Quantity.parse(1)
    if wanted == "cpu":
        return str(-(-amount.milli() // divisor.milli()))
    return str(-(-amount.value() // divisor.value()))
