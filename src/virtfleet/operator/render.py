"""Everything that an installation consists of, from the KubeVirt object. Pure.

The operator makes the cluster fit this list, and `virtfleet render operator` prints it. Certificates are not in it:
they are made once and then rotated, so they follow from what exists (`certificates`).
"""

from __future__ import annotations

import orjson

import virtfleet
from virtfleet.api import crds, names
from virtfleet.api.kinds import KINDS
from virtfleet.installation import Installation
from virtfleet.kube.resource import KUBEVIRTS, Obj, of_kind
from virtfleet.operator import commontypes, customize, deployments, endpoints, handlers, monitoring, policies, roles
from virtfleet.operator.objects import digest

APPLIED = "virtfleet.io/applied"
"""Annotation of installed objects: what the operator last made of them, as a digest and the names of its fields."""

IDENTITY = ("apiVersion", "kind", "metadata", "status")
"""Of an object, what is not for the operator to change as a section."""

NOTES = ("labels", "annotations")

OWN_DEFINITION = str(KUBEVIRTS)
"""Comes with the operator's own manifest."""

YIELDING = {f"{kind.plural}.{kind.group}": of_kind(kind) for kind in KINDS if kind.yields}
"""Definitions of kinds that are CDI's where it is installed."""


def render(
    installation: Installation, trust: bytes = b"", key: str = "", *, cdi: bool = False, monitors: bool = False
) -> list[Obj]:
    """All objects in the order in which they are installed.

    `trust` and `key` are what virt-api is known by; with `cdi`, CDI is installed and its kinds are left to it;
    with `monitors`, there are ServiceMonitors.
    """
    patches = (installation.spec.get("customizeComponents") or {}).get("patches") or ()
    objects = (
        *_definitions(installation, cdi),
        *roles.render(installation),
        *policies.render(installation),
        *endpoints.services(installation),
        *deployments.render(installation),
        *deployments.dashboard(installation),
        *handlers.render(installation),
        *endpoints.admission(installation, trust, key, cdi=cdi),
        *commontypes.render(installation),
        *monitoring.render(installation, served=monitors),
    )
    return [_finished(customize.customized(obj, patches), installation) for obj in objects]


def _definitions(installation: Installation, cdi: bool) -> list[Obj]:
    left_out = {OWN_DEFINITION, *(YIELDING if cdi else ())}
    definitions = [d for d in crds.definitions() if d["metadata"]["name"] not in left_out]
    return [
        {**d, "metadata": {**d["metadata"], "labels": {**d["metadata"]["labels"], **installation.labels}}}
        for d in definitions
    ]


def deployment_id(installation: Installation) -> str:
    """What a version is known by: the same for all Pods that are of it."""
    return digest([virtfleet.__version__, installation.tag, installation.registry, installation.labels])


def _finished(obj: Obj, installation: Installation) -> Obj:
    if obj["kind"] == "DaemonSet":
        obj = handlers.marked(obj)  # before its Pods get a note that alone is no reason to replace them
    if obj["kind"] in ("DaemonSet", "Deployment"):
        template = _noted(obj["spec"]["template"], names.DEPLOYMENT_ID, deployment_id(installation))
        obj = {**obj, "spec": {**obj["spec"], "template": template}}
    if obj["kind"] == "Deployment":
        obj = _noted(obj, names.MADE_BY, str(installation.kubevirt["metadata"].get("generation", 0)))
    return stamped(obj)


def _noted(obj: Obj, name: str, value: str) -> Obj:
    metadata = obj["metadata"]
    return {**obj, "metadata": {**metadata, "annotations": {**(metadata.get("annotations") or {}), name: value}}}


def stamped(obj: Obj) -> Obj:
    """The object with a record of itself, by which the operator sees that it wants something else than before."""
    metadata = obj["metadata"]
    annotations = {key: value for key, value in metadata.get("annotations", {}).items() if key != APPLIED}
    content = {**obj, "metadata": {**metadata, "annotations": annotations}}
    record = orjson.dumps({"digest": digest(content), **fields(content)}, option=orjson.OPT_SORT_KEYS).decode()
    return {**obj, "metadata": {**metadata, "annotations": {**annotations, APPLIED: record}}}


def fields(obj: Obj) -> dict[str, list[str]]:
    """The names of what an object says: its sections and the fields in them, its labels and its annotations."""
    sections = {key: value for key, value in obj.items() if key not in IDENTITY}
    sections |= {field: obj["metadata"].get(field) or {} for field in NOTES}
    return {key: sorted(value) if isinstance(value, dict) else [] for key, value in sections.items()}
