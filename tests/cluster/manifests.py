"""Small objects that the cluster tests create."""

from __future__ import annotations

from typing import Any

from virtfleet import __version__

# It has busybox and Python, and is in both homes.
IMAGE = f"virtfleet/virt-operator:{__version__}"
FOREVER = ["/bin/sh", "-c", "trap 'exit 0' TERM; while :; do sleep 3600 & wait; done"]

Obj = dict[str, Any]


def pod_spec(**extra: Any) -> Obj:
    container = {"name": "main", "image": IMAGE, "command": FOREVER}
    return {"containers": [container], "terminationGracePeriodSeconds": 1, **extra}


def pod(name: str, labels: dict[str, str] | None = None, **spec: Any) -> Obj:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": labels or {}},
        "spec": pod_spec(**spec),
    }


def workload(kind: str, name: str, replicas: int | None = None, **template: Any) -> Obj:
    labels = {"app": name}
    spec: Obj = {
        "selector": {"matchLabels": labels},
        "template": {"metadata": {"labels": labels}, "spec": pod_spec(**template)},
    }
    if replicas is not None:
        spec["replicas"] = replicas
    return {"apiVersion": "apps/v1", "kind": kind, "metadata": {"name": name}, "spec": spec}


def crd(group: str, plural: str = "gadgets", kind: str = "Gadget", **version: Any) -> Obj:
    """A custom kind with a small structural schema."""
    schema = {
        "type": "object",
        "description": "A gadget of the tests.",
        "properties": {
            "spec": {
                "type": "object",
                "required": ["size"],
                "properties": {
                    "size": {"type": "integer", "minimum": 1, "maximum": 10, "description": "How big it is."},
                    "colour": {"type": "string", "enum": ["red", "green"], "default": "green"},
                    "replicas": {"type": "integer"},
                    "anything": {"type": "object", "x-kubernetes-preserve-unknown-fields": True},
                },
            },
            "status": {
                "type": "object",
                "properties": {"replicas": {"type": "integer"}, "phase": {"type": "string"}},
            },
        },
    }
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.{group}"},
        "spec": {
            "group": group,
            "scope": "Namespaced",
            "names": {
                "plural": plural,
                "singular": kind.lower(),
                "kind": kind,
                "shortNames": [plural[:3]],
                "categories": ["all"],
            },
            "versions": [
                {
                    "name": "v1",
                    "served": True,
                    "storage": True,
                    "schema": {"openAPIV3Schema": schema},
                    "subresources": {
                        "status": {},
                        "scale": {"specReplicasPath": ".spec.replicas", "statusReplicasPath": ".status.replicas"},
                    },
                    "additionalPrinterColumns": [
                        {"name": "Size", "type": "integer", "jsonPath": ".spec.size"},
                        {"name": "Colour", "type": "string", "jsonPath": ".spec.colour", "priority": 1},
                    ],
                    **version,
                }
            ],
        },
    }
