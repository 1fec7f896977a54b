"""How the cluster reaches virt-api: Services, admission webhooks, and the aggregated API of subresources. Pure."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Sequence
from typing import Any

from virtfleet.api import kinds, names, subresources
from virtfleet.api.kinds import KINDS, Operations, OwnKind
from virtfleet.installation import Installation
from virtfleet.kube.component import EVICTION, PORT, admission_path
from virtfleet.kube.resource import ADMISSION, Obj

VIRT_API = "virt-api"
METRICS = "kubevirt-prometheus-metrics"
METRICS_LABEL = "prometheus.kubevirt.io"
EVICTIONS = "virt-launcher-eviction-interceptor.kubevirt.io"
_HTTPS = {"name": "https", "port": 443, "targetPort": PORT, "protocol": "TCP"}
_EVICTION = {
    "apiGroups": [""],
    "apiVersions": ["v1"],
    "operations": ["CREATE"],
    "resources": ["pods/eviction"],
    "scope": "Namespaced",
}
_OF_LAUNCHERS = f"request.name.startsWith('{names.LAUNCHER_APP}-')"


def services(installation: Installation) -> list[Obj]:
    measured = {METRICS_LABEL: "true"}
    return [
        service(installation, VIRT_API),
        _service(installation, METRICS, measured, {**_HTTPS, "name": "metrics"}, clusterIP="None"),
    ]


def service(installation: Installation, component: str) -> Obj:
    """The Service of a component."""
    return _service(installation, component, {names.APP_LABEL: component}, _HTTPS)


def _service(installation: Installation, name: str, labels: dict[str, str], port: Obj, **more: str) -> Obj:
    """A Service for the Pods that have its own labels."""
    spec = {"type": "ClusterIP", "selector": labels, "ports": [port], **more}
    return {"apiVersion": "v1", "kind": "Service", "metadata": installation.metadata(name, labels), "spec": spec}


def admission(installation: Installation, trust: bytes, key: str, *, cdi: bool = False) -> list[Obj]:
    """Webhooks and the aggregated API.

    `trust` is the authority that virt-api's certificate is checked against, `key` what it knows API servers by; with
    `cdi`, kinds of CDI are its own.
    """
    trusted = {"caBundle": base64.b64encode(trust).decode()} if trust else {}
    virt_api = {"name": VIRT_API, "namespace": installation.namespace, "port": 443}
    mutate, validate, evict = (admission_path(key, name) for name in ("mutate", "validate", EVICTION))

    def webhook(name: str, path: str, rules: list[dict[str, Any]], failure_policy: str = "Fail") -> dict[str, Any]:
        return {
            "name": name,
            "admissionReviewVersions": ["v1"],
            "sideEffects": "None",
            "failurePolicy": failure_policy,
            "timeoutSeconds": 10,
            "clientConfig": {"service": {**virt_api, "path": path}, **trusted},
            "rules": rules,
        }

    def configuration(kind: str, name: str, webhooks: list[dict[str, Any]]) -> Obj:
        metadata = installation.metadata(name, namespaced=False)
        return {"apiVersion": f"{ADMISSION}/v1", "kind": kind, "metadata": metadata, "webhooks": webhooks}

    def api_service(group: str, version: str) -> Obj:
        spec = {"group": group, "version": version, "groupPriorityMinimum": 1000, "versionPriority": 15}
        return {
            "apiVersion": "apiregistration.k8s.io/v1",
            "kind": "APIService",
            "metadata": installation.metadata(f"{version}.{group}", namespaced=False),
            "spec": {**spec, **trusted, "service": virt_api},
        }

    mutating = [webhook(kind.mutator, mutate, [_rule([kind], kind.completed)]) for kind in KINDS if kind.completed]
    checked = [kind for kind in KINDS if not kind.validators and not (cdi and kind.yields)]
    vital, others = ([kind for kind in checked if kind.vital is wanted] for wanted in (True, False))
    validating = [
        *(webhook(name, validate, [_rule([kind], how)]) for kind in KINDS for name, how in kind.validators),
        webhook("machines-validator.kubevirt.io", validate, _checks(others)),
        webhook("kubevirt-validator.kubevirt.io", validate, _checks(vital), "Ignore"),
        # Without an answer evictions are up to the VM's disruption budget, and those of others go on.
        webhook(EVICTIONS, evict, [_EVICTION], "Ignore")
        | {"sideEffects": "NoneOnDryRun", "matchConditions": [{"name": "launchers", "expression": _OF_LAUNCHERS}]},
    ]
    return [
        configuration("MutatingWebhookConfiguration", "virt-api-mutator", mutating),
        configuration("ValidatingWebhookConfiguration", "virt-api-validator", validating),
        *(api_service(subresources.GROUP, version) for version in subresources.VERSIONS),
        *(() if cdi else (api_service(names.CDI_UPLOADS, kinds.DATA_VOLUME.versions[0]),)),
    ]


def _checks(those: Iterable[OwnKind]) -> list[dict[str, Any]]:
    """As few rules as say what admission has to see of these kinds."""
    alike: dict[tuple[str, tuple[str, ...], Operations], list[OwnKind]] = {}
    for kind in those:
        alike.setdefault((kind.group, kind.versions, kind.checked), []).append(kind)
    return [_rule(group, group[0].checked) for group in alike.values()]


def _rule(those: Sequence[OwnKind], operations: Operations) -> dict[str, Any]:
    return {
        "apiGroups": [those[0].group],
        "apiVersions": list(those[0].versions),
        "operations": list(operations),
        "resources": [kind.plural for kind in those],
        "scope": "*",
    }
