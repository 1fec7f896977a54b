"""The variables that a container's spec declares, with references looked up and $(NAME) expanded."""

from __future__ import annotations

import re
from collections.abc import Mapping

from virtfleet.kube.api import KubeApi
from virtfleet.kube.errors import ApiError
from virtfleet.kube.resource import CONFIG_MAPS, SECRETS, Obj, Resource
from virtfleet.local.node.downward import Facts, field, resource
from virtfleet.local.node.projections import object_of, values_of
from virtfleet.local.node.security import ConfigError

_REFERENCE = re.compile(r"\$(\$|\(([A-Za-z_.\-][\w.\-]*)\))")


async def declared(
    pod: Obj,
    container: Obj,
    api: KubeApi,
    facts: Facts,
    given: Mapping[str, str],
) -> dict[str, str]:
    """`given` are variables that a spec may refer to and override, such as the API server's address."""
    result = dict(given)
    for source in container.get("envFrom") or ():
        result |= await _whole_object(pod, source, api)
    for entry in container.get("env") or ():
        reference = entry.get("valueFrom") or {}
        if "fieldRef" in reference:
            value: str | None = field(pod, reference["fieldRef"]["fieldPath"], facts)
        elif "resourceFieldRef" in reference:
            value = resource(pod, reference["resourceFieldRef"], container["name"], facts)
        elif "configMapKeyRef" in reference:
            value = await _key(pod, reference["configMapKeyRef"], CONFIG_MAPS, api)
        elif "secretKeyRef" in reference:
            value = await _key(pod, reference["secretKeyRef"], SECRETS, api)
        else:
            value = expand(entry.get("value") or "", result)
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
            obj = await _object(pod, source[kind], res, api)
            return {prefix + key: value.decode(errors="replace") for key, value in values_of(obj or {}).items()}
    return {}


async def _key(pod: Obj, reference: Obj, res: Resource, api: KubeApi) -> str | None:
    obj = await _object(pod, reference, res, api)
    value = values_of(obj or {}).get(reference["key"])
    if value is not None:
        return value.decode(errors="replace")
    if reference.get("optional"):
        return None
    where = f"{pod['metadata']['namespace']}/{reference['name']}"
    raise ConfigError(f"couldn't find key {reference['key']} in {res.kind} {where}")


async def _object(pod: Obj, reference: Obj, res: Resource, api: KubeApi) -> Obj | None:
    try:
        return await object_of(api, pod, res, reference["name"], reference)
    except ApiError as error:
        raise ConfigError(error.message) from None
