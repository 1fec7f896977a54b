"""VirtFleet on a Kubernetes that others made: installed as docs/install.md says, with what examples need, and removed.

Its nodes have the images already (`make test-kube` sees to that). Three of them play those of examples/nodes.yaml.
As a program it installs VirtFleet for as long as the command runs that it is given: for several processes that test.
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from cluster.clusters import KUBECONFIG, VIRTFLEET, Cluster, Kubectl
from cluster.manifests import workload
from virtfleet import __version__
from virtfleet.kube.deviceplugin import DIRECTORY
from virtfleet.local.node import pretend
from vm.kubestorage import Storage
from waiting import eventually

ROOT = Path(__file__).parents[2]
MANIFEST, KUBEVIRT = ROOT / "deploy/operator.yaml", ROOT / "examples/kubevirt.yaml"
CANARY, SPECIAL = "fleet.example/ring", "superduper.io/megaslop"
DEVICE = "superduper.io/MegaSlop_9000"
HELPERS = "virtfleet-tests"  # the namespace of what is here for the tests alone
PATIENCE = 300.0
SHARED = "VIRTFLEET_INSTALLED"  # set where VirtFleet is there already, for other tests as well


@contextmanager
def installed(cluster: Cluster) -> Iterator[Cluster]:
    """VirtFleet with the pools of the examples."""
    kubectl = Kubectl(cluster, "kubevirt")
    assert len(cluster.nodes) >= 3, f"the tests need three nodes; {cluster.kubeconfig} has {cluster.nodes}"
    _, canary, special = cluster.nodes[:3]
    try:
        kubectl("label", "node", canary, f"{CANARY}=canary", "--overwrite")
        kubectl("label", "node", special, f"{SPECIAL}=true", "--overwrite")
        kubectl("create", "namespace", HELPERS)
        Kubectl(cluster, HELPERS).apply(*_devices(special))
        with Storage(cluster, HELPERS).serving():
            install(kubectl)
            eventually(lambda: DEVICE in kubectl.json("get", "node", special)["status"]["allocatable"], PATIENCE)
            yield cluster
    finally:
        uninstall(kubectl)
        kubectl("label", "node", canary, f"{CANARY}-")
        kubectl("label", "node", special, f"{SPECIAL}-")
        kubectl("delete", "namespace", HELPERS, "--ignore-not-found", "--timeout=80s")


def virtfleet(kubectl: Kubectl, command: str, *options: str) -> dict[str, Any]:
    """What a command about the cluster answers, as data."""
    where = ("--kubeconfig", str(kubectl.cluster.kubeconfig), "-o", "json", f"--timeout={PATIENCE:.0f}")
    done = subprocess.run([VIRTFLEET, command, *where, *options], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def install(kubectl: Kubectl) -> None:
    """As docs/install.md says, and once more, which changes nothing."""
    for _ in range(2):
        assert virtfleet(kubectl, "install", "--kubevirt", str(KUBEVIRT))["health"] == "Healthy"


def wait_until_available(kubectl: Kubectl) -> None:
    """All of it is as the KubeVirt object says, also what has changed in it a moment ago."""

    def settled() -> bool:
        kubevirt = kubectl.json("get", "kubevirt", "kubevirt")
        status = kubevirt.get("status", {})
        conditions = {each["type"]: each["status"] for each in status.get("conditions", ())}
        seen = status.get("observedGeneration") == kubevirt["metadata"]["generation"]
        return seen and conditions.get("Available") == "True" and conditions.get("Progressing") == "False"

    eventually(settled, PATIENCE)


def uninstall(kubectl: Kubectl) -> None:
    """As docs/install.md says: of what the manifest brought nothing is left."""
    virtfleet(kubectl, "uninstall", "--force")
    assert not kubectl("get", "-f", str(MANIFEST), "--ignore-not-found", "-o", "name")
    assert not virtfleet(kubectl, "uninstall")["removed"]  # there is nothing to do any more


def load(archive: Path) -> None:
    """Bring an image to every node, as `make test-kube` was told to."""
    subprocess.run([*shlex.split(os.environ["VIRTFLEET_LOAD"]), str(archive)], check=True, timeout=120)


def _devices(node: str) -> list[dict[str, Any]]:
    """The device plugin of the local cluster's pretend devices, in a Pod."""
    serve = (
        "import asyncio, pathlib, sys; sys.path.insert(0, '/plugin')\n"
        "import pretend\n"
        "async def main():\n"
        f"    async with pretend.PretendPlugin(pathlib.Path('{DIRECTORY}'), '{DEVICE}', 2).serving():\n"
        "        await asyncio.Event().wait()\n"
        "asyncio.run(main())\n"
    )
    code = Path(pretend.__file__).read_text()
    mounts = [{"name": "code", "mountPath": "/plugin"}, {"name": "kubelet", "mountPath": DIRECTORY}]
    container = {
        "name": "plugin",
        "image": f"virtfleet/virt-handler:{__version__}",
        "command": ["/usr/bin/python3", "-c", serve],
        "volumeMounts": mounts,
        "securityContext": {"privileged": True},
    }
    volumes = [{"name": "code", "configMap": {"name": "plugin"}}, {"name": "kubelet", "hostPath": {"path": DIRECTORY}}]
    return [
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "plugin"}, "data": {"pretend.py": code}},
        # Of a DaemonSet, which stays where a node is drained.
        workload(
            "DaemonSet",
            "plugin",
            nodeSelector={"kubernetes.io/hostname": node},
            containers=[container],
            volumes=volumes,
        ),
    ]


if __name__ == "__main__":
    with installed(Cluster(Path(KUBECONFIG))):
        sys.exit(subprocess.run(sys.argv[1:], env=os.environ | {SHARED: "1"}, check=False).returncode)
