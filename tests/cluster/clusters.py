"""Clusters and the real kubectl, for the tests in this directory."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from cluster import looking

# The cluster to test against, instead of a local one of our own.
KUBECONFIG = os.environ.get("KUBECONFIG", "")
BIN = Path(sys.executable).parent
KUBECTL = str(BIN / "kubectl")
VIRTFLEET = str(BIN / "virtfleet")


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port: int = s.getsockname()[1]
        return port


@dataclass(frozen=True)
class Cluster:
    """A running cluster. `data` is its directory where it is a local one, `said` what `virtfleet up` told of it."""

    kubeconfig: Path
    data: Path | None = None
    port: int = 0
    said: str = ""

    @cached_property
    def reader(self) -> looking.Reader:
        return looking.Reader(self.kubeconfig)

    @cached_property
    def nodes(self) -> list[str]:
        """Names of the nodes, in order."""
        return sorted(node["metadata"]["name"] for node in Kubectl(self).json("get", "nodes")["items"])

    def virtfleet(self, *args: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        assert self.data, "a command of the local home"
        command = [VIRTFLEET, args[0], "--data", str(self.data), *args[1:]]
        return subprocess.run(command, check=check, capture_output=True, text=True, timeout=400)


@dataclass(frozen=True)
class Kubectl:
    """The real kubectl, in one namespace."""

    cluster: Cluster
    namespace: str = "default"

    def command(self, *args: str) -> list[str]:
        return [KUBECTL, "--kubeconfig", str(self.cluster.kubeconfig), "-n", self.namespace, *args]

    def run(
        self, *args: str, stdin: str | None = None, env: dict[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        home = {"HOME": str(self.cluster.kubeconfig.parent)}  # its discovery cache belongs to this cluster
        environment = {**os.environ, **home, **(env or {})}
        return subprocess.run(
            self.command(*args), input=stdin, capture_output=True, text=True, timeout=90, env=environment
        )

    def start(self, *args: str, stdin: int | None = None) -> subprocess.Popen[str]:
        """A command that goes on beside the test; its output is a pipe."""
        return subprocess.Popen(self.command(*args), stdin=stdin, stdout=subprocess.PIPE, text=True)

    def __call__(self, *args: str, stdin: str | None = None, env: dict[str, str] | None = None) -> str:
        """Standard output of a command that must succeed."""
        done = self.run(*args, stdin=stdin, env=env)
        assert done.returncode == 0, f"kubectl {' '.join(args)}: {done.stderr or done.stdout}"
        return done.stdout

    def fails(self, *args: str, stdin: str | None = None) -> str:
        """Standard error of a command that must fail."""
        done = self.run(*args, stdin=stdin)
        assert done.returncode != 0, f"kubectl {' '.join(args)} succeeded: {done.stdout}"
        return done.stderr

    def json(self, *args: str) -> Any:
        """What `-o json` says. Reading, which tests do again and again while they wait, needs no process of its own."""
        asked = looking.question(args[1:], self.namespace) if args[0] == "get" else None
        if asked and (answer := self.cluster.reader.get(asked)) is not None:
            return answer
        return json.loads(self(*args, "-o", "json"))

    def apply(self, *objects: dict[str, Any]) -> str:
        return self("apply", "-f", "-", stdin="\n---\n".join(map(json.dumps, objects)))


# Two nodes for what the tests move around; real containers need root.
NODES = "nodes: [{name: node-a}, {name: node-b}]" if os.geteuid() == 0 else "nodes: []"


def start_local(nodes: str, *options: str) -> Cluster:
    """A local cluster in a directory of its own, short because unix sockets have short names.

    A Kubernetes alone, unless `options` of `virtfleet up` say otherwise.
    """
    data = Path(tempfile.mkdtemp(prefix="vft-"))
    (data.parent / f"{data.name}.yaml").write_text(nodes)
    data.rmdir()
    cluster = Cluster(data / "kubeconfig", data, free_port())
    nodes_file = data.parent / f"{data.name}.yaml"
    wanted = ("--port", str(cluster.port), "--nodes", str(nodes_file), *(options or ("--bare",)))
    done = cluster.virtfleet("up", *wanted, check=False)
    if done.returncode != 0:
        stop_local(cluster)
        raise AssertionError(done.stderr)
    return replace(cluster, said=done.stderr + done.stdout)


def stop_local(cluster: Cluster) -> None:
    assert cluster.data is not None
    done = cluster.virtfleet("down", "--wipe", check=False)
    (cluster.data.parent / f"{cluster.data.name}.yaml").unlink(missing_ok=True)
    shutil.rmtree(cluster.data, ignore_errors=True)
    assert done.returncode == 0, done.stderr
