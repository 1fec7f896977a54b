"""Feature gates that are on for as long as a test needs them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager

from cluster.clusters import Cluster, Kubectl

_GATES = "{.spec.configuration.developerConfiguration.featureGates}"


@contextmanager
def gates(cluster: Cluster, *names: str) -> Iterator[None]:
    """Components hear of it a moment later."""
    admin = Kubectl(cluster, "kubevirt")
    before = json.loads(admin("get", "kubevirt", "kubevirt", "-o", f"jsonpath={_GATES}") or "[]")
    _set(admin, [*before, *names])
    try:
        yield
    finally:
        _set(admin, before)


def _set(admin: Kubectl, names: list[str]) -> None:
    spec = {"configuration": {"developerConfiguration": {"featureGates": names}}}
    admin("patch", "kubevirt", "kubevirt", "--type=merge", "-p", json.dumps({"spec": spec}))
