"""Where everything of one node lies on this machine. Names come from here only, so that a teardown finds them all."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from virtfleet.kube.resource import Obj

# Host paths that each node has of its own. A pod's hostPath below one of these is meant for "its" node.
_OWN = re.compile(r"/(var/lib/kubelet|var/lib/kubevirt[^/]*|(var/)?run/kubevirt[^/]*)(/|$)")


class Layout:
    """One node of one cluster. `data` is the cluster's directory; its nodes share the images in it."""

    def __init__(self, data: Path, cluster: str, node: str) -> None:
        self.data = data
        self.node = node
        self.images = data / "images"
        self.home = data / "nodes" / node
        # The node's own part of the host's file tree: a mount of its own that passes mounts on to pods.
        self.root = self.home / "root"
        self.kubelet = self.root / "var/lib/kubelet"
        self.containers = self.home / "containers"
        self.sandboxes = self.home / "sandboxes"
        self.exits = self.home / "exits"
        self.logs = self.home / "logs"
        self.runtime = self.home / "runtime"  # the OCI runtime's own state
        self.socket = self.home / "agent.sock"  # where the agent answers the API server
        self.cgroup = f"/virtfleet/{cluster}/{node}"

    def every_sandbox(self, pattern: str) -> Iterable[Path]:
        """Files in the sandboxes of all nodes."""
        return self.data.glob(f"nodes/*/{self.sandboxes.name}/*/{pattern}")

    def pod_logs(self, pod: Obj) -> Path:
        meta = pod["metadata"]
        return self.logs / f"{meta['namespace']}_{meta['name']}_{meta['uid']}"

    def host_path(self, path: str) -> Path:
        """A hostPath as this node means it."""
        place = Path(path)
        if not _OWN.match(str(place)):
            return place
        # /var/run is /run on every machine.
        return self.root / ("var" if place.is_relative_to("/run") else "") / place.relative_to("/")

    def create(self) -> None:
        for path in (self.kubelet / "pods", self.containers, self.sandboxes, self.exits, self.logs, self.runtime):
            path.mkdir(parents=True, exist_ok=True)
        self.home.chmod(0o700)  # pods' secrets and writable layers are nobody else's business
