"""What is in deploy/: every way to install says the same as the operator's manifest."""

from __future__ import annotations

import json
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from scripts import manifests
from virtfleet.api.selectors import from_label_selector
from virtfleet.installation import Installation
from virtfleet.operator import manifest
from virtfleet.operator.render import render

ROOT = Path(__file__).resolve().parents[3]
DEPLOY = ROOT / "deploy"
BIN = Path(sys.executable).parent
VALUES: dict[str, Any] = {
    "imageRegistry": "r.example:5000/v",
    "imageTag": "1.2",
    "imagePullPolicy": "Always",
    "imagePullSecrets": [{"name": "a"}, {"name": "b"}],
}


def run(*command: str) -> list[dict[str, Any]]:
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    return [obj for obj in yaml.safe_load_all(done.stdout) if obj]


def by_name(made: list[dict[str, Any]]) -> dict[tuple[str, str], dict[str, Any]]:
    """Objects without what only Helm reads."""
    for obj in made:
        if (obj["metadata"].get("annotations") or {}).pop("helm.sh/resource-policy", None):
            obj["metadata"]["annotations"] or obj["metadata"].pop("annotations")
    named = {(obj["kind"], obj["metadata"]["name"]): obj for obj in made}
    assert len(named) == len(made)
    return named


def chart(tmp_path: Path, **values: Any) -> dict[tuple[str, str], dict[str, Any]]:
    file = tmp_path / "values.json"
    file.write_text(json.dumps(values))
    helm = run(str(BIN / "helm"), "template", "v", str(DEPLOY / "chart"), "--include-crds", "-f", str(file))
    return by_name(helm)


def kubevirt(**spec: Any) -> dict[str, Any]:
    named = {"name": "kubevirt", "namespace": "kubevirt"}
    return {"apiVersion": "kubevirt.io/v1", "kind": "KubeVirt", "metadata": named, "spec": spec}


needs_helm = pytest.mark.skipif(platform.machine() != "x86_64", reason="there is no helm for this machine")


def test_the_files_in_the_repository_are_those_that_the_code_makes() -> None:
    made = manifests.files()
    assert {str(p.relative_to(DEPLOY)) for p in DEPLOY.rglob("*") if p.is_file()} == set(made)
    for path, text in made.items():
        assert (DEPLOY / path).read_text() == text, f"deploy/{path} is old: make manifests"


@pytest.mark.slow
def test_the_kustomization_is_the_manifest() -> None:
    assert by_name(run(str(BIN / "kubectl"), "kustomize", str(DEPLOY))) == by_name(manifest.objects())


@needs_helm
def test_the_chart_is_the_manifest_and_a_kubevirt_object(tmp_path: Path) -> None:
    plain = kubevirt(imageRegistry="virtfleet", imagePullPolicy="IfNotPresent")
    assert chart(tmp_path) == by_name([*manifest.objects(), plain])


@needs_helm
def test_values_reach_the_operator_and_the_kubevirt_object(tmp_path: Path) -> None:
    configuration = {"developerConfiguration": {"featureGates": ["VirtHandlerPools"]}}
    made = chart(tmp_path, **VALUES, kubevirt={"configuration": configuration, "infra": {"replicas": 3}})
    wanted = kubevirt(**VALUES, configuration=configuration, infra={"replicas": 3})
    assert made == by_name([*manifest.objects(Installation(wanted)), wanted])


@pytest.mark.slow
@needs_helm
def test_network_policies_are_there_on_request(tmp_path: Path) -> None:
    policies = by_name(manifests.network_policies())
    assert chart(tmp_path, networkPolicies=True).keys() - chart(tmp_path).keys() == policies.keys()


def test_network_policies_cover_every_component_and_leave_the_way_of_api_servers_open() -> None:
    workloads = [obj for (kind, _), obj in installed().items() if kind in ("Deployment", "DaemonSet")]
    policies = {policy["metadata"]["name"]: policy["spec"] for policy in manifests.network_policies()}
    for template in (workload["spec"]["template"] for workload in workloads):
        labels = template["metadata"]["labels"]
        [name] = [n for n, spec in policies.items() if from_label_selector(spec["podSelector"]).matches(labels)]
        ports = {port["containerPort"] for c in template["spec"]["containers"] for port in c.get("ports", ())}
        assert {port["port"] for rule in policies[name]["ingress"] for port in rule["ports"]} >= ports
        if labels["kubevirt.io"] == "virt-api":
            assert any("from" not in rule for rule in policies[name]["ingress"])


def installed(**spec: Any) -> dict[tuple[str, str], dict[str, Any]]:
    return by_name([*manifest.objects(), *render(Installation(kubevirt(**spec)))])


@pytest.mark.parametrize("name", ["virt-operator", "virt-api", "virt-controller"])
def test_replicas_are_kept_apart_and_leave_a_lost_node_soon(name: str) -> None:
    spec = installed()["Deployment", name]["spec"]["template"]["spec"]
    [constraint] = spec["topologySpreadConstraints"]
    assert constraint["whenUnsatisfiable"] == "DoNotSchedule" and constraint["nodeTaintsPolicy"] == "Honor"
    lost = [t["tolerationSeconds"] for t in spec["tolerations"] if t["key"].startswith("node.kubernetes.io/")]
    assert lost == [30, 30]
    budget = installed()["PodDisruptionBudget", f"{name}-pdb"]
    assert budget["spec"]["selector"] == constraint["labelSelector"]


def test_what_the_administrator_tolerates_is_tolerated_as_long() -> None:
    for_ever = {"operator": "Exists"}
    made = installed(infra={"nodePlacement": {"tolerations": [for_ever]}})["Deployment", "virt-api"]
    tolerations = made["spec"]["template"]["spec"]["tolerations"]
    assert tolerations == [{"key": "CriticalAddonsOnly", "operator": "Exists"}, for_ever]
