"""A hook sidecar beside a real guest: it changes the machine and what cloud-init says, also after a migration."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cluster.clusters import VIRTFLEET, Cluster, Kubectl
from vm.accessed import Used
from vm.gated import gates
from vm.guests import PATIENCE
from waiting import eventually

pytestmark = pytest.mark.timeout(600)

NAMESPACE = "sidecars"
BOARD = Path(__file__).parents[1] / "sidecars/board.py"
MAKER = "smbios.vm.kubevirt.io/baseBoardManufacturer"


class Hooked(Used):
    """The VM `web` with a sidecar."""

    def __init__(self, fleet: Cluster, home: Path) -> None:
        super().__init__(fleet, NAMESPACE, home)
        api = Kubectl(fleet, "kubevirt")("get", "deployment", "virt-api", "-o", "jsonpath={..containers[0].image}")
        script = {"name": "board", "key": "board.py", "hookPath": "/hooks/board.py"}
        command = ["/usr/bin/python3", "-S", script["hookPath"]]
        image = {"image": api.replace("virt-api", "virt-launcher"), "imagePullPolicy": "IfNotPresent"}
        self.sidecars = json.dumps([{**image, "command": command, "configMap": script}])

    def adapt(self, vm: dict[str, Any]) -> None:
        self.kubectl("create", "configmap", "board", f"--from-file=board.py={BOARD}")
        annotations = {"hooks.kubevirt.io/hookSidecars": self.sidecars, MAKER: "Radical Edward"}
        vm["spec"]["template"]["metadata"] = {"annotations": annotations}
        seed = vm["spec"]["template"]["spec"]["volumes"][1]["cloudInitNoCloud"]
        seed["userData"] += "runcmd:\n- echo greetings from WHO > /root/greetings\n"

    def pods(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.kubectl.json("get", "pods", "-l", "kubevirt.io=virt-launcher")["items"]
        return found


@pytest.fixture(scope="module")
def web(fleet: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hooked]:
    with gates(fleet, "Sidecar"), Hooked(fleet, tmp_path_factory.mktemp("home")) as used:
        yield used


def test_the_guest_has_what_the_sidecar_made_of_it_and_keeps_it_on_its_way(web: Hooked) -> None:
    seen = "cat /sys/class/dmi/id/board_vendor /root/greetings /proc/sys/kernel/random/boot_id"
    maker, greetings, boot = web.in_guest(seen).splitlines()
    assert (maker, greetings) == ("Radical Edward", "greetings from the sidecar of seed")
    web.does(VIRTFLEET, "migrate", "-n", NAMESPACE, "web", "--watch")
    assert web.in_guest(seen).splitlines() == [maker, greetings, boot]


def test_sidecars_end_with_the_vm(web: Hooked) -> None:
    eventually(lambda: len([p for p in web.pods() if p["status"]["phase"] == "Running"]) == 1, PATIENCE)
    (pod,) = [p["metadata"]["name"] for p in web.pods() if p["status"]["phase"] == "Running"]
    logs = web.kubectl.start("logs", "-f", pod, "-c", "hook-sidecar-0")
    web.does(VIRTFLEET, "stop", "-n", NAMESPACE, "web")
    assert logs.communicate(timeout=PATIENCE)[0] == "board: goodbye\n"
    eventually(lambda: all(p["status"]["phase"] in ("Succeeded", "Failed") for p in web.pods()), PATIENCE)
