"""A node loses power and comes back: the VMs that ran there run again as soon as it does.

VIRTFLEET_POWER is a command that switches a node `off` or `on`, and gets one of these and the node's name.
"""

from __future__ import annotations

import os
import shlex
import subprocess
from pathlib import Path

import pytest

from cluster.clusters import Cluster, Kubectl
from vm import kubehome
from vm.accessed import Used

pytestmark = [
    pytest.mark.timeout(600),
    pytest.mark.alone,
    pytest.mark.on_demand("VIRTFLEET_POWER", "it takes power from a node of a real cluster"),
]
SOON = 90.0  # seconds: half of what a handler waits for a launcher that it never saw


def switch(state: str, node: str) -> None:
    subprocess.run([*shlex.split(os.environ["VIRTFLEET_POWER"]), state, node], check=True, timeout=200)


def test_a_vm_runs_again_as_soon_as_its_node_does(fleet: Cluster, tmp_path: Path) -> None:
    with Used(fleet, "power", tmp_path) as web:
        first = web.runs()
        vmi = web.vmi()
        assert vmi
        node = vmi["status"]["nodeName"]
        switch("off", node)
        switch("on", node)
        web.runs(other_than=first, within=SOON)
    kubehome.wait_until_available(Kubectl(fleet, "kubevirt"))
