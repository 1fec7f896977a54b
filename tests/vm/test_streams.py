"""Connections of guests that move: each of them is opened once, and used while its guest goes from node to node.

The network of the local cluster lets a VM keep its address. Where a cluster's network does not, connections end that go
by the Pod's address, which is the network's doing.
"""

from __future__ import annotations

import itertools
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest

from cluster.clusters import VIRTFLEET, Cluster, Kubectl
from vm.guests import PATIENCE, machine, user_data
from waiting import eventually

NAMESPACE = "streams"
MOVES = 10
PORT = 7000
LONGEST = 60.0  # seconds that an answer may take; kernels send again what was lost, at longer and longer intervals

pytestmark = [
    pytest.mark.timeout(900),
    pytest.mark.local_home("whether a VM that moves keeps its address is up to the cluster's network"),
]


class Stream(threading.Thread):
    """One connection to somebody who sends back what he gets. Numbers go there and come back, in their order."""

    def __init__(self, name: str, connection: socket.socket) -> None:
        super().__init__(name=name, daemon=True)
        self.answered = 0
        self.slowest = 0.0
        self.broken = ""
        self._connection = connection
        self._over = threading.Event()

    def run(self) -> None:
        try:
            self._connection.settimeout(LONGEST)
            lines = self._connection.makefile("rb")
            while not self._over.wait(0.02):
                asked = time.monotonic()
                self._connection.sendall(b"%d\n" % self.answered)
                line = lines.readline()
                assert line == b"%d\n" % self.answered, f"{line!r} instead of {self.answered}"
                self.slowest = max(self.slowest, time.monotonic() - asked)
                self.answered += 1
        except (OSError, AssertionError) as error:
            self.broken = f"{self.name}: {error!r}"

    def goes_on(self) -> None:
        """Until something that is sent from now on has come back."""
        wanted = self.answered + 2
        eventually(lambda: self.broken or self.answered >= wanted, LONGEST)
        assert not self.broken

    @contextmanager
    def open(self) -> Iterator[Stream]:
        self.start()
        try:
            yield self
        finally:
            self._over.set()
            self._connection.close()
            self.join()


def vm(name: str, interface: dict[str, Any], *commands: str) -> dict[str, Any]:
    guest = machine([user_data(f"nc -ll -p {PORT} -e cat &", *commands)], terminationGracePeriodSeconds=0)
    guest["spec"]["domain"]["devices"]["interfaces"] = [{"name": "default", **interface}]
    annotations = {"kubevirt.io/allow-pod-bridge-network-live-migration": ""} if "bridge" in interface else {}
    template = {"metadata": {"labels": {"app": name}, "annotations": annotations}, "spec": guest["spec"]}
    template["spec"]["volumes"][0]["containerDisk"]["imagePullPolicy"] = "IfNotPresent"
    return {
        "apiVersion": "kubevirt.io/v1",
        "kind": "VirtualMachine",
        "metadata": {"name": name},
        "spec": {"runStrategy": "Always", "template": template},
    }


def service(name: str) -> dict[str, Any]:
    spec = {"selector": {"app": name}, "ports": [{"port": PORT}]}
    return {"apiVersion": "v1", "kind": "Service", "metadata": {"name": name}, "spec": spec}


def connected(address: str) -> socket.socket:
    """A connection, as soon as somebody answers who reads."""

    def answered() -> socket.socket | None:
        connection = socket.create_connection((address, PORT), timeout=5)
        connection.sendall(b"hello\n")
        if connection.recv(6) == b"hello\n":
            return connection
        connection.close()
        return None

    return eventually(answered, PATIENCE)


def test_connections_live_through_ten_moves(fleet: Cluster) -> None:
    kubectl = Kubectl(fleet, NAMESPACE)
    addresses = kubectl.json("get", "nodes")["items"][0]["status"]["addresses"]
    machine_address = next(a["address"] for a in addresses if a["type"] == "InternalIP")
    kubectl("create", "namespace", NAMESPACE)
    with ExitStack() as stack:
        stack.callback(kubectl, "delete", "namespace", NAMESPACE, "--timeout=80s")
        listener = stack.enter_context(socket.create_server((machine_address, 0)))
        listener.settimeout(4 * PATIENCE)
        call = f"until nc {machine_address} {listener.getsockname()[1]} -e cat; do sleep 1; done &"
        # The masqueraded guest lets one port in, and calls somebody itself: answers come to a port that nobody opened.
        kubectl.apply(
            vm("nat", {"masquerade": {}, "ports": [{"port": PORT}]}, call),
            vm("bridged", {"bridge": {}}),
            service("nat"),
            service("bridged"),
        )
        service_of = {n: kubectl.json("get", "service", n)["spec"]["clusterIP"] for n in ("nat", "bridged")}

        def vmi(name: str) -> dict[str, Any]:
            found: dict[str, Any] = kubectl.json("get", "vmi", name)["status"]
            return found

        for name in service_of:
            eventually(lambda each=name: vmi(each).get("phase") == "Running", 2 * PATIENCE)
        called, _ = listener.accept()
        opened = {
            "masquerade, by a Service": connected(service_of["nat"]),
            "masquerade, opened by the guest": called,
            "bridge, by a Service": connected(service_of["bridged"]),
        }
        own = vmi("bridged")["interfaces"][0]["ipAddress"]
        opened["bridge, by the guest's address"] = connected(own)
        streams = [stack.enter_context(Stream(name, each).open()) for name, each in opened.items()]
        migrate = [VIRTFLEET, "migrate", "-n", NAMESPACE, "--kubeconfig", str(fleet.kubeconfig), "--watch"]
        nodes: dict[str, list[str]] = {name: [vmi(name)["nodeName"]] for name in service_of}
        for _ in range(MOVES):
            both = {name: subprocess.Popen([*migrate, name], stderr=subprocess.PIPE, text=True) for name in nodes}
            for name, moving in both.items():
                said = moving.communicate(timeout=2 * PATIENCE)[1]
                assert moving.returncode == 0, said
                nodes[name].append(vmi(name)["nodeName"])
            for stream in streams:
                stream.goes_on()
        for name, visited in nodes.items():
            assert all(a != b for a, b in itertools.pairwise(visited)), f"{name}: {visited}"
        assert vmi("bridged")["interfaces"][0]["ipAddress"] == own
        sys.stderr.write(f"longest waits for an answer: { {s.name: f'{s.slowest:.2f} s' for s in streams} }\n")
