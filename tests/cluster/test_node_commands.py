"""`virtfleet node` and `virtfleet image`: what an administrator does to the nodes and images of a local cluster."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from clusters import VIRTFLEET, Cluster, Kubectl, start_local, stop_local
from manifests import pod

from ocilayout import layer, oci_layout
from waiting import eventually

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="nodes need root"),
    pytest.mark.local_home("commands for a local cluster's nodes and images"),
]

TOLERANT = {"tolerations": [{"operator": "Exists"}], "nodeSelector": {"tier": "gold"}}


@pytest.fixture(scope="module")
def local() -> Iterator[Cluster]:
    cluster = start_local("nodes: [{name: one}]")
    yield cluster
    stop_local(cluster)


class Commands:
    """`virtfleet GROUP ...` on one cluster."""

    def __init__(self, cluster: Cluster, group: str) -> None:
        self._cluster, self._group = cluster, group

    def run(self, action: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        command = [VIRTFLEET, self._group, action, "--data", str(self._cluster.data), *arguments]
        return subprocess.run(command, capture_output=True, text=True, timeout=60)

    def __call__(self, action: str, *arguments: str) -> Any:
        """The result of a command that must succeed, read as JSON."""
        done = self.run(action, *arguments, "-o", "json")
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    def fails(self, action: str, *arguments: str) -> str:
        done = self.run(action, *arguments)
        assert done.returncode == 1, done.stdout
        return done.stderr


def runs(kubectl: Kubectl, name: str) -> str:
    """The id of a Ready pod's container."""

    def container() -> str | None:
        statuses = kubectl.json("get", "pod", name)["status"].get("containerStatuses") or [{}]
        return statuses[0].get("containerID") if statuses[0].get("ready") else None

    return eventually(container, 60)


def finished(kubectl: Kubectl, name: str, image: str, command: list[str]) -> str:
    """What a pod of one command prints."""
    container = {"name": "main", "image": image, "command": command, "imagePullPolicy": "IfNotPresent"}
    kubectl.apply(pod(name, containers=[container], restartPolicy="Never"))
    kubectl("wait", f"pod/{name}", "--for=jsonpath={.status.phase}=Succeeded", "--timeout=60s")
    said = kubectl("logs", name)
    kubectl("delete", "pod", name)
    return said


def test_a_node_is_added_stopped_started_and_killed(local: Cluster, tmp_path: Path) -> None:
    node, kubectl = Commands(local, "node"), Kubectl(local)
    described = ("--label", "tier=gold", "--taint", "dedicated=gpu:NoSchedule", "--device", "superduper.io/Slop=2")
    assert node("add", "two", *described)["labels"] == {"tier": "gold"}

    def of(name: str) -> Any:
        return next(facts for facts in node("ls") if facts["name"] == name)

    eventually(lambda: of("two")["ready"] == "True")
    assert of("one") == {
        "name": "one", "agent": "running", "ready": "True", "pods": 0, "labels": {}, "taints": [], "devices": {}
    }  # fmt: skip
    known = kubectl.json("get", "node", "two")
    assert known["spec"]["taints"] == [{"key": "dedicated", "value": "gpu", "effect": "NoSchedule"}]
    eventually(lambda: kubectl.json("get", "node", "two")["status"]["allocatable"].get("superduper.io/Slop") == "2")

    beating = [{"name": "d", "hostPath": {"path": str(tmp_path)}}]
    script = "trap 'exit 0' TERM; while :; do echo >> /d/beat; sleep 0.05; done"
    container = {"name": "c", "image": "host", "command": ["/bin/sh", "-c", script]}
    container["volumeMounts"] = [{"name": "d", "mountPath": "/d"}]
    kubectl.apply(pod("p", volumes=beating, containers=[container], **TOLERANT))
    before = runs(kubectl, "p")

    assert node("stop", "two") == {"node": "two", "agent": "stopped"}
    assert of("two")["agent"] == "stopped"
    beats = (tmp_path / "beat").stat().st_size
    eventually(lambda: (tmp_path / "beat").stat().st_size > beats)
    assert node("start", "two") == {"node": "two", "agent": "running"}
    assert runs(kubectl, "p") == before, "its pods went on without the agent"

    assert node("kill", "two") == {"node": "two", "agent": "killed"}
    beats = (tmp_path / "beat").stat().st_size
    node("start", "two")
    eventually(lambda: runs(kubectl, "p") != before)
    assert (tmp_path / "beat").read_bytes()[beats:], "it runs again, on the disk that the node had"
    kubectl("delete", "pod", "p", "--now")


def test_a_changed_nodes_file_reaches_running_nodes_and_their_pods_go_on(local: Cluster, tmp_path: Path) -> None:
    kubectl, file = Kubectl(local), tmp_path / "nodes.yaml"

    def up(*nodes: dict[str, Any]) -> None:
        file.write_text(json.dumps({"nodes": nodes}))
        local.virtfleet("up", "--nodes", str(file))

    taint, mine = {"key": "dedicated", "effect": "NoSchedule"}, {"key": "mine", "effect": "NoSchedule"}
    up({"name": "one", "labels": {"tier": "gold", "old": "yes"}, "taints": [taint]}, {"name": "three"})
    kubectl("label", "node", "one", "own=label", "tier=silver", "--overwrite")
    kubectl("taint", "node", "one", "mine:NoSchedule")
    kubectl.apply(pod("p", tolerations=[{"operator": "Exists"}], nodeSelector={"own": "label"}))
    running = runs(kubectl, "p")
    assert [node["metadata"]["name"] for node in kubectl.json("get", "nodes")["items"]] == ["one", "three"]

    local.virtfleet("up")
    assert kubectl.json("get", "node", "one")["metadata"]["labels"]["tier"] == "silver", "people's changes stay"

    up({"name": "one", "labels": {"tier": "gold"}, "devices": {"superduper.io/Slop": 3}})
    [node] = kubectl.json("get", "nodes")["items"]
    labels = node["metadata"]["labels"]
    assert (labels["tier"], labels["own"], labels.get("old")) == ("gold", "label", None)
    assert node["spec"]["taints"] == [mine]
    eventually(lambda: kubectl.json("get", "node", "one")["status"]["allocatable"].get("superduper.io/Slop") == "3")
    assert runs(kubectl, "p") == running
    kubectl("taint", "node", "one", "mine-")
    kubectl("delete", "pod", "p", "--now")


def test_what_cannot_be_done_to_a_node_is_said(local: Cluster) -> None:
    node = Commands(local, "node")
    assert "there is no node 'none'" in node.fails("stop", "none")
    assert "one" in node.fails("add", "one")
    assert "K=V:EFFECT" in node.fails("add", "three", "--taint", "dedicated")
    assert "K=V" in node.fails("add", "three", "--label", "tier")
    assert "number of devices" in node.fails("add", "three", "--device", "superduper.io/Slop=many")
    assert {facts["name"] for facts in node("ls")} <= {"one", "two"}


def test_a_derived_images_files_and_variables_are_in_its_pods(local: Cluster, tmp_path: Path) -> None:
    image, kubectl = Commands(local, "image"), Kubectl(local)
    (tmp_path / "tool").write_text("#!/bin/sh\necho tool of $POOL\n")
    (tmp_path / "tool").chmod(0o755)
    add = ("--add", f"{tmp_path}/tool:/usr/bin/pool-tool", "--env", "POOL=gpu")
    made = image("derive", "pool/launcher:1", "--from", "host", *add)
    assert made["onHost"] and "POOL=gpu" in made["env"]
    assert finished(kubectl, "p", "pool/launcher:1", ["pool-tool"]) == "tool of gpu\n"
    assert "pool/launcher:1" in [i["name"] for i in image("ls")]

    kubectl.apply(pod("q", containers=[{"name": "c", "image": "pool/launcher:1", "command": ["sleep", "1000"]}]))
    runs(kubectl, "q")
    assert "in use by pod default/q" in image.fails("rm", "pool/launcher:1")
    kubectl("delete", "pod", "q", "--now")
    assert eventually(lambda: image("rm", "pool/launcher:1")) == {"removed": "pool/launcher:1"}
    assert "pool/launcher:1" not in [i["name"] for i in image("ls")]


def test_an_image_that_shares_all_its_layers_is_not_removed_while_a_pod_needs_it(local: Cluster) -> None:
    image, kubectl = Commands(local, "image"), Kubectl(local)
    image("derive", "pool/alias", "--from", "host", "--env", "A=B")
    kubectl.apply(pod("shares", containers=[{"name": "c", "image": "pool/alias", "command": ["sleep", "1000"]}]))
    disk = {"name": "disk", "image": {"reference": "pool/alias"}}
    kubectl.apply(pod("mounts", volumes=[disk]))
    refusal = image.fails("rm", "pool/alias:latest")
    assert "pool/alias:latest is in use by pod default/mounts, pod default/shares" in refusal
    assert "Delete these Pods" in refusal
    assert "comes with VirtFleet" in image.fails("rm", "host")
    kubectl("delete", "pod", "shares", "mounts", "--grace-period=0", "--force")
    assert eventually(lambda: image("rm", "pool/alias")) == {"removed": "pool/alias:latest"}
    assert "pool/alias:latest" not in [i["name"] for i in image("ls")]


@pytest.mark.skipif(not os.path.exists("/bin/busybox"), reason="the image is made of busybox")
def test_archives_of_both_forms_are_imported_and_run(local: Cluster, tmp_path: Path) -> None:
    image, kubectl = Commands(local, "image"), Kubectl(local)
    files = {"bin": None, "bin/busybox": Path("/bin/busybox").read_bytes(), "data": b"of the archive"}
    layout = oci_layout(tmp_path / "layout", [layer(files)], {"Env": ["GREETING=hi"], "Cmd": ["/bin/busybox", "true"]})
    for form in ("oci-archive", "docker-archive"):
        archive, name = tmp_path / f"{form}.tar", f"{form}:1"
        target = f"{form}:{archive}" + (":some/name:1" if form == "docker-archive" else "")
        subprocess.run(["skopeo", "--insecure-policy", "copy", "-q", f"oci:{layout}", target], check=True, timeout=60)
        assert image("import", str(archive), name)["env"] == ["GREETING=hi"]
        script = "echo $GREETING $(/bin/busybox cat /data) $(/bin/busybox ls /)"
        said = finished(kubectl, form, name, ["/bin/busybox", "sh", "-c", script]).split()
        assert said[:4] == ["hi", "of", "the", "archive"]
        assert "usr" not in said, "nothing of the machine is in it"


def test_what_is_no_image_is_said(local: Cluster, tmp_path: Path) -> None:
    image = Commands(local, "image")
    (tmp_path / "letter.txt").write_text("dear reader")
    assert "letter.txt: not an image archive" in image.fails("import", str(tmp_path / "letter.txt"), "x:1")
    assert "there is no image none:latest" in image.fails("derive", "x:1", "--from", "none")
    assert "SRC:DST" in image.fails("derive", "x:1", "--from", "host", "--add", "file")
    assert "there is no image none:latest" in image.fails("rm", "none")
