"""From the version before to this one and back, with guests that run: real components of both versions.

The components of the version before come from its commit, in images whose layers have its sources. Its operator's
manifest is that of tests/versions. A cluster that KUBECONFIG names has these images already, and no VirtFleet
(`make test-kube UPGRADE=1`).
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterator
from itertools import zip_longest
from pathlib import Path
from typing import Any

import pytest

import virtfleet
from cluster.clusters import KUBECONFIG, VIRTFLEET, Cluster, Kubectl, start_local, stop_local
from docblocks import Block, following, shown
from versions import before
from virtfleet.local import stock
from virtfleet.local.node.hostimage import COMPONENTS, open_store
from vm import kubehome
from vm.accessed import Used
from vm.guests import PATIENCE
from vm.reader import environment
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


class Page:
    """docs/operations.md, followed."""

    def __init__(self, admin: Kubectl, directory: Path) -> None:
        self._admin, self._directory = admin, directory
        (directory / "operator.yaml").write_text((ROOT / "deploy/operator.yaml").read_text())
        (directory / f"operator-{BEFORE}.yaml").write_text(before.manifest())

    def does(self, block: Block, *between: Callable[[], object], namespace: str = "default") -> None:
        """A block, and something after each of its first commands."""
        reader = environment(self._admin.cluster, self._directory, namespace)
        with following(block, self._directory, reader, {"0.1.0": BEFORE, "0.2.0": NOW}) as step:
            for after, _ in zip_longest(between, block.steps):
                step()
                if after:
                    after()

    def back(self) -> None:
        """To the version before."""

        def handlers_of_before() -> bool:
            handlers = self._admin.json("get", "daemonset", "virt-handler")
            return bool(handlers["metadata"]["labels"][_VERSION] == BEFORE)

        rolled_back = shown(__file__, "kubectl apply --server-side --force-conflicts -f operator-0.1.0.yaml")
        self.does(rolled_back, lambda: eventually(handlers_of_before, SLOW))
        eventually(lambda: is_at(self._admin, BEFORE), SLOW)


def install(admin: Kubectl, version: str) -> None:
    manifest = before.manifest() if version == BEFORE else (ROOT / "deploy/operator.yaml").read_text()
    admin("apply", "-f", "-", stdin=manifest)


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
        self.boot = self.used.boot_id()
        self.process = self._process()

    def vmi(self) -> dict[str, Any]:
        found = self.used.vmi()
        assert found
        return found

    def goes_on(self) -> None:
        """The same process in the same Pod, which its handler serves and can command."""
        assert self._process() == self.process
        assert self.used.boot_id() == self.boot
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
    page = Page(admin, tmp_path_factory.mktemp("page"))
    with Used(cluster, "older", tmp_path_factory.mktemp("older")) as first:
        old, ours = Guest(first), held(admin)
        old.goes_on()

        def untouched() -> None:
            now = held(admin)
            assert {name: now.get(name) for name in ours} == ours

        assert old.vmi()["status"]["launcherContainerImageVersion"].endswith(f":{BEFORE}")

        # To this version: nothing moves, and the new handlers serve launchers of the version before.
        upgraded = shown(__file__, "kubectl apply --server-side --force-conflicts -f operator.yaml")
        page.does(upgraded, lambda: eventually(lambda: is_at(admin, NOW), SLOW))
        old.goes_on()
        eventually(lambda: "kubevirt.io/outdatedLauncherImage" in old.vmi()["metadata"]["labels"], PATIENCE)
        page.does(shown(__file__, "kubectl get vmi"), namespace="older")
        refused = first.run(VIRTFLEET, "migrate", "-n", "older", "web", "--watch")
        assert refused.returncode and "restart the VM" in refused.stderr, refused
        untouched()

        with Used(cluster, "newer", tmp_path_factory.mktemp("newer")) as second:
            new = Guest(second)
            assert new.vmi()["status"]["launcherContainerImageVersion"].endswith(f":{NOW}")

            # Back: handlers of the version before serve launchers of this one.
            page.back()
            old.goes_on()
            new.goes_on()
            untouched()

            # And back again when the first handlers are new.
            install(admin, NOW)
            eventually(lambda: {*versions(admin)} == {BEFORE, NOW}, SLOW)
            page.back()
            old.goes_on()
            new.goes_on()
            untouched()
