"""Real network namespaces for tests: who is in one, and who reaches whom."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from component.pod_member import PodGroup
from tests.waiting import eventually
from virtfleet.handler.pods.process import PodProcess

SERVE = """
import socket
server = socket.create_server(("{address}", {port}), family=socket.AF_INET6 if "{address}" else socket.AF_INET)
print("up", flush=True)
while True:
    connection, address = server.accept()
    connection.sendall(address[0].encode())
    connection.close()
"""
ASK = "import socket; s = socket.create_connection(('{host}', {port}), 3); print(s.recv(99).decode())"


POD = "pod-uid"


class Namespace:
    """A network namespace, alive as long as its process, which is one of the Pod `POD`."""

    def __init__(self) -> None:
        self._group = PodGroup(POD)
        self._process = subprocess.Popen(["unshare", "--net", "sleep", "infinity"])
        self._group.add(self._process.pid)
        own = os.readlink("/proc/self/ns/net")
        eventually(lambda: os.readlink(f"/proc/{self._process.pid}/ns/net") != own)
        self.process = PodProcess(self._process.pid, POD)
        self.ip("link set lo up")

    def run(self, *command: str, **options: Any) -> subprocess.CompletedProcess[str]:
        return subprocess.run(self.command(*command), capture_output=True, text=True, timeout=20, **options)

    def command(self, *command: str) -> list[str]:
        return ["nsenter", f"--net=/proc/{self._process.pid}/ns/net", *command]

    def ip(self, *commands: str) -> None:
        done = self.run("ip", "-batch", "-", input="\n".join(commands))
        assert not done.returncode, done.stderr

    def show(self, *command: str) -> str:
        return self.run("ip", *command).stdout

    def links(self) -> list[object]:
        """What is set up, without what the kernel makes of it by and by."""
        changing = ("operstate", "flags", "qdisc")
        links = json.loads(self.show("-json", "-4", "addr")) + json.loads(self.show("-json", "link"))
        return [{key: value for key, value in link.items() if key not in changing} for link in links]

    def ask(self, host: str, port: int) -> str:
        """Who a server says that we are; "" where it cannot be reached."""
        return self.run(sys.executable, "-c", ASK.format(host=host, port=port)).stdout.strip()

    @contextmanager
    def serving(self, port: int, address: str = "") -> Iterator[None]:
        command = self.command(sys.executable, "-c", SERVE.format(port=port, address=address))
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == "up\n"
            try:
                yield
            finally:
                process.kill()

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        self._group.remove()
