"""`virtfleet up`, `down`, `status` and `logs`: what they promise, what they refuse, and that they can be repeated."""

from __future__ import annotations

import json
import os
import socket
import subprocess
from pathlib import Path

import pytest
from clusters import VIRTFLEET, Cluster, Kubectl, free_port, start_local, stop_local

from virtfleet.local import supervisor
from waiting import eventually

pytestmark = pytest.mark.local_home("commands of the local home")


def virtfleet(*args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([VIRTFLEET, *args], capture_output=True, text=True, timeout=120)


def test_up_says_how_to_go_on_and_can_be_repeated(local_cluster: Cluster) -> None:
    again = local_cluster.virtfleet("up")
    assert f"export KUBECONFIG={local_cluster.kubeconfig}" in again.stdout
    facts = json.loads(local_cluster.virtfleet("up", "-o", "json").stdout)
    assert facts["ready"] is True
    assert facts["server"] == f"https://127.0.0.1:{local_cluster.port}"
    assert [p["restarts"] for p in facts["processes"]] == [0] * len(facts["processes"])


def test_status_is_true_before_and_after_down_and_data_survives(local_cluster: Cluster) -> None:
    kubectl = Kubectl(local_cluster)
    kubectl("create", "configmap", "kept")
    assert "ready" in local_cluster.virtfleet("status").stdout
    local_cluster.virtfleet("down")
    down = local_cluster.virtfleet("status", check=False)
    assert down.returncode == 1
    assert "virtfleet up" in down.stdout
    assert json.loads(local_cluster.virtfleet("down", "-o", "json").stdout)["stopped"] is False
    local_cluster.virtfleet("up")
    assert kubectl("get", "configmap", "kept", "-o", "name") == "configmap/kept\n"


def test_two_clusters_live_side_by_side() -> None:
    clusters = [start_local("nodes: []") for _ in range(2)]
    try:
        for number, cluster in enumerate(clusters):
            Kubectl(cluster)("create", "configmap", f"of-{number}")
        for number, cluster in enumerate(clusters):
            names = Kubectl(cluster)("get", "configmaps", "-o", "name")
            assert f"of-{number}" in names
            assert f"of-{1 - number}" not in names
    finally:
        for cluster in clusters:
            stop_local(cluster)


def test_logs_show_each_process(local_cluster: Cluster) -> None:
    names = json.loads(local_cluster.virtfleet("logs", "-o", "json").stdout)
    assert {"control-plane", "supervisor"} <= set(names)
    assert "the API server is ready" in local_cluster.virtfleet("logs", "control-plane").stdout
    last = local_cluster.virtfleet("logs", "control-plane", "--tail", "1", "-o", "json").stdout
    assert json.loads(last)["component"] == "control-plane"
    missing = local_cluster.virtfleet("logs", "nobody", check=False)
    assert missing.returncode == 1
    assert "control-plane" in missing.stderr


def test_a_killed_supervisor_takes_nothing_with_it_that_up_does_not_bring_back(local_cluster: Cluster) -> None:
    assert local_cluster.data is not None
    Kubectl(local_cluster)("create", "configmap", "kept")
    os.kill(supervisor.ask(local_cluster.data, op="status")["pid"], 9)
    eventually(lambda: local_cluster.virtfleet("status", check=False).returncode == 1)
    local_cluster.virtfleet("up")
    assert Kubectl(local_cluster)("get", "configmap", "kept", "-o", "name") == "configmap/kept\n"


def test_a_port_in_use_is_said_with_the_way_out(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        done = virtfleet("up", "--data", str(tmp_path / "c"), "--port", str(taken.getsockname()[1]))
    assert done.returncode == 1
    assert "is in use" in done.stderr
    assert "--port" in done.stderr


def test_another_port_for_a_running_cluster_is_refused(local_cluster: Cluster) -> None:
    done = local_cluster.virtfleet("up", "--port", str(free_port()), check=False)
    assert done.returncode == 1
    assert f"runs on port {local_cluster.port}" in done.stderr


def test_a_directory_that_holds_something_else_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "letter.txt").write_text("mine")
    done = virtfleet("up", "--data", str(tmp_path), "--port", str(free_port()))
    assert done.returncode == 1
    assert "holds no cluster" in done.stderr
    virtfleet("down", "--data", str(tmp_path), "--wipe")
    assert (tmp_path / "letter.txt").read_text() == "mine"


@pytest.mark.parametrize(
    ("content", "says"), [("nodes: [{name: A_B}]", "nodes[0].name"), ("nodes: 3", "array"), ("{", "nodes.yaml")]
)
def test_a_bad_nodes_file_is_refused_before_anything_starts(tmp_path: Path, content: str, says: str) -> None:
    (tmp_path / "nodes.yaml").write_text(content)
    done = virtfleet("up", "--data", str(tmp_path / "c"), "--nodes", str(tmp_path / "nodes.yaml"))
    assert done.returncode == 1
    assert says in done.stderr
    assert not (tmp_path / "c").exists()


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("kind: Pod", "has 0 KubeVirt objects, not one"),
        (
            "{apiVersion: kubevirt.io/v1, kind: KubeVirt, metadata: {name: kubevirt, namespace: kubevirt}, spec: "
            "{additionalVirtHandlers: [{name: a, nodeSelector: {a: b}}]}}",
            "spec.additionalVirtHandlers: additionalVirtHandlers cannot be set without enabling",
        ),
    ],
)
def test_a_bad_kubevirt_file_is_refused_before_anything_starts(tmp_path: Path, content: str, says: str) -> None:
    (tmp_path / "kubevirt.yaml").write_text(content)
    done = virtfleet("up", "--data", str(tmp_path / "c"), "--kubevirt", str(tmp_path / "kubevirt.yaml"))
    assert done.returncode == 1
    assert says in done.stderr
    assert not (tmp_path / "c").exists()


def test_unknown_commands_and_missing_clusters_name_the_next_step(tmp_path: Path) -> None:
    assert "virtfleet --help" in virtfleet("dance").stderr
    assert "virtfleet up" in virtfleet("status", "--data", str(tmp_path / "none")).stderr
