"""The VMIs that manifests lead to, as the cluster would have them."""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from virtfleet.api.kinds import BY_NAME, VMI
from virtfleet.cli.output import CommandError, refused

if TYPE_CHECKING:
    from virtfleet.installation import Installation


def completed_instances(made: Iterable[dict[str, Any]], cluster: Installation) -> list[dict[str, Any]]:
    """The VMIs among the objects, and those that their VMs and replica sets make, with their defaults."""
    from virtfleet.admission.review import complete

    instances = []
    for obj in made:
        kind = BY_NAME.get(obj["kind"])
        if kind is None or not kind.instance:
            continue
        completed, findings = complete(obj, cluster)
        if findings.allowed and kind is not VMI:
            completed, findings = complete(instance(completed), cluster)
        if not findings.allowed:
            raise refused(findings.causes)
        instances.append(completed)
    if not instances:
        raise CommandError("no VMI, VM or replica set to work on", "Name a file with one after -f.")
    return instances


def instance(maker: dict[str, Any]) -> dict[str, Any]:
    """The VMI that a VM or a replica set makes."""
    template = maker.get("spec", {}).get("template") or {}
    own = {"name": "", "namespace": "default", **maker.get("metadata", {})}
    metadata = {**template.get("metadata", {}), "name": own["name"], "namespace": own["namespace"]}
    return {"apiVersion": VMI.api_version, "kind": VMI.kind, "metadata": metadata, "spec": template.get("spec", {})}


def identified(vmi: dict[str, Any]) -> dict[str, Any]:
    """The VMI with a UID, which only a cluster gives; made up from its name, so that it stays the same."""
    meta = {"namespace": "default", **vmi["metadata"]}
    uid = meta.get("uid") or str(uuid.uuid5(uuid.NAMESPACE_DNS, f"{meta.get('name')}.{meta['namespace']}"))
    return {**vmi, "metadata": {**meta, "uid": uid}}
