"""A file of a node as a VM's disk: made for the guest, kept when the VM goes, and used by the next one."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cluster.clusters import Cluster, Kubectl
from virtfleet.domain.paths import USER
from vm.gated import gates
from vm.guests import PATIENCE, machine, user_data
from waiting import eventually

pytestmark = pytest.mark.local_home("it looks at files of nodes")

NAMESPACE = "host-disks"


@pytest.fixture
def user(fleet: Cluster) -> Iterator[Kubectl]:
    kubectl = Kubectl(fleet, NAMESPACE)
    kubectl("create", "namespace", NAMESPACE)
    with gates(fleet, "HostDisk"):
        yield kubectl
        kubectl("delete", "vmi", "--all", "--timeout=80s")
    kubectl("delete", "namespace", NAMESPACE, "--wait=false")


@pytest.fixture
def directory() -> Iterator[Path]:
    """Of the node, where none is yet."""
    place = Path(tempfile.gettempdir(), f"vf-host-disk-{os.getpid()}")
    yield place
    shutil.rmtree(place, ignore_errors=True)


def vmi(name: str, disk: dict[str, Any], *commands: str) -> dict[str, Any]:
    made = machine([{"name": "data", "hostDisk": disk}, user_data(*commands, "poweroff")])
    made["metadata"] = {"name": name}
    return made


def run(user: Kubectl, wanted: dict[str, Any]) -> None:
    """To the end of the guest."""
    eventually(lambda: user.apply(wanted), PATIENCE)  # when the gate has been heard of
    name = wanted["metadata"]["name"]
    eventually(lambda: user.json("get", "vmi", name)["status"].get("phase") == "Succeeded", 2 * PATIENCE)


def test_a_disk_is_made_and_outlives_its_vm(user: Kubectl, directory: Path) -> None:
    image = directory / "vm.img"
    wanted = {"path": str(image), "type": "DiskOrCreate", "capacity": "8Mi"}
    run(user, vmi("first", wanted, "blockdev --getsize64 /dev/vdb > /dev/vdb", "sync"))
    assert image.read_bytes().startswith(b"8388608\n")
    assert (image.stat().st_uid, image.stat().st_size) == (USER, 8 << 20)
    os.chown(image, 0, 0)  # as an administrator who brings an image leaves it
    again = {"path": str(image), "type": "Disk"}
    run(user, vmi("second", again, "head -n 1 /dev/vdb > /run/was", "(echo again; cat /run/was) > /dev/vdb", "sync"))
    assert image.read_bytes().startswith(b"again\n8388608\n")
    assert image.stat().st_uid == USER


def test_a_disk_that_is_not_there_is_missed_by_name(user: Kubectl, directory: Path) -> None:
    directory.mkdir()
    wanted = vmi("without", {"path": str(directory / "none.img"), "type": "Disk"})
    eventually(lambda: user.apply(wanted), PATIENCE)
    events = ("get", "events", "--field-selector", "reason=SyncFailed", "-o", "jsonpath={.items[*].message}")
    told = eventually(lambda: user(*events), PATIENCE)
    assert f"volume 'data': hostDisk {directory}/none.img: there is no such file on the node" in told
