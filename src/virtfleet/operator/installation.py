"""One installation as the KubeVirt object describes it: what every installed object has in common. Pure."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import orjson

import virtfleet
from virtfleet.api import names
from virtfleet.kube.resource import Obj
from virtfleet.pods.images import Images
from virtfleet.pools.launcher import Fleet

COMPONENT = "app.kubernetes.io/component"
PART_OF = "app.kubernetes.io/part-of"
VERSION = "app.kubernetes.io/version"
MANAGED = f"{names.MANAGED_BY}={names.MANAGED_BY_OPERATOR}"
"""Label selector for everything that the operator installs."""

PRIORITY_CLASS = "kubevirt-cluster-critical"
DEFAULT_REPLICAS = 2


@dataclass(frozen=True)
class Installation:
    """What is read from the KubeVirt object, once per version of it."""

    kubevirt: Obj

    @cached_property
    def spec(self) -> Mapping[str, Any]:
        return self.kubevirt.get("spec") or {}

    @cached_property
    def configuration(self) -> Mapping[str, Any]:
        return self.spec.get("configuration") or {}

    @cached_property
    def namespace(self) -> str:
        return str(self.kubevirt["metadata"].get("namespace") or "kubevirt")

    @cached_property
    def images(self) -> Images:
        return Images.of(self.kubevirt)

    @cached_property
    def fleet(self) -> Fleet:
        return Fleet.of(self.kubevirt, self.images.launcher)

    @cached_property
    def labels(self) -> dict[str, str]:
        return {
            names.MANAGED_BY: names.MANAGED_BY_OPERATOR,
            COMPONENT: self.spec.get("productComponent") or "kubevirt",
            PART_OF: self.spec.get("productName") or "virtfleet",
            VERSION: self.spec.get("productVersion") or virtfleet.__version__,
        }

    @property
    def replicas(self) -> int:
        return (self.spec.get("infra") or {}).get("replicas") or DEFAULT_REPLICAS

    def placement(self, kind: str) -> Mapping[str, Any]:
        """`nodePlacement` of `infra` or `workloads`."""
        return (self.spec.get(kind) or {}).get("nodePlacement") or {}

    def flags(self, component: str) -> list[str]:
        """Flags of a component (api, controller or handler) that the administrator added."""
        flags = ((self.spec.get("customizeComponents") or {}).get("flags") or {}).get(component) or {}
        return [f"--{name}={value}" if value else f"--{name}" for name, value in sorted(flags.items())]

    def verbosity(self, component: str) -> str:
        levels = (self.configuration.get("developerConfiguration") or {}).get("logVerbosity") or {}
        return f"--verbosity={levels.get(component) or 2}"

    def pulling(self) -> dict[str, Any]:
        """What Pods say of their images beside their names."""
        secrets = self.spec.get("imagePullSecrets") or ()
        return {"imagePullSecrets": list(secrets)} if secrets else {}

    @property
    def pull_policy(self) -> str:
        return self.spec.get("imagePullPolicy") or "IfNotPresent"

    def metadata(
        self, name: str, labels: Mapping[str, str] | None = None, *, namespaced: bool = True
    ) -> dict[str, Any]:
        metadata: dict[str, Any] = {"name": name, "labels": {names.APP_LABEL: "", **self.labels, **(labels or {})}}
        if namespaced:
            metadata["namespace"] = self.namespace
        return metadata


def digest(value: object) -> str:
    """A short name for a value: equal values have equal names."""
    return hashlib.sha256(orjson.dumps(value, option=orjson.OPT_SORT_KEYS)).hexdigest()[:16]
