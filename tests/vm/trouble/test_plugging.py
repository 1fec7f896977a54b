"""Volumes plugged in and out at random while everything around them is killed, and the guest writes to one of them.

A dozen operations at a time, then all must be as it was asked for. VIRTFLEET_PLUGS says how many there are instead
(200 take a quarter of an hour), and VIRTFLEET_SEED which.
"""

from __future__ import annotations

import os
import random
import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from vm.accessed import Used
from vm.guests import PATIENCE
from vm.plugged import Plugged, claim
from vm.trouble.fleet import Fleet, kill
from waiting import eventually

ROUND = 12
OPERATIONS = int(os.environ.get("VIRTFLEET_PLUGS") or ROUND)
SEED = int(os.environ.get("VIRTFLEET_SEED") or 1)
VICTIMS = ("handler", "controller", "gateway", "busybox", "libvirtd", "virtqemud")
CLAIMS = {"one": False, "two": True, "three": True}  # name -> whether it is a block claim
COMPONENTS = "kubevirt.io in (virt-handler, virt-controller, virt-api)"

pytestmark = [
    pytest.mark.timeout(600 + 20 * OPERATIONS),
    pytest.mark.local_home("what is killed and what is left is seen from the machine"),
]


@pytest.fixture(scope="module")
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


def ask(web: Plugged, operation: str, volume: str) -> None:
    """Until somebody is there to take it."""
    eventually(lambda: web.virtctl(operation, "web", f"--volume-name={volume}") or True, PATIENCE)


def disturbed(fleet: Fleet, web: Plugged, chosen: random.Random, plugged: set[str], operations: int) -> None:
    """Plug in and out, with a kill somewhere after each."""
    for _ in range(operations):
        volume = chosen.choice(sorted(CLAIMS))
        ask(web, "removevolume" if volume in plugged else "addvolume", volume)
        plugged ^= {volume}
        time.sleep(chosen.uniform(0, 1.5))  # any instant will do
        for victim in fleet.programs(chosen.choice(VICTIMS)):
            kill(victim)
        if chosen.random() < 0.3 and (pods := web.attachments()):
            web.kubectl.run("delete", "pod", chosen.choice(pods)["metadata"]["name"], "--wait=false")


def converges(web: Plugged, plugged: set[str]) -> None:
    def as_asked() -> bool:
        vmi = web.used.vmi() or {}
        entries = [s for s in vmi["status"].get("volumeStatus", ()) if s.get("hotplugVolume") is not None]
        assert {s["name"] for s in entries} == plugged | {"steady"}, entries
        assert all(s["phase"] == "Ready" for s in entries), entries
        return {n for n in CLAIMS if web.disk(n)} == plugged

    eventually(as_asked, 4 * PATIENCE)


def test_plugs_and_unplugs_survive_what_is_killed(fleet: Fleet, web: Plugged) -> None:
    chosen = random.Random(SEED)
    web.kubectl.apply(claim("steady"), *(claim(name, block=block) for name, block in CLAIMS.items()))
    pid = launcher(fleet, web)
    rules = device_rules(pid)
    plugged: set[str] = set()
    web.virtctl("addvolume", "web", "--volume-name=steady")
    web.ready("steady")
    with web.writing(web.sees("steady")):
        for begun in range(0, OPERATIONS, ROUND):
            # Others take over, which have not been killed so often that they are made to wait.
            web.kubectl("-n", "kubevirt", "delete", "pods", "-l", COMPONENTS, "--wait=false")
            disturbed(fleet, web, chosen, plugged, min(ROUND, OPERATIONS - begun))
            converges(web, plugged)
    assert launcher(fleet, web) == pid, "the VM is the same"
    for name in sorted(plugged | {"steady"}):
        ask(web, "removevolume", name)
    for name in (*CLAIMS, "steady"):
        web.gone(name)
    assert not plugged_mounts(pid)
    assert device_rules(pid) == rules
    eventually(lambda: not fleet.loops(), PATIENCE)
    assert not web.attachments()


def test_a_launcher_that_is_killed_while_a_volume_comes_loses_nothing_that_was_written(
    fleet: Fleet, web: Plugged
) -> None:
    """The guest ends with it; the next one has both volumes, and what the last one had synced."""
    for name in ("one", "two"):
        ask(web, "addvolume", name)
    disks = {name: web.sees(name) for name in ("one", "two")}
    write = "head -c 1048576 /dev/urandom > /tmp/mine; dd if=/tmp/mine of=/dev/{} conv=fsync; md5sum < /tmp/mine"
    sums = {name: web.guest(write.format(disk)) for name, disk in disks.items()}
    before = web.used.runs()
    ask(web, "addvolume", "three")
    time.sleep(random.Random(SEED).uniform(0, 1))
    os.kill(launcher(fleet, web), 9)
    web.used.runs(other_than=before)
    web.used.wait_for_agent()
    for name in CLAIMS:
        web.ready(name)
    for name, checksum in sums.items():
        assert web.guest(f"head -c 1048576 /dev/{web.sees(name)} | md5sum") == checksum
    for name in CLAIMS:
        ask(web, "removevolume", name)
    for name in CLAIMS:
        web.gone(name)
    eventually(lambda: not fleet.loops(), PATIENCE)
