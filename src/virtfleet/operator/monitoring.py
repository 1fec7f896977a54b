"""How Prometheus finds the components' metrics: a ServiceMonitor, where that kind is served. Pure."""

from __future__ import annotations

from virtfleet.installation import Installation
from virtfleet.kube.resource import SERVICE_MONITORS, Obj
from virtfleet.operator import roles
from virtfleet.operator.endpoints import METRICS_LABEL

MONITOR, READER = "prometheus-kubevirt-rules", "kubevirt-monitoring"
ACCOUNT = "prometheus-k8s"


def render(installation: Installation, *, served: bool) -> list[Obj]:
    """The ServiceMonitor where there are any, and what Prometheus' account may see where its namespace is named.

    Certificates are not checked: each component's own has its own name, and those of one monitor could have only one.
    """
    spec = installation.spec
    reader = spec.get("monitorNamespace")
    account = {"kind": "ServiceAccount", "name": spec.get("monitorAccount") or ACCOUNT, "namespace": reader}
    objects = roles.granted(installation, READER, roles.SCRAPES, account, namespaced=True) if reader else []
    if not served:
        return objects
    metadata = installation.metadata(MONITOR, {METRICS_LABEL: "true", "k8s-app": "kubevirt"})
    metadata["namespace"] = spec.get("serviceMonitorNamespace") or reader or installation.namespace
    endpoint = {"port": "metrics", "scheme": "https", "tlsConfig": {"insecureSkipVerify": True}, "honorLabels": True}
    wanted = {
        "selector": {"matchLabels": {METRICS_LABEL: "true"}},
        "namespaceSelector": {"matchNames": [installation.namespace]},
        "endpoints": [endpoint],
    }
    monitor = {"apiVersion": SERVICE_MONITORS.api_version, "kind": SERVICE_MONITORS.kind, "metadata": metadata}
    return [*objects, {**monitor, "spec": wanted}]
