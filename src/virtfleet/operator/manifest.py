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
from virtfleet.operator.render import OWN_DEFINITION

VIRT_OPERATOR = "virt-operator"
NAMESPACE = "kubevirt"
WEBHOOKS = 8444
"""Where KubeVirt's operator has its webhooks: tools look for its certificate there, by port-forward."""

_IMAGES = ("imageRegistry", "imageTag", "imagePullPolicy", "imagePullSecrets")
_NOTE = "# The operator of VirtFleet. Made by `python -m virtfleet.operator manifest`; do not edit.\n"


def objects(wanted: Installation | None = None) -> list[Obj]:
    """The manifest; the operator's image comes from where those of the installation do that is `wanted`."""
    images = {key: value for key, value in (wanted.spec if wanted else {}).items() if key in _IMAGES}
    installation = Installation({"metadata": {"name": "kubevirt", "namespace": NAMESPACE}, "spec": images})
    [own] = [d for d in crds.definitions() if d["metadata"]["name"] == OWN_DEFINITION]
    parts = [
        _namespace(),
        own,
        _priority_class(),
        roles.service_account(installation, roles.OPERATOR),
        *roles.granted(installation, roles.OPERATOR, roles.operator_cluster_rules()),
        *roles.granted(installation, roles.OPERATOR, roles.operator_own_rules(), namespaced=True),
        _deployment(installation),
        deployments.budget(installation, VIRT_OPERATOR),
    ]
    return [_ours(obj) for obj in parts]


def _deployment(installation: Installation) -> Obj:
    """With the certificate that it gives itself once it has installed something, and without labels of that."""
    made = deployments.deployment(installation, VIRT_OPERATOR, roles.OPERATOR)
    template = made["spec"]["template"]
    template["spec"]["volumes"][0]["secret"]["optional"] = True
    for label in installation.labels:
        del template["metadata"]["labels"][label]
    return made


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
