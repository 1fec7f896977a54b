"""The operator's own manifest, deploy/operator.yaml: what has to be there before a KubeVirt object can be made. Pure.

`python -m virtfleet.operator manifest` prints it; a test checks that the file in the repository is what is printed.
"""

from __future__ import annotations

from typing import Any

import yaml

from virtfleet.api import crds, names
from virtfleet.installation import Installation
from virtfleet.kube.resource import Obj
from virtfleet.operator import deployments, roles
from virtfleet.operator.endpoints import METRICS_LABEL
from virtfleet.operator.render import OWN_DEFINITION

VIRT_OPERATOR = "virt-operator"
NAMESPACE = "kubevirt"
_REPLICAS = 2
_IMAGES = ("imageRegistry", "imageTag", "imagePullPolicy", "imagePullSecrets")
_NOTE = "# The operator of VirtFleet. Made by `python -m virtfleet.operator manifest`; do not edit.\n"


def objects(wanted: Installation | None = None) -> list[Obj]:
    """The manifest; the operator's image comes from where those of the installation do that is `wanted`."""
    images = {key: value for key, value in (wanted.spec if wanted else {}).items() if key in _IMAGES}
    installation = Installation({"metadata": {"name": "kubevirt", "namespace": NAMESPACE}, "spec": images})
    [own] = [d for d in crds.definitions() if d["metadata"]["name"] == OWN_DEFINITION]
    made = [
        _namespace(),
        own,
        _priority_class(),
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": installation.metadata(roles.OPERATOR)},
        *roles.cluster_role(installation, roles.OPERATOR, roles.operator_cluster_rules()),
        *roles.own_role(installation, roles.OPERATOR, roles.operator_own_rules()),
        _deployment(installation),
        deployments.budget(installation, VIRT_OPERATOR),
    ]
    return [_ours(obj) for obj in made]


def text() -> str:
    return _NOTE + yaml.dump_all(objects(), Dumper=_Dumper, sort_keys=False, width=120)


class _Dumper(yaml.SafeDumper):
    """Without anchors: readers should find every object whole."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _ours(obj: Obj) -> Obj:
    """Labelled, but not as something that the operator manages: it must not take itself away."""
    metadata = obj["metadata"]
    labels = {key: value for key, value in (metadata.get("labels") or {}).items() if key != names.MANAGED_BY}
    return {**obj, "metadata": {**metadata, "labels": {**labels, "operator.kubevirt.io": ""}}}


def _namespace() -> Obj:
    # Handlers are privileged; launcher Pods live in other namespaces, under their own rules.
    levels = {f"pod-security.kubernetes.io/{mode}": "privileged" for mode in ("enforce", "audit", "warn")}
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE, "labels": levels}}


def _priority_class() -> Obj:
    return {
        "apiVersion": "scheduling.k8s.io/v1",
        "kind": "PriorityClass",
        "metadata": {"name": names.PRIORITY_CLASS},
        "value": 1_000_000_000,
        "globalDefault": False,
        "description": "For the components of VirtFleet, without which VMs cannot be managed.",
    }


def _deployment(installation: Installation) -> Obj:
    selector = {names.APP_LABEL: VIRT_OPERATOR}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": installation.metadata(VIRT_OPERATOR, selector),
        "spec": {
            "replicas": _REPLICAS,
            "selector": {"matchLabels": selector},
            "template": {
                "metadata": {"labels": {**selector, METRICS_LABEL: "true"}},
                "spec": {
                    "serviceAccountName": roles.OPERATOR,
                    "priorityClassName": names.PRIORITY_CLASS,
                    "securityContext": deployments.RESTRICTED_POD,
                    **deployments.spread({}, VIRT_OPERATOR),
                    "containers": [
                        {
                            "name": VIRT_OPERATOR,
                            "image": installation.image(VIRT_OPERATOR),
                            "imagePullPolicy": installation.pull_policy,
                            "env": deployments.IDENTITY,
                            **deployments.watched(),
                            "resources": {"requests": {"cpu": "5m", "memory": "64Mi"}},
                            "securityContext": deployments.RESTRICTED,
                        }
                    ],
                    **installation.pulling(),
                },
            },
        },
    }
