"""`kubectl drain` of a node that runs ten VMs: it ends with every guest running elsewhere, and none was restarted.

Guests count on their serial ports; that a count goes on in the next Pod, from where it was, is the proof.
upstream-defects: a drain ends only when every guest runs elsewhere (kubermatic#14449, CAPK#392).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from cluster.clusters import KUBECONFIG, Cluster, Kubectl
from component.moving import SLOWLY, image
from docblocks import following, run, shown
from vm import kubehome
from vm.guests import PATIENCE
from vm.reader import environment
from vm.trouble.fleet import Fleet, import_disk, machine, tiny
from waiting import eventually

NAMESPACE, IMAGE = "drained", "virtfleet/disk:counts-slowly"
VMS = 10
LONGEST = 600.0

pytestmark = [
    pytest.mark.timeout(1500),
    pytest.mark.alone,
    pytest.mark.thorough("it moves ten guests, and others drain a node as well"),
]


class Drained:
    """VMs `vm0`, `vm1`... and the node on which they are."""

    def __init__(self, fleet: Cluster) -> None:
        self.fleet, self.kubectl = fleet, Kubectl(fleet, NAMESPACE)
        self.names = [f"vm{i}" for i in range(VMS)]

    def start(self) -> str:
        """The node, when all guests run there."""
        self.kubectl("create", "namespace", NAMESPACE)
        self.kubectl.apply(_vm(self.names[0]))
        here: str = eventually(lambda: self.vmis()[0]["status"].get("nodeName"), PATIENCE)
        with self.only(here):
            self.kubectl.apply(*map(_vm, self.names[1:]))
            eventually(lambda: [vmi["status"]["phase"] for vmi in self.vmis()] == ["Running"] * VMS, LONGEST)
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

    def vmis(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.kubectl.json("get", "vmi")["items"]
        return sorted(found, key=lambda vmi: str(vmi["metadata"]["name"]))

    def counts(self, vmi: dict[str, Any]) -> list[int]:
        """What the guest has counted in the Pod in which it is, as soon as it has."""
        [uid] = vmi["status"]["activePods"]
        pods = self.kubectl.json("get", "pods", "-l", f"kubevirt.io/created-by={vmi['metadata']['uid']}")["items"]
        [pod] = [pod["metadata"]["name"] for pod in pods if pod["metadata"]["uid"] == uid]

        log = f"/var/run/kubevirt-private/{vmi['metadata']['uid']}/virt-serial0-log"

        def counted() -> list[int]:
            said = self.kubectl("exec", pod, "-c", "compute", "--", "/bin/cat", log)
            return [int(count, 16) for count in re.findall(r"^([0-9a-f]{8})$", said, re.MULTILINE)]

        return eventually(counted, PATIENCE)


def test_a_drain_ends_when_every_guest_runs_elsewhere_and_none_was_restarted(fleet: Cluster, tmp_path: Path) -> None:
    import_disk(Fleet(fleet), tmp_path / "counts.tar", IMAGE, image(tmp_path / "disk.img", SLOWLY).read_bytes())
    vms = Drained(fleet)
    here = vms.start()
    try:
        then = vms.vmis()
        before = [vms.counts(vmi)[-1] for vmi in then]
        names = {"node-b": here, "default": NAMESPACE}
        if KUBECONFIG:  # others have Pods there, too
            names["emptydir-data"] = "emptydir-data --force"
        reader = environment(fleet, tmp_path, NAMESPACE)
        with following(shown(__file__, "kubectl drain"), tmp_path, reader, names, LONGEST) as step:
            step()
            step()  # the migrations
        waited = [e for e in vms.kubectl.json("get", "events")["items"] if e["reason"] == "EvacuationWaiting"]
        names["vm3"] = waited[0]["involvedObject"]["name"]
        run(shown(__file__, "kubectl events"), tmp_path, reader, names)
        now = vms.vmis()
        assert [vmi["metadata"]["uid"] for vmi in now] == [vmi["metadata"]["uid"] for vmi in then]
        assert here not in {vmi["status"]["nodeName"] for vmi in now}
        assert {vmi["status"]["phase"] for vmi in now} == {"Running"}
        assert not any(vmi["status"].get("evacuationNodeName") for vmi in now)
        for vmi, was in zip(now, before, strict=True):
            goes_on = vms.counts(vmi)
            assert goes_on[0] > was and goes_on == list(range(goes_on[0], goes_on[-1] + 1)), (was, goes_on)
        moves = vms.kubectl.json("get", "vmim")["items"]
        succeeded = [m["spec"]["vmiName"] for m in moves if m["status"]["phase"] == "Succeeded"]
        assert sorted(succeeded) == vms.names, "each moved once"
    finally:
        vms.kubectl("uncordon", here)
        vms.kubectl("delete", "vm", "--all", "--timeout=85s")
        vms.kubectl("delete", "namespace", NAMESPACE, "--timeout=85s")
        kubehome.wait_until_available(Kubectl(fleet, "kubevirt"))


def _vm(name: str) -> dict[str, Any]:
    root = {"name": "root", "containerDisk": {"image": IMAGE, "imagePullPolicy": "IfNotPresent"}}
    vmi = tiny(name, volumes=[root], evictionStrategy="LiveMigrate", terminationGracePeriodSeconds=0)
    vmi["metadata"] = {"name": name}
    vmi["spec"]["domain"]["devices"]["logSerialConsole"] = True
    return machine(vmi)
