"""Volumes plugged in and out at random while everything around them is killed, and the guest writes to one of them.

VIRTFLEET_PLUGS says how many operations, and VIRTFLEET_SEED which.
"""

from __future__ import annotations

import os
import random
import re
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from vm.accessed import Used
from vm.guests import PATIENCE
from vm.plugged import Plugged, claim
from vm.trouble.fleet import Fleet, kill
from waiting import eventually

OPERATIONS = int(os.environ.get("VIRTFLEET_PLUGS") or "12")
SEED = int(os.environ.get("VIRTFLEET_SEED", "0")) or random.randrange(1 << 30)
VICTIMS = ("handler", "controller", "gateway", "busybox", "libvirtd", "virtqemud")
CLAIMS = {"one": False, "two": True, "three": True}  # name -> whether it is a block claim

pytestmark = [
    pytest.mark.on_demand(
        "VIRTFLEET_PLUGS", "at some seeds a loop device of the node is left over, of which the cause is sought"
    ),
    pytest.mark.timeout(600 + 20 * OPERATIONS),
    pytest.mark.local_home("what is killed and what is left is seen from the machine"),
]


@pytest.fixture
def web(fleet: Fleet, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Plugged]:
    with Used(fleet.cluster, "plugfaults", tmp_path_factory.mktemp("home")) as used:
        yield Plugged(used)


def launcher(fleet: Fleet, web: Plugged) -> int:
    """The first process of the VM's launcher."""
    [pod] = web.kubectl.json("get", "pods", "-l", "kubevirt.io=virt-launcher")["items"]
    found = [p.pid for p in fleet.programs("launcher") if p.pod == pod["metadata"]["uid"]]
    return min(found)


def plugged_mounts(pid: int) -> set[str]:
    lines = Path(f"/proc/{pid}/mountinfo").read_text().splitlines()
    return {m[1] for line in lines if (m := re.search(r"hotplug-disks/(\S+)", line.split()[4]))}


def device_rules(pid: int) -> set[str]:
    groups = Path(f"/proc/{pid}/cgroup").read_text().splitlines()
    group = next(line.split(":")[2] for line in groups if "devices" in line.split(":")[1].split(","))
    return set(Path(f"/sys/fs/cgroup/devices{group}/devices.list").read_text().splitlines())


def loops(fleet: Fleet) -> list[str]:
    """Files of the cluster that loop devices are made of."""
    listed = subprocess.run(["losetup", "-l", "-n", "-O", "BACK-FILE"], capture_output=True, text=True).stdout
    return [file for file in listed.split() if file.startswith(str(fleet.data))]


def test_plugs_and_unplugs_survive_what_is_killed(fleet: Fleet, web: Plugged) -> None:
    chosen = random.Random(SEED)
    web.kubectl.apply(claim("steady"), *(claim(name, block=block) for name, block in CLAIMS.items()))
    pid = launcher(fleet, web)
    rules = device_rules(pid)
    plugged: set[str] = set()
    web.virtctl("addvolume", "web", "--volume-name=steady")
    web.ready("steady")
    with web.writing(web.sees("steady")):
        for _ in range(OPERATIONS):
            name = chosen.choice(sorted(CLAIMS))
            operation = "removevolume" if name in plugged else "addvolume"
            eventually(lambda o=operation, n=name: web.virtctl(o, "web", f"--volume-name={n}") or True, PATIENCE)
            plugged ^= {name}
            time.sleep(chosen.uniform(0, 1.5))  # any instant will do
            for victim in fleet.programs(chosen.choice(VICTIMS)):
                kill(victim)
            if chosen.random() < 0.3 and (pods := web.attachments()):
                name = chosen.choice(pods)["metadata"]["name"]
                web.kubectl.run("delete", "pod", name, "--wait=false")

        def as_asked() -> bool:
            vmi = web.used.vmi() or {}
            entries = [s for s in vmi["status"].get("volumeStatus", ()) if s.get("hotplugVolume") is not None]
            assert {s["name"] for s in entries} == plugged | {"steady"}, entries
            assert all(s["phase"] == "Ready" for s in entries), entries
            return {n for n in CLAIMS if web.disk(n)} == plugged

        eventually(as_asked, 4 * PATIENCE)
    assert launcher(fleet, web) == pid, "the VM is the same"
    for name in sorted(plugged | {"steady"}):
        eventually(lambda n=name: web.virtctl("removevolume", "web", f"--volume-name={n}") or True, PATIENCE)
    for name in (*CLAIMS, "steady"):
        web.gone(name)
    assert not plugged_mounts(pid)
    assert device_rules(pid) == rules
    eventually(lambda: not loops(fleet), PATIENCE)
    assert not web.attachments()
