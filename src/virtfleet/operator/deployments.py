"""The control plane of an installation: virt-api and virt-controller, and how few of each may be missing. Pure.

And virt-dashboard, where the KubeVirt object asks for it: a process without any rights of its own. Visitors are known
to one process only, so there is one replica; a restart costs them a login. The Pod has a service account's name and
nothing that proves it: no token is mounted, only the certificate authority of the API server.
"""

from __future__ import annotations

from typing import Any

from virtfleet.api import names
from virtfleet.api.selectors import tolerates
from virtfleet.installation import Installation
from virtfleet.kube.component import CERTIFICATES, PORT
from virtfleet.kube.resource import Obj
from virtfleet.operator import amounts, roles
from virtfleet.operator.endpoints import METRICS_LABEL, VIRT_API, service

VIRT_CONTROLLER, VIRT_DASHBOARD = "virt-controller", "virt-dashboard"
_VISITORS = "kubevirt-dashboard"  # the dashboard's service account
_AUTHORITY = {"name": "cluster", "configMap": {"name": "kube-root-ca.crt"}}
_AUTHORITY_MOUNT = {"name": "cluster", "mountPath": "/etc/virtfleet/cluster", "readOnly": True}
_HOSTNAME = "kubernetes.io/hostname"
_NOBODY = 65534
_LOST = ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")
_PATIENCE = 30  # seconds that Pods stay on a node that is lost; without a word of theirs it would be five minutes
# component -> service account, name of its flags, of its verbosity
_COMPONENTS = {
    VIRT_API: (roles.API, "api", "virt_api"),
    VIRT_CONTROLLER: (roles.CONTROLLER, "controller", "virt_controller"),
}
_SHORT = {VIRT_CONTROLLER: "controller", "virt-operator": "operator"}  # in names of Secrets
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
    objects = [
        deployment(
            installation,
            component,
            account,
            args=[f"--verbosity={installation.verbosity(verbosity)}", *installation.flags(flags)],
        )
        for component, (account, flags, verbosity) in _COMPONENTS.items()
    ]
    if installation.replicas > 1:
        objects += [budget(installation, component) for component in _COMPONENTS]
    return objects


def dashboard(installation: Installation) -> list[Obj]:
    wanted = installation.configuration.dashboard
    if wanted is None:
        return []
    header = [f"--token-header={wanted.token_header}"] if wanted.token_header else []
    arguments = [*(f"--host-name={host}" for host in wanted.hosts), *header]
    made = deployment(installation, VIRT_DASHBOARD, _VISITORS, args=arguments)
    made["spec"]["replicas"] = 1
    pod = made["spec"]["template"]["spec"]
    pod["automountServiceAccountToken"] = False
    pod["volumes"].append(_AUTHORITY)
    pod["containers"][0]["volumeMounts"].append(_AUTHORITY_MOUNT)
    return [roles.service_account(installation, _VISITORS), service(installation, VIRT_DASHBOARD), made]


def deployment(installation: Installation, component: str, account: str, **more: Any) -> Obj:
    """The Deployment of a component of the control plane; the container is as all of them are, and as given."""
    selector = {names.APP_LABEL: component}
    container = {
        "name": component,
        "image": installation.image(component),
        "imagePullPolicy": installation.pull_policy,
        "env": IDENTITY,
        "ports": [{"name": "https", "containerPort": PORT, "protocol": "TCP"}],
        "startupProbe": probe("/readyz", period=1, failures=120),
        "livenessProbe": probe("/livez", period=20),
        "readinessProbe": probe("/readyz", period=10),
        "resources": amounts.of(component),
        "securityContext": RESTRICTED,
        **more,
        "volumeMounts": [CERTIFICATES_MOUNT],
    }
    pod = {
        "serviceAccountName": account,
        "priorityClassName": names.PRIORITY_CLASS,
        "securityContext": RESTRICTED_POD,
        **spread(installation.placement("infra"), component),
        "containers": [container],
        **installation.pulling(),
        "volumes": [certificates(component)],
    }
    metadata = {"labels": {**installation.labels, **selector, METRICS_LABEL: "true"}}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": installation.metadata(component, selector),
        "spec": {
            "replicas": installation.replicas,
            "selector": {"matchLabels": selector},
            "strategy": {"type": "RollingUpdate"},
            "template": {"metadata": metadata, "spec": pod},
        },
    }


def certificates(component: str) -> dict[str, Any]:
    """The volume with a component's certificate; it may come after the Pod."""
    return {"name": "certificates", "secret": {"secretName": secret_name(component)}}


def secret_name(component: str) -> str:
    """As KubeVirt names it."""
    return f"kubevirt-{_SHORT.get(component, component)}-certs"


def probe(path: str, *, period: int, failures: int = 3) -> dict[str, Any]:
    """Often at the start, so that an installation is ready as soon as it is, and seldom later, to cost nothing."""
    return {
        "httpGet": {"path": path, "port": PORT, "scheme": "HTTPS"},
        "periodSeconds": period,
        "timeoutSeconds": 5,
        "failureThreshold": failures,
    }


def spread(placement: Any, component: str) -> dict[str, Any]:
    """Where the administrator wants the control plane: each replica on a node of its own as far as nodes can be had.

    Nodes that take no Pods (cordoned, dead) do not count, so one node alone takes all of them, and a drain is not
    held up. Replicas of another version do not count either: the new ones are spread anew.
    """
    tolerations = list(placement.get("tolerations") or ())
    return {
        "nodeSelector": {"kubernetes.io/os": "linux", **(placement.get("nodeSelector") or {})},
        "affinity": dict(placement.get("affinity") or {}),
        "topologySpreadConstraints": [
            {
                "maxSkew": 1,
                "topologyKey": _HOSTNAME,
                "whenUnsatisfiable": "DoNotSchedule",
                "nodeTaintsPolicy": "Honor",
                "labelSelector": {"matchLabels": {names.APP_LABEL: component}},
                "matchLabelKeys": ["pod-template-hash"],
            }
        ],
        "tolerations": [
            {"key": "CriticalAddonsOnly", "operator": "Exists"},
            *tolerations,
            *(
                {"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": _PATIENCE}
                for key in _LOST
                if not tolerates(tolerations, {"key": key, "effect": "NoExecute"})
            ),
        ],
    }


def budget(installation: Installation, component: str) -> Obj:
    """One of them may be away at a time."""
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": installation.metadata(f"{component}-pdb"),
        "spec": {"minAvailable": installation.replicas - 1, "selector": {"matchLabels": {names.APP_LABEL: component}}},
    }
