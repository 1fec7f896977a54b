"""A VM that people use: one guest with a web server and ssh, and what they see of it with whichever command."""

from __future__ import annotations

import os
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.request import urlopen

from cluster.clusters import VIRTFLEET, Cluster, Kubectl
from terminal import Terminal
from virtfleet.local import guestimage
from vm.guests import PATIENCE
from waiting import eventually

NO_QUESTIONS = ("-o", "StrictHostKeyChecking=no", "-o", "UserKnownHostsFile=/dev/null")


def holders(pod: dict[str, Any]) -> list[str]:
    """Containers of a launcher Pod that hold images, where some node mounts none as volumes."""
    stay = [each["name"] for each in pod["spec"].get("initContainers", []) if each.get("restartPolicy") == "Always"]
    return [name for name in stay if name.startswith("container-disk-")]


class Used:
    """The VM `web` in a namespace of its own."""

    def __init__(self, fleet: Cluster, namespace: str, home: Path, **domain: Any) -> None:
        self.namespace = namespace
        self.domain = domain
        self.kubectl = Kubectl(fleet, namespace)
        self.key = home / "key"
        self.environment = {**os.environ, "KUBECONFIG": str(fleet.kubeconfig), "HOME": str(home)}

    def __enter__(self) -> Used:
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(self.key)], check=True)
        self.kubectl("create", "namespace", self.namespace)
        vm = a_vm(self.key.with_suffix(".pub").read_text().strip())
        vm["spec"]["template"]["spec"]["domain"] |= self.domain
        self.adapt(vm)
        self.kubectl.apply(vm)
        self.wait_for_agent()
        return self

    def adapt(self, vm: dict[str, Any]) -> None:
        """For those who want something else of it."""

    def __exit__(self, *_: object) -> None:
        # A namespace that is to end with VMs in it takes a namespace controller half a minute.
        self.kubectl("delete", "vm", "--all", "--timeout=80s")
        self.kubectl("delete", "namespace", self.namespace, "--wait=false")

    def run(self, *command: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command, capture_output=True, text=True, timeout=90, env=self.environment, stdin=subprocess.DEVNULL
        )

    def does(self, *command: str) -> str:
        """Standard output of a command that must succeed."""
        done = self.run(*command)
        assert done.returncode == 0, f"{' '.join(command)}: {done.stderr or done.stdout}"
        return done.stdout

    def in_guest(self, command: str, vm: str = "web") -> str:
        """What a command says in the guest that ends well, over its network.

        One connection serves many commands: each costs an emulated guest a second of arithmetic. Whoever carries it
        must not hold on to what the first command writes to.
        """
        carried = f"ProxyCommand={VIRTFLEET} ssh --proxy --namespace {self.namespace} %h 2>/dev/null"
        alive = ("-o", "ServerAliveInterval=3", "-o", "ServerAliveCountMax=2")
        shared = ("-o", "ControlMaster=auto", "-o", "ControlPersist=yes", "-o", f"ControlPath={self.key.parent / vm}")
        ssh = ("ssh", "-i", str(self.key), *NO_QUESTIONS, *alive, *shared, "-o", carried, f"root@{vm}")

        def ended_well() -> subprocess.CompletedProcess[str] | None:
            done = self.run(*ssh, command)
            return None if done.returncode else done

        return eventually(ended_well, PATIENCE).stdout

    def boot_id(self, vm: str = "web") -> str:
        return self.in_guest("cat /proc/sys/kernel/random/boot_id", vm)

    def vmi(self) -> dict[str, Any] | None:
        there: list[dict[str, Any]] = self.kubectl.json("get", "vmi", "--field-selector=metadata.name=web")["items"]
        return there[0] if there else None

    def vm(self) -> dict[str, Any]:
        found: dict[str, Any] = self.kubectl.json("get", "vm", "web")
        return found

    def condition(self, kind: str) -> bool:
        vmi = self.vmi() or {"status": {}}
        return any(c["type"] == kind and c["status"] == "True" for c in vmi["status"].get("conditions", ()))

    def runs(self, *, other_than: str = "", within: float = PATIENCE) -> str:
        """The UID of the VMI as soon as it runs and is not the one that was before."""

        def uid() -> str:
            vmi = self.vmi()
            running = vmi and vmi["status"].get("phase") == "Running" and vmi["metadata"]["uid"] != other_than
            return vmi["metadata"]["uid"] if vmi and running else ""

        return eventually(uid, within)

    def wait_for_agent(self) -> None:
        """Until the guest has booted far enough to answer."""
        eventually(lambda: self.condition("AgentConnected"), 2 * PATIENCE)

    def hello(self, port: int) -> str:
        """What the guest's web server says on a local port, as soon as it does."""

        def fetched() -> str:
            with suppress(OSError), urlopen(f"http://127.0.0.1:{port}/", timeout=10) as answer:
                return answer.read().decode()
            return ""

        return eventually(fetched, PATIENCE)

    @contextmanager
    def beside(self, *command: str) -> Iterator[None]:
        """A command that goes on meanwhile."""
        process = subprocess.Popen(command, env=self.environment, stdin=subprocess.DEVNULL)
        try:
            yield
        finally:
            process.terminate()
            process.wait(20)

    @contextmanager
    def console(self, *command: str) -> Iterator[Terminal]:
        terminal = Terminal(command, self.environment)
        try:
            yield terminal
        finally:
            terminal.close()

    def answers_what_is_typed(self, *command: str) -> None:
        """Type in the guest and read its answer; ^] leaves the console."""
        with self.console(*command) as terminal:
            terminal.says("onnected to")
            terminal.says("guest# ", nudge="\r")
            terminal.type("echo $((6 * 7)) is the answer\r")
            terminal.says("42 is the answer")
            terminal.type("\x1d")
            assert terminal.ended() == 0

    def lets_the_last_one_have_the_console(self, *command: str, reason: str) -> None:
        """The one who was there before is told why it is over."""
        with self.console(*command) as first:
            first.says("onnected to")
            self.answers_what_is_typed(*command)
            first.says("Another user has connected to this console")
            assert first.ended() == 1
            assert reason in first.shown


def greeting(port: int) -> bytes:
    """The first bytes that a server on a local port sends."""
    with socket.create_connection(("127.0.0.1", port), timeout=30) as connection:
        return connection.recv(12)


def a_vm(public_key: str) -> dict[str, Any]:
    disks = [{"name": name, "disk": {"bus": "virtio"}} for name in ("root", "seed")]
    spec = {
        "terminationGracePeriodSeconds": 5,
        "domain": {
            "memory": {"guest": "128Mi"},
            "devices": {"rng": {}, "disks": disks, "interfaces": [{"name": "default", "masquerade": {}}]},
        },
        "networks": [{"name": "default", "pod": {}}],
        "volumes": [
            {"name": "root", "containerDisk": {"image": guestimage.IMAGE, "imagePullPolicy": "IfNotPresent"}},
            {
                "name": "seed",
                "cloudInitNoCloud": {"userData": f"#cloud-config\nssh_authorized_keys:\n- {public_key}\n"},
            },
        ],
    }
    return {
        "apiVersion": "kubevirt.io/v1",
        "kind": "VirtualMachine",
        "metadata": {"name": "web"},
        "spec": {"runStrategy": "Always", "template": {"spec": spec}},
    }
