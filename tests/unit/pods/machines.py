"""VMIs for the tests of launcher Pods: a small sound one, completed by admission, with edits by path."""

from __future__ import annotations

from typing import Any

from admission.machines import edited, vmi

from virtfleet.admission.review import complete
from virtfleet.installation import Installation
from virtfleet.pods.launcher import COMPUTE, render

UID = "0f6a1a24-4061-4607-8bf4-a39963d0c589"


def kubevirt(*gates: str, **spec: Any) -> dict[str, Any]:
    configuration = spec.pop("configuration", {})
    developer = {**configuration.get("developerConfiguration", {}), "featureGates": list(gates)}
    return {
        "metadata": {"name": "kubevirt", "namespace": "kubevirt"},
        "spec": {**spec, "configuration": {**configuration, "developerConfiguration": developer}},
    }


def machine(edits: dict[str, Any] | None = None, where: dict[str, Any] | None = None) -> dict[str, Any]:
    """A VMI as the controller reads it."""
    completed, found = complete(edited(vmi(edits), {"metadata.uid": UID}), Installation(where or kubevirt()))
    assert found.allowed, found.causes
    return completed


def pod(edits: dict[str, Any] | None = None, where: dict[str, Any] | None = None, **how: Any) -> dict[str, Any]:
    where = where or kubevirt()
    return render(machine(edits, where), Installation(where), **how)


def compute(rendered: dict[str, Any]) -> dict[str, Any]:
    container: dict[str, Any] = next(c for c in rendered["spec"]["containers"] if c["name"] == COMPUTE)
    return container


def mounts(rendered: dict[str, Any]) -> dict[str, str]:
    return {mount["name"]: mount["mountPath"] for mount in compute(rendered)["volumeMounts"]}


def volumes(rendered: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {v["name"]: {k: x for k, x in v.items() if k != "name"} for v in rendered["spec"]["volumes"]}
