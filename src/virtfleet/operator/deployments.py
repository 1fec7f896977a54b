"""The control plane of an installation: virt-api and virt-controller, and how few of each may be missing. Pure."""

from __future__ import annotations

from typing import Any

from virtfleet.api import names
from virtfleet.installation import Installation
from virtfleet.kube.component import CERTIFICATES, PORT
from virtfleet.kube.resource import Obj
from virtfleet.operator import memory, roles
from virtfleet.operator.endpoints import METRICS_LABEL, VIRT_API

VIRT_CONTROLLER = "virt-controller"
_HOSTNAME = "kubernetes.io/hostname"
_NOBODY = 65534
# component -> service account, name of its flags, of its verbosity
_COMPONENTS = {
    VIRT_API: (roles.API, "api", "virt_api"),
    VIRT_CONTROLLER: (roles.CONTROLLER, "controller", "virt_controller"),
}
CERTIFICATES_MOUNT = {"name": "certificates", "mountPath": str(CERTIFICATES), "readOnly": True}
IDENTITY = [
    {"name": "POD_NAME", "valueFrom": {"fieldRef": {"apiVersion": "v1", "fieldPath": "metadata.name"}}},
    {"name": "POD_NAMESPACE", "valueFrom": {"fieldRef": {"apiVersion": "v1", "fieldPath": "metadata.namespace"}}},
]
RESTRICTED_POD = {
    "runAsNonRoot": True,
    "runAsUser": _NOBODY,
    "runAsGroup": _NOBODY,
    "fsGroup": _NOBODY,  # certificates are readable by it
    "seccompProfile": {"type": "RuntimeDefault"},
}
RESTRICTED = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}, "privileged": False}


def render(installation: Installation) -> list[Obj]:
    objects = [_component(installation, component) for component in _COMPONENTS]
    if installation.replicas > 1:
        objects += [_budget(installation, component) for component in _COMPONENTS]
    return objects


def _component(installation: Installation, component: str) -> Obj:
    account, flags, verbosity = _COMPONENTS[component]
    made = deployment(
        installation,
        component,
        account,
        replicas=installation.replicas,
        labels=installation.labels,
        args=[f"--verbosity={installation.verbosity(verbosity)}", *installation.flags(flags)],
        volumeMounts=[CERTIFICATES_MOUNT],
    )
    made["spec"]["template"]["spec"] |= {"volumes": [certificates(component)], **installation.pulling()}
    return made


def deployment(
    installation: Installation, component: str, account: str, *, replicas: int, labels: dict[str, str], **container: Any
) -> Obj:
    """The Deployment of a component of the control plane; the container is as all of them are, and as given."""
    selector = {names.APP_LABEL: component}
    basics = {
        "name": component,
        "image": installation.image(component),
        "imagePullPolicy": installation.pull_policy,
        "env": IDENTITY,
        **watched(),
        "resources": memory.resources(component, "5m"),
        "securityContext": RESTRICTED,
    }
    pod = {
        "serviceAccountName": account,
        "priorityClassName": names.PRIORITY_CLASS,
        "securityContext": RESTRICTED_POD,
        **spread(installation.placement("infra"), component),
        "containers": [{**basics, **container}],
    }
    metadata = {"labels": {**labels, **selector, METRICS_LABEL: "true"}}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": installation.metadata(component, selector),
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": selector},
            "strategy": {"type": "RollingUpdate"},
            "template": {"metadata": metadata, "spec": pod},
        },
    }


def watched() -> dict[str, Any]:
    """How a container of the control plane is reached and watched."""
    return {
        "ports": [{"name": "https", "containerPort": PORT, "protocol": "TCP"}],
        "startupProbe": probe("/readyz", period=1, failures=120),
        "livenessProbe": probe("/healthz", period=20),
        "readinessProbe": probe("/readyz", period=10),
    }


def certificates(component: str) -> dict[str, Any]:
    """The volume with a component's certificate; it may come after the Pod."""
    return {"name": "certificates", "secret": {"secretName": secret_name(component)}}


def secret_name(component: str) -> str:
    return f"kubevirt-{component}-certs"


def probe(path: str, *, period: int, failures: int = 3) -> dict[str, Any]:
    """Often at the start, so that an installation is ready as soon as it is, and seldom later, to cost nothing."""
    return {
        "httpGet": {"path": path, "port": PORT, "scheme": "HTTPS"},
        "periodSeconds": period,
        "timeoutSeconds": 5,
        "failureThreshold": failures,
    }


def spread(placement: Any, component: str) -> dict[str, Any]:
    """Where the administrator wants the control plane, on different nodes if there are."""
    affinity = dict(placement.get("affinity") or {})
    if "podAntiAffinity" not in affinity:
        term = {"labelSelector": {"matchLabels": {names.APP_LABEL: component}}, "topologyKey": _HOSTNAME}
        affinity["podAntiAffinity"] = {
            "preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 1, "podAffinityTerm": term}]
        }
    return {
        "nodeSelector": {"kubernetes.io/os": "linux", **(placement.get("nodeSelector") or {})},
        "affinity": affinity,
        "tolerations": [
            {"key": "CriticalAddonsOnly", "operator": "Exists"},
            *(placement.get("tolerations") or ()),
        ],
    }


def _budget(installation: Installation, component: str) -> Obj:
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": installation.metadata(f"{component}-pdb"),
        "spec": {"minAvailable": 1, "selector": {"matchLabels": {names.APP_LABEL: component}}},
    }
