"""VMs that get more CPUs and memory, or another place, while they run: in place or by a migration."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cluster.clusters import Cluster
from docblocks import run, shown
from virtfleet.api.quantity import Quantity
from vm.accessed import Used
from vm.guests import PATIENCE
from vm.reader import environment
from waiting import eventually

NAMESPACE = "growing"
CHANGES = ("HotVCPUChange", "HotMemoryChange", "MigrationRequired")
FINAL = ("Succeeded", "Failed")

pytestmark = [pytest.mark.timeout(900), pytest.mark.alone]


@pytest.fixture(scope="module")
def web(fleet: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Used]:
    sizes = {"cpu": {"sockets": 1, "cores": 1}, "memory": {"guest": "1Gi"}}
    with Used(fleet, NAMESPACE, tmp_path_factory.mktemp("home"), **sizes) as used:
        yield used


def cpus(web: Used) -> int:
    return int(web.in_guest("grep -c ^processor /proc/cpuinfo"))


def mebibytes(web: Used) -> int:
    return int(web.in_guest("awk '/MemTotal/ {print int($2 / 1024)}' /proc/meminfo"))


def edit(web: Used, **spec: Any) -> None:
    web.kubectl("patch", "vm", "web", "--type=merge", "-p", json.dumps({"spec": {"template": {"spec": spec}}}))


def grow(web: Used, **domain: Any) -> None:
    edit(web, domain={part: {"sockets" if part == "cpu" else "guest": value} for part, value in domain.items()})


def status(web: Used) -> dict[str, Any]:
    vmi = web.vmi()
    assert vmi
    found: dict[str, Any] = vmi["status"]
    return found


def settled(web: Used, *, sockets: int, guest: str) -> dict[str, Any]:
    """The VMI's status as soon as it has these sizes and waits for nothing."""

    def has() -> dict[str, Any] | None:
        vmi = web.vmi()
        now = vmi["status"] if vmi else {}
        sizes = (now.get("currentCPUTopology", {}).get("sockets"), now.get("memory", {}).get("guestCurrent"))
        waits = any(c["type"] in CHANGES for c in now.get("conditions", ()))
        return now if sizes == (sockets, guest) and not waits else None

    try:
        return eventually(has, 3 * PATIENCE)
    except AssertionError:
        raise AssertionError(json.dumps([status(web), launchers(web)], indent=1)) from None


def launchers(web: Used) -> list[dict[str, Any]]:
    found = web.kubectl.json("get", "pods", "-l", "kubevirt.io=virt-launcher")["items"]
    return [p for p in found if p["status"]["phase"] not in FINAL and "deletionTimestamp" not in p["metadata"]]


def memory_of(pod: dict[str, Any]) -> int:
    return Quantity.parse(pod["spec"]["containers"][0]["resources"]["requests"]["memory"]).value()


def resized(web: Used) -> list[str]:
    events = web.kubectl.json("get", "events")["items"]
    return [e["message"] for e in events if e["reason"] == "Resized"]


def moves(web: Used) -> int:
    return len(web.kubectl.json("get", "vmim")["items"])


def test_a_guest_gets_more_cpus_and_memory_in_place(web: Used, tmp_path: Path) -> None:
    [pod], started, before = launchers(web), web.boot_id(), mebibytes(web)
    assert cpus(web) == 1
    run(shown(__file__, "kubectl patch"), tmp_path, environment(web.kubectl.cluster, tmp_path, NAMESPACE))
    now = settled(web, sockets=2, guest="2Gi")
    of_guest = {"guestAtBoot": "1Gi", "guestRequested": "2Gi", "guestCurrent": "2Gi"}
    assert now["memory"] == {**of_guest, "memoryOverhead": now["memory"]["memoryOverhead"]}
    eventually(lambda: cpus(web) == 2, PATIENCE)
    eventually(lambda: mebibytes(web) > before + 1000, PATIENCE)
    assert web.boot_id() == started
    [after] = launchers(web)
    assert after["metadata"]["uid"] == pod["metadata"]["uid"]
    assert memory_of(after) >= memory_of(pod) + (1 << 30)
    eventually(lambda: resized(web) == ["The VM has 2 sockets and 2Gi of memory now, in place"], PATIENCE)
    assert moves(web) == 0
    assert not any(c["type"] == "RestartRequired" for c in web.vm()["status"]["conditions"])


def test_it_grows_also_where_the_handler_ends_meanwhile(web: Used) -> None:
    started = web.boot_id()
    node = status(web)["nodeName"]
    handlers = web.kubectl.json("get", "pods", "-A", "-l", "kubevirt.io=virt-handler")["items"]
    [handler] = [p["metadata"] for p in handlers if p["spec"]["nodeName"] == node]
    grow(web, cpu=3)
    web.kubectl("-n", handler["namespace"], "delete", "pod", handler["name"], "--grace-period=1")
    settled(web, sockets=3, guest="2Gi")
    eventually(lambda: cpus(web) == 3, PATIENCE)
    assert web.boot_id() == started


def test_it_migrates_where_its_node_has_no_room(web: Used) -> None:
    started, before = web.boot_id(), status(web)["nodeName"]
    [pod] = launchers(web)
    free = _free_memory(web, before)
    filler = {"requests": {"memory": str(free - (256 << 20))}}
    image = pod["spec"]["containers"][0]["image"]
    web.kubectl.apply(
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": "filler"},
            "spec": {
                "nodeName": before,
                "terminationGracePeriodSeconds": 0,
                "containers": [
                    {"name": "c", "image": image, "command": ["sleep", "3600"], "resources": filler},
                ],
            },
        }
    )
    web.kubectl("wait", "--for=condition=Ready", "pod/filler", "--timeout=60s")
    grow(web, memory="3Gi")
    now = settled(web, sockets=3, guest="3Gi")
    assert now["nodeName"] != before
    eventually(lambda: mebibytes(web) > 2900, PATIENCE)
    assert web.boot_id() == started
    assert moves(web) == 1
    eventually(lambda: resized(web)[-1:] == ["The VM has 3 sockets and 3Gi of memory now, by a migration"], PATIENCE)
    web.kubectl("delete", "pod", "filler", "--wait=false")


def _free_memory(web: Used, node: str) -> int:
    allocatable = web.kubectl.json("get", "node", node)["status"]["allocatable"]["memory"]
    pods = [p for p in web.kubectl.json("get", "pods", "-A")["items"] if p["spec"].get("nodeName") == node]
    asked = [
        container.get("resources", {}).get("requests", {}).get("memory", "0")
        for p in pods
        if p["status"]["phase"] not in FINAL
        for container in p["spec"]["containers"]
    ]
    return Quantity.parse(allocatable).value() - sum(Quantity.parse(amount).value() for amount in asked)


def test_it_leaves_a_node_that_its_placement_excludes(web: Used) -> None:
    started, before = web.boot_id(), status(web)["nodeName"]
    edit(web, affinity=_away_from(before))
    eventually(lambda: status(web)["nodeName"] != before, 3 * PATIENCE)
    settled(web, sockets=3, guest="3Gi")
    assert web.boot_id() == started
    there = status(web)["nodeName"]
    edit(web, affinity=_away_from("nowhere"))  # fits where it is
    eventually(lambda: (web.vmi() or {})["spec"]["affinity"] == _away_from("nowhere"), PATIENCE)
    assert settled(web, sockets=3, guest="3Gi")["nodeName"] == there
    assert moves(web) == 2
    assert not any(c["type"] == "RestartRequired" for c in web.vm()["status"]["conditions"])


def _away_from(node: str) -> dict[str, Any]:
    other = {"key": "kubernetes.io/hostname", "operator": "NotIn", "values": [node]}
    terms = [{"matchExpressions": [other]}]
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}}


def test_what_waits_for_a_restart_is_named_and_comes_with_it(web: Used) -> None:
    """Also where the launcher ends in the middle of it all."""
    grow(web, cpu=3)
    guest = status(web)["memory"]["guestCurrent"]
    settled(web, sockets=3, guest=guest)
    edit(web, hostname="other", domain={"cpu": {"sockets": 1}})

    def told() -> str:
        found = [c for c in web.vm()["status"]["conditions"] if c["type"] == "RestartRequired"]
        return found[0]["message"] if found else ""

    message = eventually(told, PATIENCE)
    assert "hostname" in message
    assert "domain.cpu.sockets (CPUs are not taken from a running VM, which has 3 sockets)" in message
    uid = web.runs()
    grow(web, cpu=4)
    [pod] = launchers(web)
    web.kubectl("delete", "pod", pod["metadata"]["name"], "--wait=false", "--grace-period=1")
    web.runs(other_than=uid, within=2 * PATIENCE)
    web.wait_for_agent()
    settled(web, sockets=4, guest=guest)
    eventually(lambda: cpus(web) == 4, PATIENCE)
    assert web.in_guest("hostname").strip() == "other"
    eventually(lambda: not told(), PATIENCE)
