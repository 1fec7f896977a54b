"""An installation under its administrator's hands: nothing is refused while virt-api moves, nothing stays behind."""

from __future__ import annotations

import threading
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from cluster.clusters import Cluster, Kubectl
from cluster.manifests import FOREVER, IMAGE
from cluster.rawapi import RawApi
from docblocks import following, run, shown
from vm import kubehome
from vm.reader import environment
from vm.trouble.fleet import tiny
from waiting import eventually

PATIENCE = 240.0
# What VirtFleet has on a node. The kubelet made these directories, and they stay, empty.
DIRECTORIES = ("/var/run/kubevirt", "/var/run/kubevirt-private", "/var/lib/kubevirt-node-labeller")

# What a local node's agent says of itself, whatever is installed.
OF_THE_LOCAL_HOME = ("virtfleet.io/agent", "virtfleet.io/nodes-file", "virtfleet.io/image-volumes")

# Images are here under their own names.
REGISTRY = {"registry.example/virtfleet": "virtfleet"}

pytestmark = [pytest.mark.timeout(600), pytest.mark.alone]


class Load:
    """Users who do not stop asking virt-api: for a VM to be admitted, and by way of the aggregated API."""

    ADMITTED = "/apis/kubevirt.io/v1/namespaces/default/virtualmachineinstances?dryRun=All"
    AGGREGATED = "/apis/subresources.kubevirt.io/v1/version"

    def __init__(self, cluster: Cluster) -> None:
        self._kubeconfig = cluster.kubeconfig
        self._stop = threading.Event()
        self.answers: Counter[str] = Counter()
        self._users = [threading.Thread(target=self._ask) for _ in range(4)]

    def __enter__(self) -> Load:
        for user in self._users:
            user.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for user in self._users:
            user.join()

    def _ask(self) -> None:
        raw = RawApi(self._kubeconfig)
        while not self._stop.is_set():
            for request in (("POST", self.ADMITTED, tiny("asked")), ("GET", self.AGGREGATED)):
                try:
                    answer = raw(*request)
                    said = str(answer.code) if answer.code < 300 else f"{answer.code}: {answer.body[:300]!r}"
                except OSError as error:
                    said = repr(error)
                self.answers[said] += 1


def test_no_request_fails_while_a_virt_api_is_replaced(fleet: Cluster) -> None:
    admin = Kubectl(fleet, "kubevirt")

    def ready() -> set[str]:
        pods = admin.json("get", "pods", "-l", "kubevirt.io=virt-api")["items"]
        conditions = {p["metadata"]["name"]: p["status"].get("conditions", ()) for p in pods}
        return {name for name, of in conditions.items() if ("Ready", "True") in {(c["type"], c["status"]) for c in of}}

    eventually(lambda: len(ready()) == 2, PATIENCE)
    going = min(ready())
    with Load(fleet) as load:
        eventually(lambda: load.answers["200"] > 20, PATIENCE)
        admin("delete", "pod", going, "--timeout=60s")
        eventually(lambda: len(ready() - {going}) == 2, PATIENCE)
    assert set(load.answers) == {"200", "201"}, load.answers
    assert load.answers.total() > 100


def ours(node: dict[str, Any]) -> list[str]:
    """Labels and annotations of VirtFleet on a node."""
    meta = node["metadata"]
    keys = (*meta["labels"], *(meta.get("annotations") or ()))
    known = OF_THE_LOCAL_HOME if OF_THE_LOCAL_HOME[0] in keys else ()
    return [key for key in keys if ("kubevirt.io" in key or "virtfleet.io" in key) and key not in known]


def left_in_directories(fleet: Cluster, node: str) -> str:
    """Files in the node's directories, as a Pod sees them."""
    container = {
        "name": "look",
        "image": IMAGE,
        "command": FOREVER,
        "volumeMounts": [{"name": f"d{n}", "mountPath": f"/look/{n}"} for n in range(len(DIRECTORIES))],
    }
    volumes = [
        {"name": f"d{n}", "hostPath": {"path": path, "type": "DirectoryOrCreate"}} for n, path in enumerate(DIRECTORIES)
    ]
    spec = {"nodeName": node, "containers": [container], "volumes": volumes, "terminationGracePeriodSeconds": 1}
    kubectl = Kubectl(fleet)
    kubectl.apply({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "look"}, "spec": spec})
    try:
        kubectl("wait", "pod/look", "--for=condition=Ready", "--timeout=60s")
        return kubectl("exec", "look", "--", "/usr/bin/find", "/look", "-mindepth", "2")
    finally:
        kubectl("delete", "pod", "look", "--now")


def test_uninstalling_leaves_nothing_on_nodes(fleet: Cluster, tmp_path: Path) -> None:
    admin = Kubectl(fleet, "kubevirt")
    assert all(ours(node) for node in admin.json("get", "nodes")["items"])
    assert "handler.lock" in left_in_directories(fleet, fleet.nodes[0])
    kubevirt = admin.json("get", "kubevirt", "kubevirt")
    reader = environment(fleet, tmp_path)
    run(shown(__file__, "virtfleet uninstall"), tmp_path, reader)
    try:
        assert [key for node in admin.json("get", "nodes")["items"] for key in ours(node)] == []
        assert {node: left_in_directories(fleet, node) for node in fleet.nodes} == dict.fromkeys(fleet.nodes, "")
        assert admin("get", "namespace,crd", "-l", "app.kubernetes.io/part-of", "-o", "name") == ""
    finally:
        try:
            with following(shown(__file__, "virtfleet install"), tmp_path, reader, REGISTRY, PATIENCE) as step:
                step()
        finally:  # also for the tests that follow
            spec = {key: kubevirt[key] for key in ("apiVersion", "kind", "spec")}
            admin.apply({**spec, "metadata": {"name": "kubevirt"}})
            kubehome.wait_until_available(admin)
