"""Interfaces on networks beside the cluster's: two guests that talk there, and what comes and goes while they run."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from cluster.clusters import Cluster
from vm.accessed import Used, a_vm
from vm.guests import PATIENCE
from vm.plugged import Plugged
from waiting import eventually

NAMESPACE = "connecting"

pytestmark = [pytest.mark.timeout(600), pytest.mark.local_home("the cluster attaches Pods by itself")]


def definition(name: str, subnet: str) -> dict[str, Any]:
    config = {"cniVersion": "0.3.1", "type": "bridge", "ipam": {"type": "host-local", "subnet": subnet}}
    return {
        "apiVersion": "k8s.cni.cncf.io/v1",
        "kind": "NetworkAttachmentDefinition",
        "metadata": {"name": name},
        "spec": {"config": json.dumps(config)},
    }


class Connected(Plugged):
    """The VM `web`, on networks beside the cluster's, and a neighbour of it."""

    def connect(self, network: str = "blue", *, state: str = "") -> None:
        """Have the VM's template name an interface `more` on a network, in a state."""
        spec = self.used.vm()["spec"]["template"]["spec"]
        interface = {"name": "more", "bridge": {}, **({"state": state} if state else {})}
        others = [i for i in spec["domain"]["devices"]["interfaces"] if i["name"] != "more"]
        networks = [n for n in spec["networks"] if n["name"] != "more"]
        change = {
            "networks": [*networks, {"name": "more", "multus": {"networkName": network}}],
            "domain": {"devices": {"interfaces": [*others, interface]}},
        }
        self.kubectl("patch", "vm", "web", "--type=merge", "-p", json.dumps({"spec": {"template": {"spec": change}}}))

    def told(self, name: str = "web", interface: str = "more") -> dict[str, Any]:
        """What the VMI says of an interface."""
        vmi = self.kubectl.json("get", "vmi", name)
        return next((i for i in vmi["status"].get("interfaces", ()) if i.get("name") == interface), {})

    def in_use(self) -> dict[str, Any]:
        def found() -> dict[str, Any]:
            told = self.told()
            return told if "domain" in told.get("infoSource", "") and told.get("ipAddress") else {}

        try:
            return eventually(found, PATIENCE)
        except AssertionError:
            vmi = self.used.vmi() or {}
            events = [e["message"] for e in self.kubectl.json("get", "events")["items"]]
            raise AssertionError(json.dumps([vmi.get("spec"), vmi.get("status"), events], indent=1)) from None

    def device(self, mac: str) -> str:
        """The guest's name of an interface; "" where it has none of this address."""
        return self.guest(f"grep -l {mac} /sys/class/net/*/address | cut -d/ -f5; true").strip()

    def reaches(self, address: str) -> bool:
        return " 0% packet loss" in self.guest(f"ping -c 1 -W 5 {address}; true")

    def pod(self) -> dict[str, Any]:
        """The launcher's Pod that runs the guest."""
        node = (self.used.vmi() or {})["status"]["nodeName"]
        found = self.kubectl.json("get", "pods", "-l", "kubevirt.io=virt-launcher,vm.kubevirt.io/name=web")["items"]
        return next(p for p in found if p["spec"]["nodeName"] == node and "deletionTimestamp" not in p["metadata"])

    def attached(self) -> dict[str, str]:
        """The networks of that Pod, by its interfaces."""
        said = self.pod()["metadata"]["annotations"].get("k8s.v1.cni.cncf.io/network-status", "[]")
        return {each["interface"]: each["name"] for each in json.loads(said)}

    def restart_required(self) -> bool:
        return any(c["type"] == "RestartRequired" for c in self.used.vm()["status"].get("conditions", ()))


@pytest.fixture(scope="module")
def web(fleet: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Connected]:
    used = Used(fleet, NAMESPACE, tmp_path_factory.mktemp("home"))
    with used:
        connected = Connected(used)
        used.kubectl.apply(definition("blue", "10.77.0.0/24"))
        used.kubectl.apply(definition("red", "10.78.0.0/24"))
        neighbour = a_vm(used.key.with_suffix(".pub").read_text().strip())
        neighbour["metadata"]["name"] = "neighbour"
        spec = neighbour["spec"]["template"]["spec"]
        for network in ("blue", "red"):
            spec["domain"]["devices"]["interfaces"].append({"name": network, "bridge": {}})
            spec["networks"].append({"name": network, "multus": {"networkName": network}})
        used.kubectl.apply(neighbour)
        yield connected


def test_an_interface_comes_to_a_running_guest_which_talks_to_its_neighbour_there(web: Connected) -> None:
    web.connect()
    told = web.in_use()
    assert "multus-status" in told["infoSource"] and told["linkState"] == "up"
    assert told["podInterfaceName"].startswith("pod") and told["ipAddress"].startswith("10.77.0.")
    eventually(lambda: web.device(told["mac"]), PATIENCE)
    neighbour = eventually(lambda: web.told("neighbour", "blue").get("ipAddress"), 2 * PATIENCE)
    eventually(lambda: web.reaches(neighbour), 2 * PATIENCE)
    assert not web.restart_required()


def test_its_link_is_switched(web: Connected) -> None:
    device = web.device(web.in_use()["mac"])

    def carrier() -> str:
        return web.guest(f"cat /sys/class/net/{device}/carrier").strip()

    assert carrier() == "1"
    web.connect(state="down")
    eventually(lambda: carrier() == "0", PATIENCE)
    eventually(lambda: web.told()["linkState"] == "down", PATIENCE)
    web.connect(state="up")
    eventually(lambda: carrier() == "1", PATIENCE)
    eventually(lambda: web.told()["linkState"] == "up", PATIENCE)
    assert not web.restart_required()


def test_it_goes_and_comes_again_whatever_becomes_of_the_handler(web: Connected) -> None:
    mac, node = web.in_use()["mac"], (web.used.vmi() or {})["status"]["nodeName"]
    handlers = web.kubectl.json("get", "pods", "-A", "-l", "kubevirt.io=virt-handler")["items"]
    [handler] = [p["metadata"] for p in handlers if p["spec"]["nodeName"] == node]
    web.connect(state="absent")
    web.kubectl("-n", handler["namespace"], "delete", "pod", handler["name"], "--grace-period=1", "--wait=false")
    eventually(lambda: not web.device(mac), PATIENCE)
    eventually(lambda: "more" not in json.dumps(web.used.vm()["spec"]), PATIENCE)
    eventually(lambda: web.attached().keys() == {"eth0"}, PATIENCE)
    assert "more" not in json.dumps((web.used.vmi() or {})["spec"])
    assert not web.restart_required()
    web.connect()
    told = web.in_use()
    neighbour = web.told("neighbour", "blue")["ipAddress"]
    eventually(lambda: web.device(told["mac"]) and web.reaches(neighbour), 2 * PATIENCE)


def test_it_moves_with_its_vm_and_to_another_network_by_a_move(web: Connected) -> None:
    before, told = (web.used.vmi() or {})["status"]["nodeName"], web.in_use()
    device = web.device(told["mac"])
    web.virtctl("migrate", "web")
    eventually(lambda: (web.used.vmi() or {})["status"]["nodeName"] != before, 3 * PATIENCE)
    assert web.in_use()["mac"] == told["mac"]
    assert web.device(told["mac"]) == device
    neighbour = web.told("neighbour", "blue")["ipAddress"]
    eventually(lambda: web.reaches(neighbour), 2 * PATIENCE)

    before = (web.used.vmi() or {})["status"]["nodeName"]
    web.connect("red")
    eventually(lambda: (web.used.vmi() or {})["status"]["nodeName"] != before, 3 * PATIENCE)
    eventually(lambda: f"{NAMESPACE}/red" in web.attached().values(), PATIENCE)
    assert web.device(told["mac"]) == device, "the guest has its interface all the time"
    eventually(lambda: not web.used.condition("MigrationRequired"), PATIENCE)
    assert not web.restart_required()
    web.guest(f"ip addr flush dev {device}; ip addr add 10.78.0.200/24 dev {device}")
    neighbour = web.told("neighbour", "red")["ipAddress"]
    eventually(lambda: web.reaches(neighbour), 2 * PATIENCE)


def test_a_network_that_is_not_there_is_told(web: Connected) -> None:
    vm = a_vm("")
    vm["metadata"]["name"] = "lost"
    spec = vm["spec"]["template"]["spec"]
    spec["domain"]["devices"]["interfaces"].append({"name": "more", "bridge": {}})
    spec["networks"].append({"name": "more", "multus": {"networkName": "nowhere"}})
    web.kubectl.apply(vm)
    said = f"NetworkAttachmentDefinition {NAMESPACE}/nowhere does not exist; create it"
    eventually(lambda: said in json.dumps(web.kubectl.json("get", "vm", "lost").get("status")), PATIENCE)
    web.kubectl("delete", "vm", "lost")
