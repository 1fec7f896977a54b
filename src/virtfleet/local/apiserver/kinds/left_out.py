"""What people ask a Kubernetes for, and this one does not do (left_out.yaml). It says so, and what to do instead.

A bare 404 would be taken for a mistake of the caller's, and makes some clients fall over.
"""

from __future__ import annotations

from functools import cache
from importlib import resources

import yaml

from virtfleet.kube.errors import ApiError
from virtfleet.kube.resource import Obj


@cache
def table() -> dict[str, dict[str, dict[str, str]]]:
    """By group, then by the name of a resource or subresource."""
    text = resources.files(__package__).joinpath("left_out.yaml").read_text()
    table: dict[str, dict[str, dict[str, str]]] = yaml.load(text, Loader=yaml.CSafeLoader)
    return table


def empty(group: str, version: str, plural: str, verb: str) -> Obj | None:
    """The answer to a request for all of what is left out, or for all to be deleted, where clients need one."""
    kind = table().get(group, {}).get(plural, {}).get("empty")
    if kind is None or verb not in ("list", "deletecollection"):
        return None
    return {"kind": kind, "apiVersion": f"{group}/{version}".lstrip("/"), "metadata": {}, "items": []}


def refusal(group: str, plural: str, subresource: str) -> ApiError | None:
    """What is answered to a request for something that is left out; None for anything else."""
    for resource in (plural, f"{plural}/{subresource}"):
        if entry := table().get(group, {}).get(resource):
            what = f"{resource}.{group}" if group else resource
            message = f"the local cluster does not serve {what}: {entry['instead']}"
            return ApiError("NotFound", message, details={"kind": plural})
    return None
