"""The VMI that an object leads to, as the cluster would have it. Pure."""

from __future__ import annotations

import uuid
from typing import Any

from virtfleet.admission.findings import Findings
from virtfleet.admission.review import complete
from virtfleet.api.kinds import VMI
from virtfleet.installation import Installation


def completed_instance(obj: dict[str, Any], cluster: Installation) -> tuple[dict[str, Any], Findings]:
    """The VMI with its defaults, of itself or of what makes one, and what admission has to say of it."""
    completed, findings = complete(obj, cluster)
    if findings.allowed and obj.get("kind") != VMI.kind:
        completed, findings = complete(instance(completed), cluster)
    return completed, findings


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
