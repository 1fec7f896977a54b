"""`kubectl drain` of a node that runs VMs: it ends with every guest running elsewhere, and none was restarted.

Guests count; that a count goes on under the same boot id is the proof.
"""

from __future__ import annotations

import os
import re
import socket
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple
from urllib.request import urlopen

import pytest

from cluster.clusters import VIRTFLEET, Cluster, Kubectl
from virtfleet.local import guestimage
from vm import kubehome
from vm.guests import PATIENCE, user_data
from waiting import eventually

NAMESPACE = "drained"
LONGEST = 600.0
COUNT = "(n=0; while :; do n=$((n+1)); echo $(cat /proc/sys/kernel/random/boot_id) $n >/www/count; sleep 1; done) &"

pytestmark = pytest.mark.timeout(1500)


class Count(NamedTuple):
    """How far a guest has counted, since which boot."""

    boot: str
    number: int


class Drained:
    """VMs `vm0`, `vm1`... and the node on which they are."""

    def __init__(self, fleet: Cluster, count: int) -> None:
        self.fleet, self.kubectl = fleet, Kubectl(fleet, NAMESPACE)
        self.names = [f"vm{i}" for i in range(count)]

    def start(self) -> str:
        """The node, when all guests count there."""
        self.kubectl("create", "namespace", NAMESPACE)
        self.kubectl.apply(_vm(self.names[0]))
        here: str = eventually(lambda: self.vmi(self.names[0])["status"].get("nodeName"), PATIENCE)
        with self.only(here):
            if others := self.names[1:]:
                self.kubectl.apply(*map(_vm, others))
            eventually(lambda: [self.vmi(name)["status"]["nodeName"] for name in self.names], LONGEST)
        eventually(lambda: all(self.vmi(name)["status"]["phase"] == "Running" for name in self.names), LONGEST)
        return here

    @contextmanager
    def only(self, node: str) -> Iterator[None]:
        """Let nothing new come to any other node."""
        others = [name for name in self.fleet.nodes if name != node]
        self.kubectl("cordon", *others)
        try:
            yield
        finally:
            self.kubectl("uncordon", *others)

    def vmi(self, name: str) -> dict[str, Any]:
        found: dict[str, Any] = self.kubectl.json("get", "vmi", name)
        return found

    def counts(self) -> list[Count]:
        with ThreadPoolExecutor(4) as pool:
            return list(pool.map(self._count, self.names))

    def _count(self, name: str) -> Count:
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        environment = {**os.environ, "KUBECONFIG": str(self.fleet.kubeconfig)}
        forward = [VIRTFLEET, "port-forward", "-n", NAMESPACE, name, f"{port}:80"]
        process = subprocess.Popen(forward, env=environment, stdout=subprocess.DEVNULL)

        def said() -> Count | None:
            with suppress(OSError), urlopen(f"http://127.0.0.1:{port}/count", timeout=10) as answer:
                boot, number = answer.read().decode().split()
                return Count(boot, int(number))
            return None

        try:
            return eventually(said, 2 * PATIENCE)
        finally:
            process.terminate()
            process.wait(20)

    def drain(self, node: str) -> subprocess.CompletedProcess[str]:
        how = ("--ignore-daemonsets", "--delete-emptydir-data", "--force", f"--timeout={LONGEST:.0f}s")
        return subprocess.run(
            self.kubectl.command("drain", node, *how), capture_output=True, text=True, timeout=LONGEST + 30
        )


@pytest.mark.parametrize(
    "count",
    [
        4,
        pytest.param(10, marks=pytest.mark.on_demand("VIRTFLEET_DRAIN_TEN", "ten guests at once, which takes minutes")),
    ],
)
def test_a_drain_ends_when_every_guest_runs_elsewhere_and_none_was_restarted(fleet: Cluster, count: int) -> None:
    vms = Drained(fleet, count)
    here = vms.start()
    try:
        before, uids = vms.counts(), [vms.vmi(name)["metadata"]["uid"] for name in vms.names]
        done = vms.drain(here)
        assert done.returncode == 0, done.stdout + done.stderr
        assert re.search(r'Eviction triggered evacuation of VMI "drained/vm\d+"', done.stderr), done.stderr
        there = [vms.vmi(name) for name in vms.names]
        assert [vmi["metadata"]["uid"] for vmi in there] == uids
        assert here not in {vmi["status"]["nodeName"] for vmi in there}
        assert {vmi["status"]["phase"] for vmi in there} == {"Running"}
        assert not any(vmi["status"].get("evacuationNodeName") for vmi in there)
        after = vms.counts()
        assert [count.boot for count in after] == [count.boot for count in before]
        assert all(then.number < now.number for then, now in zip(before, after, strict=True)), (before, after)
        moves = vms.kubectl.json("get", "vmim")["items"]
        done_ = [m["spec"]["vmiName"] for m in moves if m["status"]["phase"] == "Succeeded"]
        assert sorted(done_) == sorted(vms.names), "each moved once"
    finally:
        vms.kubectl("uncordon", here)
        vms.kubectl("delete", "vm", "--all", "--timeout=85s")
        vms.kubectl("delete", "namespace", NAMESPACE, "--timeout=85s")
        kubehome.wait_until_available(Kubectl(fleet, "kubevirt"))


def _vm(name: str) -> dict[str, Any]:
    volumes = [
        {"name": "root", "containerDisk": {"image": guestimage.IMAGE, "imagePullPolicy": "IfNotPresent"}},
        user_data(COUNT),
    ]
    devices = {
        "rng": {},
        "autoattachGraphicsDevice": False,
        "disks": [{"name": volume["name"], "disk": {"bus": "virtio"}} for volume in volumes],
        "interfaces": [{"name": "default", "masquerade": {}}],
    }
    spec = {
        "evictionStrategy": "LiveMigrate",
        "terminationGracePeriodSeconds": 0,
        "domain": {"memory": {"guest": "96Mi"}, "devices": devices},
        "networks": [{"name": "default", "pod": {}}],
        "volumes": volumes,
    }
    return {
        "apiVersion": "kubevirt.io/v1",
        "kind": "VirtualMachine",
        "metadata": {"name": name},
        "spec": {"runStrategy": "Always", "template": {"spec": spec}},
    }
