"""The processes of a local cluster, as the supervisor is told to run them.

Both `virtfleet up` and `virtfleet node` start agents; what is needed for one is written down here once.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from virtfleet.local import supervisor
from virtfleet.local.directory import Settings

CONTROL_PLANE = "control-plane"


def run_control_plane(data: Path) -> None:
    supervisor.ask(data, op="run", name=CONTROL_PLANE, argv=[sys.executable, "-m", "virtfleet.local", str(data)])


def run_agent(data: Path, settings: Settings, node: str) -> None:
    """Start the agent of a node under the node's name, or leave it as it is. The API server must be there already."""
    kubeconfig = _node_kubeconfig(data, settings, node)
    argv = [sys.executable, "-m", "virtfleet.local.node", "--data", str(data), "--name", node]
    supervisor.ask(data, op="run", name=node, argv=[*argv, "--kubeconfig", str(kubeconfig)])


def _node_kubeconfig(data: Path, settings: Settings, node: str) -> Path:
    # Certificates are slow to import, and most commands need none.
    from virtfleet.local.identities import open_pki, server_url

    pki = open_pki(data, settings)
    path = data / "nodes" / node / "kubeconfig"
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_name("kubeconfig.new")
    with open(fresh, "w", opener=lambda p, flags: os.open(p, flags, 0o600)) as file:
        file.write(pki.kubeconfig(server_url(settings), pki.node(node)))
    fresh.replace(path)
    return path
