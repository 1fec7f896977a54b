"""From the version before to this one and back, with guests that run: real components of both versions.

The components of the version before come from its commit, in images whose layers have its sources. Its operator's
manifest is that of tests/versions. A cluster that KUBECONFIG names has these images already, and no VirtFleet
(`make test-kube UPGRADE=1`).
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import virtfleet
from cluster.clusters import KUBECONFIG, VIRTFLEET, Cluster, Kubectl, start_local, stop_local
from versions import before
from virtfleet.local import stock
from virtfleet.local.node.hostimage import COMPONENTS, open_store
from vm import kubehome
from vm.accessed import NO_QUESTIONS, Used
from vm.guests import PATIENCE
from waiting import eventually

ROOT = Path(__file__).parents[2]
BEFORE, NOW = before.VERSION, virtfleet.__version__
SLOW = 4 * PATIENCE
_VERSION = "app.kubernetes.io/version"
_HYPERVISOR = "cat /proc/[0-9]*/stat | grep '(qemu-system'"
NODES = "nodes: [{name: a}, {name: b}]"
KUBEVIRT = {
    "apiVersion": "kubevirt.io/v1",
    "kind": "KubeVirt",
    "metadata": {"name": "kubevirt", "namespace": "kubevirt"},
    "spec": {"configuration": {"developerConfiguration": {"useEmulation": True}}},
}

pytestmark = [pytest.mark.timeout(1500), pytest.mark.both_homes, before.NEEDED]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A Kubernetes with the images of both versions, and the version before installed on it."""
    if os.geteuid() != 0:
        pytest.skip("nodes run real containers, which needs root")
    made = Cluster(Path(KUBECONFIG)) if KUBECONFIG else start_local(NODES)
    try:
        if made.data:
            _provide(made.data / "images", tmp_path_factory.mktemp("before"))
        admin = Kubectl(made, "kubevirt")
        install(admin, BEFORE)
        admin("wait", "crd/kubevirts.kubevirt.io", "--for=condition=Established", "--timeout=60s")
        admin.apply(KUBEVIRT)
        eventually(lambda: is_at(admin, BEFORE), SLOW)
        yield made
    finally:
        if made.data:
            stop_local(made)
        else:
            kubehome.uninstall(Kubectl(made, "kubevirt"))


def _provide(images: Path, scratch: Path) -> None:
    source = before.sources(scratch)
    store = open_store(images)
    path = {"PYTHONPATH": "/opt/before:/opt/virtfleet/lib"}
    for component in COMPONENTS:
        name = f"virtfleet/{component}"
        store.derive(f"{name}:{BEFORE}", f"{name}:{NOW}", [(source, "/opt/before/virtfleet")], path)
    asyncio.run(stock.fill(images, print))


def install(admin: Kubectl, version: str) -> None:
    manifest = before.manifest() if version == BEFORE else (ROOT / "deploy/operator.yaml").read_text()
    admin("apply", "-f", "-", stdin=manifest)


def back(admin: Kubectl) -> None:
    """To the version before, as docs/operations.md says."""
    install(admin, BEFORE)
    if KUBECONFIG:  # a defect of its operator, which the local home does not call forth
        handlers = ("get", "daemonset", "virt-handler")
        eventually(lambda: admin.json(*handlers)["metadata"]["labels"][_VERSION] == BEFORE, SLOW)
        admin("delete", "clusterroles", "-l", f"app.kubernetes.io/managed-by=virt-operator,{_VERSION}={NOW}")
    eventually(lambda: is_at(admin, BEFORE), SLOW)


def is_at(admin: Kubectl, version: str) -> bool:
    """Whether everything that is installed is of the version, and works."""
    kubevirt = admin.json("get", "kubevirt", "kubevirt")
    status = kubevirt.get("status") or {}
    told = {c["type"]: c["status"] for c in status.get("conditions", ())}
    nodes = admin.json("get", "nodes")["items"]
    serving = {node["metadata"].get("annotations", {}).get("virtfleet.io/handler-version") for node in nodes}
    versions = {status.get("operatorVersion"), status.get("observedKubeVirtVersion")}
    wanted = {"Available": "True", "Progressing": "False", "Degraded": "False"}
    return serving == versions == {version} and wanted.items() <= told.items()


def versions(admin: Kubectl) -> list[str]:
    """Of the handlers that serve nodes."""
    nodes = admin.json("get", "nodes")["items"]
    return [node["metadata"].get("annotations", {}).get("virtfleet.io/handler-version", "") for node in nodes]


def held(admin: Kubectl) -> dict[str, Any]:
    """What no version may touch: who signs certificates, in which versions objects are stored, what is asked for."""
    secrets = {s["metadata"]["name"]: s["data"] for s in admin.json("get", "secrets")["items"]}
    stored = {d["metadata"]["name"]: d["status"]["storedVersions"] for d in admin.json("get", "crds")["items"]}
    authorities = {name: data for name, data in secrets.items() if "ca" in name}
    assert authorities and stored
    return {**authorities, **stored, "KubeVirt": admin.json("get", "kubevirt", "kubevirt")["spec"]}


class Guest:
    """The VM `web` in a namespace of its own, and what must not change about it."""

    def __init__(self, used: Used) -> None:
        self.used = used
        self.boot = self.boot_id()
        self.process = self._process()

    def boot_id(self) -> str:
        ssh = (VIRTFLEET, "ssh", "-n", self.used.namespace, "root@web", "-i", str(self.used.key), *NO_QUESTIONS)

        def answered() -> str:
            done = self.used.run(*ssh, "cat /proc/sys/kernel/random/boot_id")
            return done.stdout if done.returncode == 0 else ""

        return eventually(answered, PATIENCE)

    def vmi(self) -> dict[str, Any]:
        found = self.used.vmi()
        assert found
        return found

    def goes_on(self) -> None:
        """The same process in the same Pod, which its handler serves and can command."""
        assert self._process() == self.process
        assert self.boot_id() == self.boot
        assert self.vmi()["status"]["phase"] == "Running"
        self.used.answers_what_is_typed(VIRTFLEET, "console", "web", "-n", self.used.namespace)
        for verb, paused in (("pause", True), ("unpause", False)):
            self.used.does(VIRTFLEET, verb, "-n", self.used.namespace, "web")
            eventually(lambda paused=paused: self.used.condition("Paused") is paused, PATIENCE)

    def _process(self) -> tuple[str, int, str]:
        """QEMU's: its Pod, its number in there, and when it was started, in ticks of the machine."""
        [pod] = self.vmi()["status"]["activePods"]
        pods = self.used.kubectl.json("get", "pods", "-l", "kubevirt.io=virt-launcher")["items"]
        [name] = [p["metadata"]["name"] for p in pods if p["metadata"]["uid"] == pod]
        [line] = self.used.kubectl("exec", name, "-c", "compute", "--", "sh", "-c", _HYPERVISOR).splitlines()
        number, _, rest = line.partition(" ")
        return pod, int(number), rest.rpartition(")")[2].split()[19]


def test_upgrade_roll_back_and_roll_back_halfway_with_guests_that_run(
    cluster: Cluster, tmp_path_factory: pytest.TempPathFactory
) -> None:
    admin = Kubectl(cluster, "kubevirt")
    with Used(cluster, "older", tmp_path_factory.mktemp("older")) as first:
        old, ours = Guest(first), held(admin)
        old.goes_on()

        def untouched() -> None:
            now = held(admin)
            assert {name: now.get(name) for name in ours} == ours

        assert old.vmi()["status"]["launcherContainerImageVersion"].endswith(f":{BEFORE}")

        # To this version: nothing moves, and the new handlers serve launchers of the version before.
        install(admin, NOW)
        eventually(lambda: is_at(admin, NOW), SLOW)
        old.goes_on()
        eventually(lambda: "kubevirt.io/outdatedLauncherImage" in old.vmi()["metadata"]["labels"], PATIENCE)
        mobility = {c["type"]: c for c in old.vmi()["status"]["conditions"]}["LiveMigratable"]
        assert (mobility["status"], "from before VMs could move" in mobility["message"]) == ("False", True), mobility
        refused = first.run(VIRTFLEET, "migrate", "-n", "older", "web", "--watch")
        assert refused.returncode and "restart the VM" in refused.stderr, refused
        untouched()

        with Used(cluster, "newer", tmp_path_factory.mktemp("newer")) as second:
            new = Guest(second)
            assert new.vmi()["status"]["launcherContainerImageVersion"].endswith(f":{NOW}")

            # Back: handlers of the version before serve launchers of this one.
            back(admin)
            old.goes_on()
            new.goes_on()
            untouched()

            # And back again when the first handlers are new.
            install(admin, NOW)
            eventually(lambda: {*versions(admin)} == {BEFORE, NOW}, SLOW)
            back(admin)
            old.goes_on()
            new.goes_on()
            untouched()
