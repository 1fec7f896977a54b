"""Workloads on nodes, as administrators handle them with kubectl: rollouts, scaling, drains, taints, budgets."""

from __future__ import annotations

import json
from typing import Any

import pytest
from clusters import Kubectl
from manifests import IMAGE, pod, pod_spec, workload

from waiting import eventually

pytestmark = pytest.mark.thorough("they are Kubernetes' workloads there")


@pytest.fixture
def node(kubectl: Kubectl) -> Any:
    """The name of a node that a test may cordon, taint and label; it gets back what it had."""
    name = kubectl.json("get", "nodes")["items"][0]["metadata"]["name"]
    yield name
    kubectl("uncordon", name)
    kubectl("label", "node", name, "test-")
    if any(taint["key"] == "test" for taint in taints(kubectl, name)):
        kubectl("taint", "node", name, "test-")


def taints(kubectl: Kubectl, node: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = kubectl.json("get", "node", node)["spec"].get("taints", [])
    return found


def pods(kubectl: Kubectl, app: str) -> list[dict[str, Any]]:
    items: list[dict[str, Any]] = kubectl.json("get", "pods", "-l", f"app={app}")["items"]
    return [p for p in items if "deletionTimestamp" not in p["metadata"]]


def test_a_deployment_rolls_out_scales_and_rolls_back(kubectl: Kubectl) -> None:
    kubectl.apply(workload("Deployment", "d", replicas=2))
    assert "successfully rolled out" in kubectl("rollout", "status", "deploy/d", "--timeout=60s")
    kubectl("scale", "deploy/d", "--replicas=3")
    kubectl("wait", "deploy/d", "--for=jsonpath={.status.readyReplicas}=3", "--timeout=60s")
    first = {p["metadata"]["labels"]["pod-template-hash"] for p in pods(kubectl, "d")}
    kubectl("set", "env", "deploy/d", "A=1")
    kubectl("rollout", "status", "deploy/d", "--timeout=60s")
    second = {p["metadata"]["labels"]["pod-template-hash"] for p in pods(kubectl, "d")}
    assert len(first) == len(second) == 1
    assert first != second
    assert kubectl("rollout", "history", "deploy/d").count("\n") >= 3
    kubectl("rollout", "undo", "deploy/d")
    kubectl("rollout", "status", "deploy/d", "--timeout=60s")
    assert {p["metadata"]["labels"]["pod-template-hash"] for p in pods(kubectl, "d")} == first
    kubectl("rollout", "restart", "deploy/d")
    kubectl("rollout", "status", "deploy/d", "--timeout=60s")
    header = kubectl("get", "deploy", "d").splitlines()[0].split()
    assert header == ["NAME", "READY", "UP-TO-DATE", "AVAILABLE", "AGE"]


def test_a_daemon_set_follows_the_labels_of_nodes(kubectl: Kubectl, node: str) -> None:
    kubectl.apply(workload("DaemonSet", "ds", nodeSelector={"test": kubectl.namespace}))
    kubectl("wait", "ds/ds", "--for=jsonpath={.status.observedGeneration}=1", "--timeout=30s")
    assert pods(kubectl, "ds") == []
    kubectl("label", "node", node, f"test={kubectl.namespace}")
    kubectl("wait", "ds/ds", "--for=jsonpath={.status.numberReady}=1", "--timeout=60s")
    assert [p["spec"]["nodeName"] for p in pods(kubectl, "ds")] == [node]
    kubectl("set", "env", "ds/ds", "A=1")
    assert "successfully rolled out" in kubectl("rollout", "status", "ds/ds", "--timeout=60s")
    kubectl("label", "node", node, "test-")
    eventually(lambda: not pods(kubectl, "ds"))


def test_an_unschedulable_pod_says_why(kubectl: Kubectl) -> None:
    kubectl.apply(pod("lost", nodeSelector={"nowhere": "true"}))
    kubectl("wait", "pod/lost", "--for=condition=PodScheduled=false", "--timeout=30s")
    condition = next(
        c for c in kubectl.json("get", "pod", "lost")["status"]["conditions"] if c["type"] == "PodScheduled"
    )
    count = len(kubectl.json("get", "nodes")["items"])
    assert condition["reason"] == "Unschedulable"
    assert condition["message"].startswith(f"0/{count} nodes are available:")
    assert "node(s) didn't match Pod's node affinity/selector" in condition["message"]
    eventually(lambda: "FailedScheduling" in kubectl("get", "events"))
    kubectl.apply(pod("greedy", containers=[{"name": "c", "image": "x", "resources": {"requests": {"cpu": "9999"}}}]))
    kubectl("wait", "pod/greedy", "--for=condition=PodScheduled=false", "--timeout=30s")
    assert "Insufficient cpu" in kubectl("describe", "pod", "greedy")


def test_cordon_drain_and_uncordon(kubectl: Kubectl, node: str) -> None:
    kubectl.apply(workload("Deployment", "d", replicas=2))
    kubectl("rollout", "status", "deploy/d", "--timeout=60s")
    kubectl("cordon", node)
    assert "SchedulingDisabled" in kubectl("get", "node", node)
    selector = "--pod-selector=app=d"
    assert "drained" in kubectl(
        "drain", node, "--ignore-daemonsets", "--delete-emptydir-data", selector, "--timeout=60s"
    )
    eventually(lambda: all(p["spec"].get("nodeName") != node for p in pods(kubectl, "d")))
    kubectl("uncordon", node)
    kubectl("rollout", "status", "deploy/d", "--timeout=60s")


def test_a_disruption_budget_holds_a_drain_back(kubectl: Kubectl) -> None:
    kubectl.apply(workload("Deployment", "d", replicas=1))
    kubectl("rollout", "status", "deploy/d", "--timeout=60s")
    kubectl("create", "pdb", "d", "--selector=app=d", "--min-available=1")
    kubectl("wait", "pdb/d", "--for=jsonpath={.status.currentHealthy}=1", "--timeout=30s")
    name = pods(kubectl, "d")[0]["metadata"]["name"]
    node = pods(kubectl, "d")[0]["spec"]["nodeName"]
    refused = kubectl.run("drain", node, "--ignore-daemonsets", "--pod-selector=app=d", "--timeout=2s")
    kubectl("uncordon", node)
    assert refused.returncode != 0
    assert "Cannot evict pod as it would violate the pod's disruption budget." in refused.stderr
    assert pods(kubectl, "d")[0]["metadata"]["name"] == name


def test_taints_keep_pods_off_and_move_them_away(kubectl: Kubectl, node: str) -> None:
    on_node = {"nodeSelector": {"kubernetes.io/hostname": node}}
    kubectl.apply(
        pod("stays", **on_node, tolerations=[{"key": "test", "operator": "Exists"}]), pod("leaves", **on_node)
    )
    kubectl("wait", "pod/stays", "pod/leaves", "--for=condition=Ready", "--timeout=60s")
    kubectl("taint", "node", node, "test=x:NoExecute")
    kubectl("wait", "pod/leaves", "--for=delete", "--timeout=60s")
    assert kubectl.json("get", "pod", "stays")["status"]["phase"] == "Running"
    kubectl.apply(pod("barred", **on_node))
    kubectl("wait", "pod/barred", "--for=condition=PodScheduled=false", "--timeout=30s")
    kubectl("taint", "node", node, "test-")
    kubectl("wait", "pod/barred", "--for=condition=Ready", "--timeout=60s")


def test_a_service_has_the_ready_pods_as_endpoints(kubectl: Kubectl) -> None:
    kubectl.apply(workload("Deployment", "d", replicas=2))
    kubectl("expose", "deploy/d", "--port=80", "--target-port=8080")
    kubectl("rollout", "status", "deploy/d", "--timeout=60s")

    def addresses() -> set[str]:
        slices = kubectl.json("get", "endpointslices", "-l", "kubernetes.io/service-name=d")["items"]
        return {a for s in slices for e in s.get("endpoints") or [] if e["conditions"]["ready"] for a in e["addresses"]}

    eventually(lambda: addresses() == {p["status"]["podIP"] for p in pods(kubectl, "d")})
    assert kubectl.json("get", "service", "d")["spec"]["clusterIP"]
    kubectl("scale", "deploy/d", "--replicas=0")
    eventually(lambda: not addresses())


@pytest.mark.local_home("a real cluster may have no default class")
def test_a_claim_of_the_default_class_is_bound_when_a_pod_uses_it(kubectl: Kubectl) -> None:
    claim = {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": "c"},
        "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "10Mi"}}},
    }
    kubectl.apply(claim, pod("user", volumes=[{"name": "v", "persistentVolumeClaim": {"claimName": "c"}}]))
    kubectl("wait", "pvc/c", "--for=jsonpath={.status.phase}=Bound", "--timeout=60s")
    kubectl("wait", "pod/user", "--for=condition=Ready", "--timeout=60s")
    volume = kubectl.json("get", "pvc", "c")["spec"]["volumeName"]
    kubectl("delete", "pvc", "c", "--wait=false")
    assert kubectl.json("get", "pvc", "c")["metadata"]["finalizers"] == ["kubernetes.io/pvc-protection"]
    kubectl("delete", "pod", "user")
    kubectl("wait", "pvc/c", "--for=delete", "--timeout=60s")
    kubectl("wait", f"pv/{volume}", "--for=delete", "--timeout=60s")


def test_a_job_runs_to_its_end_and_says_how_it_went(kubectl: Kubectl) -> None:
    kubectl("create", "job", "good", f"--image={IMAGE}", "--", "echo", "done")
    kubectl("wait", "--for=condition=complete", "job/good", "--timeout=60s")
    assert kubectl("logs", "job/good") == "done\n"
    header, line = (row.split() for row in kubectl("get", "jobs").splitlines())
    assert header == ["NAME", "STATUS", "COMPLETIONS", "DURATION", "AGE"]
    assert line[:3] == ["good", "Complete", "1/1"]
    assert "1 Succeeded" in kubectl("describe", "job", "good")
    spec = pod_spec(containers=[{"name": "c", "image": IMAGE, "command": ["false"]}], restartPolicy="Never")
    job = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"generateName": "bad-"}}
    name = kubectl("create", "-f", "-", "-o", "name", stdin=json.dumps({**job, "spec": {
        "backoffLimit": 0, "template": {"spec": spec}}})).strip()  # fmt: skip
    kubectl("wait", "--for=condition=failed", name, "--timeout=60s")
    assert "BackoffLimitExceeded" in kubectl("describe", name)
    kubectl("delete", name, "job/good", "--timeout=60s")
    eventually(lambda: not kubectl.json("get", "pods", "-l", "job-name")["items"])
