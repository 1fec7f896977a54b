"""What the operator knows its objects by: short names for values, and Pods that belong to the KubeVirt object. Pure."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from typing import Any

import orjson

from virtfleet.installation import Installation
from virtfleet.kube.resource import KUBEVIRTS, Obj, owner_reference

# Of a Pod that tries something on a node: it goes there whatever its taints are, and has no rights.
TRIAL = {
    "automountServiceAccountToken": False,
    "terminationGracePeriodSeconds": 1,
    "tolerations": [{"operator": "Exists"}],
}


def digest(value: object) -> str:
    """Equal values have equal names."""
    return hashlib.sha256(orjson.dumps(value, option=orjson.OPT_SORT_KEYS)).hexdigest()[:16]


def own_pod(installation: Installation, name: str, labels: Mapping[str, str], spec: Obj, **more: Any) -> Obj:
    """A Pod that goes with the KubeVirt object, which is its controller: no DaemonSet takes it for its own."""
    owner = owner_reference(installation.kubevirt, KUBEVIRTS)
    metadata = {**installation.metadata(name, labels), **more, "ownerReferences": [owner]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def shown(those: Iterable[str], most: int) -> str:
    """The first of them by name; the others are counted."""
    every = list(those)
    more = f" and {len(every) - most} more" if len(every) > most else ""
    return ", ".join(every[:most]) + more
