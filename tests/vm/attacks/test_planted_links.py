"""A user of one namespace plants links in the launcher of a VM that does not start, and waits for virt-handler."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cluster.clusters import Cluster, Kubectl
from virtfleet.hypervisors import registry
from virtfleet.launcher.node import emulators
from virtfleet.local import guestimage
from waiting import eventually

pytestmark = pytest.mark.local_home("it looks into directories of nodes")

SECRET = "of the node, and of nobody else"
NAMESPACE = "planted-links"
DIRECTORY = str(emulators.directory(registry.get("qemu-kvm")))


@pytest.fixture
def secret() -> Iterator[Path]:
    with tempfile.NamedTemporaryFile("w", prefix="vf-secret-") as file:
        file.write(SECRET)
        file.flush()
        yield Path(file.name)


@pytest.fixture
def user(fleet: Cluster) -> Iterator[Kubectl]:
    Kubectl(fleet)("create", "namespace", NAMESPACE)
    yield Kubectl(fleet, NAMESPACE)
    Kubectl(fleet)("delete", "namespace", NAMESPACE)


def vmi(name: str, **disk: str) -> dict[str, Any]:
    return {
        "apiVersion": "kubevirt.io/v1",
        "kind": "VirtualMachineInstance",
        "metadata": {"name": name},
        "spec": {
            "startStrategy": "Paused",
            "terminationGracePeriodSeconds": 0,
            "domain": {
                "memory": {"guest": "64Mi"},
                "devices": {"disks": [{"name": "root", "disk": {"bus": "virtio"}}]},
            },
            "volumes": [{"name": "root", "containerDisk": {"image": guestimage.IMAGE, **disk}}],
        },
    }


def node_facts(fleet: Cluster, node: str) -> Path:
    assert fleet.data is not None
    return fleet.data / "nodes" / node / "root/var/lib/kubevirt-node-labeller"


def test_links_in_a_launcher_lead_its_handler_nowhere(fleet: Cluster, user: Kubectl, secret: Path) -> None:
    user.apply(vmi("planter", path="/disk/missing.img"))
    eventually(lambda: user.json("get", "events", "--field-selector", "reason=SyncFailed")["items"], 120)
    (pod,) = user.json("get", "pods", "-l", "kubevirt.io/domain=planter")["items"]
    (known,) = emulators.load(node_facts(fleet, pod["spec"]["nodeName"])).values()
    first, *others = known
    inside = ("exec", pod["metadata"]["name"], "--", "sh", "-c")
    target = f"/proc/{os.getpid()}/root{secret}"
    links = " && ".join(f"ln -sf {target} {DIRECTORY}/{name}" for name in (first, "loot.xml"))
    user(*inside, f"cd {DIRECTORY} && rm {' '.join(others)} && {links}")
    # What was removed comes back when the start is tried again.
    user("annotate", "vmi", "planter", "try=again")
    eventually(lambda: user.run(*inside, f"ls {DIRECTORY}/{others[-1]}").returncode == 0, 90)
    assert secret.read_text() == SECRET
    assert (secret.stat().st_uid, secret.stat().st_mode & 0o777) == (0, 0o600)


def test_what_a_node_knows_is_its_own_and_reaches_every_launcher(fleet: Cluster, user: Kubectl) -> None:
    user.apply(vmi("reader"))
    user("wait", "vmi", "reader", "--for=jsonpath={.status.phase}=Running", "--timeout=120s")
    (pod,) = user.json("get", "pods", "-l", "kubevirt.io/domain=reader")["items"]
    facts = node_facts(fleet, pod["spec"]["nodeName"])
    assert {path.stat().st_uid for path in (facts, *facts.rglob("*"))} == {0}
    names = user("exec", pod["metadata"]["name"], "--", "ls", DIRECTORY).split()
    (known,) = emulators.load(facts).values()
    assert set(names) == set(known)
