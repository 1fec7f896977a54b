"""Writes deploy/ from the operator's manifest: that file itself, a kustomization and a Helm chart (`make manifests`).

All of them say the same; a test renders each and compares. The chart's templates are the manifest with marks in the
place of what values decide.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

import virtfleet
from virtfleet.api import names
from virtfleet.cli.output import yaml_documents
from virtfleet.installation import Installation
from virtfleet.kube.component import PORT
from virtfleet.kube.resource import Obj
from virtfleet.operator import manifest

DEPLOY = Path(__file__).resolve().parents[1] / "deploy"
NOTE = "# Made by `make manifests`; do not edit.\n"
SCRAPES = "virtfleet.io/scrapes"
"""Label of namespaces whose Pods may read the components' metrics where the network policies are in force."""

# Marks in the objects, and what they become in templates.
_MARKS = {
    "MARK-REGISTRY": "{{ .Values.imageRegistry }}",
    "MARK-TAG": "{{ .Values.imageTag | default .Chart.AppVersion }}",
    "MARK-POLICY": "{{ .Values.imagePullPolicy }}",
}
_SECRETS = "      imagePullSecrets:\n      - name: MARK-SECRET\n"
_SECRETS_TEMPLATE = """\
      {{- with .Values.imagePullSecrets }}
      imagePullSecrets: {{- toYaml . | nindent 6 }}
      {{- end }}
"""
_KUBEVIRT = """\
# It outlives the release: what it installed goes when somebody deletes it, with the operator still there to do so.
apiVersion: kubevirt.io/v1
kind: KubeVirt
metadata:
  name: kubevirt
  namespace: kubevirt
  annotations:
    helm.sh/resource-policy: keep
spec:
  imageRegistry: {{ .Values.imageRegistry }}
  imagePullPolicy: {{ .Values.imagePullPolicy }}
  {{- with .Values.imageTag }}
  imageTag: {{ . | quote }}
  {{- end }}
  {{- with .Values.imagePullSecrets }}
  imagePullSecrets: {{- toYaml . | nindent 2 }}
  {{- end }}
  {{- with .Values.kubevirt }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
"""
_KUSTOMIZATION = {
    "apiVersion": "kustomize.config.k8s.io/v1beta1",
    "kind": "Kustomization",
    "resources": ["operator.yaml"],
}
_ON_REQUEST = "{{{{- if .Values.networkPolicies }}}}\n{}{{{{- end }}}}\n"
_VALUES = """\
# Where the images are: what `make images REGISTRY=...` was told.
imageRegistry: virtfleet
# Their tag; the chart's version where it is empty.
imageTag: ""
imagePullPolicy: IfNotPresent
# Secrets of the namespace kubevirt, as in a Pod: [{name: ...}].
imagePullSecrets: []
# The rest of the KubeVirt object's spec (docs/install.md lists what it may say).
kubevirt: {}
# Whether to close the components' ports to everybody who has no business there (docs/install.md).
networkPolicies: false
"""


def files() -> dict[str, str]:
    """Everything that deploy/ consists of, by path."""
    marked = manifest.objects(
        Installation(
            {
                "spec": {
                    "imageRegistry": "MARK-REGISTRY",
                    "imageTag": "MARK-TAG",
                    "imagePullPolicy": "MARK-POLICY",
                    "imagePullSecrets": [{"name": "MARK-SECRET"}],
                }
            }
        )
    )
    definitions = [obj for obj in marked if obj["kind"] == "CustomResourceDefinition"]
    others = [_kept(obj) if obj["kind"] == "Namespace" else obj for obj in marked if obj not in definitions]
    policies = yaml_documents(network_policies())
    return {
        "operator.yaml": manifest.text(),
        "network-policies.yaml": NOTE + policies,
        "kustomization.yaml": NOTE + yaml.safe_dump(_KUSTOMIZATION, sort_keys=False),
        "chart/Chart.yaml": NOTE + yaml.safe_dump(_chart(), sort_keys=False),
        "chart/values.yaml": _VALUES,
        "chart/crds/kubevirt.yaml": NOTE + yaml_documents(definitions),
        "chart/templates/operator.yaml": NOTE + _template(others),
        "chart/templates/kubevirt.yaml": NOTE + _KUBEVIRT,
        "chart/templates/network-policies.yaml": NOTE + _ON_REQUEST.format(policies),
    }


def network_policies() -> list[Obj]:
    """Who may reach the components: API servers virt-api, virt-api the handlers, people the dashboard, which reads the
    metrics of handlers, and who reads metrics all of them.

    API servers are no Pods, and may be anywhere, so virt-api's port is open; it takes nobody at their word. Probes come
    from the Pod's own node, which is always let in. What components reach themselves is not limited: where the API
    server is differs from cluster to cluster.
    """
    port = [{"protocol": "TCP", "port": PORT}]
    virt_api = {"podSelector": {"matchLabels": {names.APP_LABEL: "virt-api"}}}
    dashboard = {"podSelector": {"matchLabels": {names.APP_LABEL: "virt-dashboard"}}}  # charts are made of metrics
    scrapers = {"namespaceSelector": {"matchExpressions": [{"key": SCRAPES, "operator": "Exists"}]}}
    others = ["virt-operator", "virt-controller", "virt-handler", "virt-handler-proof"]
    return [
        _policy("kubevirt-virt-api", ["virt-api", "virt-dashboard"], [{"ports": port}]),
        _policy("kubevirt-components", others, [{"from": [virt_api, dashboard, scrapers], "ports": port}]),
    ]


def _policy(name: str, components: list[str], ingress: list[dict[str, Any]]) -> Obj:
    selector = {"matchExpressions": [{"key": names.APP_LABEL, "operator": "In", "values": components}]}
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": {"name": name, "namespace": manifest.NAMESPACE, "labels": {"operator.kubevirt.io": ""}},
        "spec": {"podSelector": selector, "policyTypes": ["Ingress"], "ingress": ingress},
    }


def _kept(obj: Obj) -> Obj:
    """Not deleted with the release: a namespace takes all that is in it along."""
    return {**obj, "metadata": {**obj["metadata"], "annotations": {"helm.sh/resource-policy": "keep"}}}


def _template(objects: list[Obj]) -> str:
    text = yaml_documents(objects)
    assert "{{" not in text and _SECRETS in text
    text = text.replace(_SECRETS, _SECRETS_TEMPLATE)
    for mark, expression in _MARKS.items():
        text = text.replace(mark, expression)
    return text


def _chart() -> dict[str, str]:
    return {
        "apiVersion": "v2",
        "name": "virtfleet",
        "description": "Virtual machines on Kubernetes for mixed fleets of nodes",
        "type": "application",
        "version": virtfleet.__version__,
        "appVersion": virtfleet.__version__,
        "kubeVersion": ">=1.30.0-0",
    }


if __name__ == "__main__":
    for path, text in files().items():
        (DEPLOY / path).parent.mkdir(parents=True, exist_ok=True)
        (DEPLOY / path).write_text(text)
