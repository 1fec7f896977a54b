"""A local cluster with VirtFleet on it, looked at from outside: its processes, and what it leaves on the machine.

Every process of a container is found by its control group, which names cluster, node and Pod. So nothing of anybody
else on the machine can be hit by a test that kills.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench import processes
from bench.processes import Process
from cluster.clusters import VIRTFLEET, Cluster, Kubectl, start_local, stop_local
from virtfleet.local import directory, supervisor
from virtfleet.local.processes import CONTROL_PLANE, run_control_plane
from vm import kubehome

NODES = ("node-a", "node-b")
COMPONENTS = ("operator", "controller", "gateway", "handler")
LAUNCHER = "launcher"


def kill(process: Process) -> None:
    with suppress(ProcessLookupError):
        os.kill(process.pid, signal.SIGKILL)


@dataclass(frozen=True)
class Fleet:
    """The cluster."""

    cluster: Cluster

    @property
    def data(self) -> Path:
        assert self.cluster.data is not None
        return self.cluster.data

    @property
    def kubectl(self) -> Kubectl:
        return Kubectl(self.cluster)

    # What runs.

    def processes(self) -> list[Process]:
        return processes.of_cluster(self.data)

    def programs(self, name: str) -> list[Process]:
        return [process for process in self.processes() if process.program == name]

    # Disasters.

    def supervised(self, name: str) -> int:
        """Process of an agent, or of the control plane; 0 while it does not run."""
        children = supervisor.ask(self.data, op="status")["children"]
        return next((child["pid"] or 0 for child in children if child["name"] == name), 0)

    def kill_supervised(self, name: str) -> bool:
        if pid := self.supervised(name):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return bool(pid)

    def kill_supervisor(self) -> None:
        """The control plane and all agents end with it; containers do not."""
        with suppress(ProcessLookupError):
            os.kill(supervisor.ask(self.data, op="status")["pid"], signal.SIGKILL)

    def kill_node(self, node: str) -> list[Process]:
        """As if its power had failed: everything that runs there, all at once."""
        self.kill_supervised(node)
        there = [process for process in self.processes() if process.node == node]
        for process in there:
            kill(process)
        return there

    def watched_pod(self, monitor: Process) -> str:
        """UID of the Pod whose container a conmon watches over; empty where it has just ended."""
        with suppress(OSError, ValueError):
            words = Path(f"/proc/{monitor.pid}/cmdline").read_text().split("\0")
            record = json.loads((Path(words[words.index("--bundle") + 1]) / "container.json").read_bytes())
            return str(record["pod"])
        return ""

    def take_api_server_away(self) -> None:
        supervisor.ask(self.data, op="end", name=CONTROL_PLANE, signal=int(signal.SIGKILL))

    def bring_api_server_back(self) -> None:
        run_control_plane(self.data)

    # What is left.

    def remains(self, pods: set[str]) -> list[str]:
        """What is on the machine of Pods other than these, by their UIDs."""
        nodes = self.data / "nodes"
        kubelet, private = "root/var/lib/kubelet/pods", "root/var/run/kubevirt-private"
        return [
            *(f"process {p.program} of pod {p.pod}" for p in self.processes() if p.pod and p.pod not in pods),
            *(f"mount {path}" for path in self._mounts() if not _names_one_of(path, pods)),
            *(f"group {path}" for path in self._groups() if path.name not in pods),
            *(f"{path}" for path in nodes.glob(f"*/{kubelet}/*") if path.name not in pods),
            *(f"{path}" for path in nodes.glob("*/sandboxes/*") if path.name not in pods),
            *(f"{path}" for path in nodes.glob(f"*/{private}/network-info-cache/*") if path.stem not in pods),
            *(f"{path}" for path in nodes.glob(f"*/{private}/ghost-records/*") if path.stem not in pods),
        ]

    def loops(self) -> list[str]:
        """Files of the cluster that loop devices are made of."""
        listed = subprocess.run(["losetup", "-l", "-n", "-O", "BACK-FILE"], capture_output=True, text=True).stdout
        return [file for file in listed.splitlines() if file.startswith(f"{self.data}/")]

    def _mounts(self) -> Iterator[str]:
        """Mounts that belong to some Pod."""
        for line in Path("/proc/self/mounts").read_text().splitlines():
            path = line.split()[1]
            if path.startswith(f"{self.data}/nodes/") and re.search(r"/(pods|sandboxes)/", path):
                yield path

    def _groups(self) -> Iterator[Path]:
        yield from Path("/sys/fs/cgroup").glob(f"*/virtfleet/{directory.cluster_name(self.data)}/*/*-*-*")


def _names_one_of(path: str, uids: set[str]) -> bool:
    return any(part in uids for part in path.split("/"))


@contextmanager
def installed() -> Iterator[Fleet]:
    """A cluster of two nodes with VirtFleet on it, gone afterwards."""
    fleet = Fleet(start_local("nodes: [" + ", ".join(f"{{name: {name}}}" for name in NODES) + "]", "--no-bare"))
    try:
        yield fleet
    finally:
        stop_local(fleet.cluster)


def import_image(fleet: Fleet, archive: Path, name: str) -> None:
    """Bring an image to the nodes, whichever home they have."""
    if fleet.cluster.data is None:
        kubehome.load(archive)
        return
    command = [VIRTFLEET, "image", "import", str(archive), name, "--data", str(fleet.data)]
    subprocess.run(command, capture_output=True, check=True, timeout=120)


def tiny(name: str, memory: str = "64Mi", volumes: Sequence[dict[str, Any]] = (), **spec: Any) -> dict[str, Any]:
    """A VMI that has nothing to boot from: it costs little more than its processes, and lives until it is ended."""
    devices = {
        "disks": [{"name": volume["name"], "disk": {"bus": "virtio"}} for volume in volumes],
        "interfaces": [{"name": "default", "masquerade": {}}],
        "autoattachGraphicsDevice": False,
    }
    return {
        "apiVersion": "kubevirt.io/v1",
        "kind": "VirtualMachineInstance",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {
            "terminationGracePeriodSeconds": 1,
            "domain": {"memory": {"guest": memory}, "devices": devices},
            "networks": [{"name": "default", "pod": {}}],
            "volumes": list(volumes),
            **spec,
        },
    }


def machine(vmi: dict[str, Any], strategy: str = "Always") -> dict[str, Any]:
    """The VM with this VMI as its template."""
    return {
        "apiVersion": "kubevirt.io/v1",
        "kind": "VirtualMachine",
        "metadata": vmi["metadata"],
        "spec": {"runStrategy": strategy, "template": {"metadata": {}, "spec": vmi["spec"]}},
    }
