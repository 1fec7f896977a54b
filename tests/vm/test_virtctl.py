"""The real virtctl against a real installation and a guest that answers.

VIRTCTL names the program, else it is on the PATH, else packed in the material beside the repository.
"""

from __future__ import annotations

import json
import lzma
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
import yaml

from cluster.clusters import Cluster, Kubectl, free_port
from reference import beside
from virtfleet.local import guestimage
from vm.accessed import NO_QUESTIONS, Used
from vm.guests import PATIENCE
from waiting import eventually

NAMESPACE = "virtctl"

pytestmark = [
    pytest.mark.timeout(600),
    pytest.mark.skipif(not shutil.which("ssh"), reason="needs an ssh client"),
]


@pytest.fixture(scope="module")
def web(fleet: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Used]:
    with Used(fleet, NAMESPACE, tmp_path_factory.mktemp("home")) as used:
        yield used


@cache
def virtctl() -> str:
    if program := os.environ.get("VIRTCTL") or shutil.which("virtctl"):
        return program
    packed = beside("kube/virtctl.xz")
    unpacked = guestimage.default_cache() / f"virtctl-{packed.stat().st_mtime_ns}"
    if not unpacked.exists():
        with lzma.open(packed) as source, tempfile.NamedTemporaryFile(dir=unpacked.parent, delete=False) as target:
            shutil.copyfileobj(source, target)
        os.chmod(target.name, 0o755)
        os.rename(target.name, unpacked)
    return str(unpacked)


def command(*words: str) -> list[str]:
    return [virtctl(), "-n", NAMESPACE, *words]


def test_console(web: Used) -> None:
    web.answers_what_is_typed(*command("console", "web"))


def test_a_console_that_is_taken_over_ends_with_the_reason(web: Used) -> None:
    web.lets_the_last_one_have_the_console(*command("console", "web"), reason="somebody else took over")


def test_virsh_in_the_launcher(web: Used) -> None:
    (pod,) = web.kubectl("get", "pods", "-l", "vm.kubevirt.io/name=web", "-o", "name").split()
    assert web.kubectl("exec", pod, "-c", "compute", "--", "virsh", "list", "--name").split() == [f"{NAMESPACE}_web"]


def test_vnc_screenshot(web: Used, tmp_path: Path) -> None:
    picture = tmp_path / "screen.png"
    web.does(*command("vnc", "screenshot", "web", "-f", str(picture)))
    assert picture.read_bytes().startswith(b"\x89PNG\r\n\x1a\n")


def test_pause_and_unpause(web: Used) -> None:
    assert "scheduled to pause" in web.does(*command("pause", "vm", "web"))
    eventually(lambda: web.condition("Paused"))
    refused = web.run(*command("pause", "vmi", "web"))
    assert (refused.returncode, "VMI is already paused" in refused.stderr) == (1, True)
    web.does(*command("unpause", "vmi", "web"))
    eventually(lambda: not web.condition("Paused"))


def test_port_forward(web: Used) -> None:
    port = free_port()
    with web.beside(*command("port-forward", "vm/web", f"{port}:80")):
        assert web.hello(port) == "hello from web at 10.0.2.2\n"


def test_ssh(web: Used) -> None:
    options = [f"--local-ssh-opts={one} {other}" for one, other in zip(*[iter(NO_QUESTIONS)] * 2, strict=True)]
    ssh = command("ssh", "root@vmi/web", "-i", str(web.key), *options, "-c", "hostname")

    def done() -> subprocess.CompletedProcess[str] | None:
        tried = web.run(*ssh)
        return tried if tried.returncode == 0 else None

    assert eventually(done, PATIENCE).stdout == "web\n"


def test_what_the_guests_agent_tells(web: Used) -> None:
    web.wait_for_agent()
    told = json.loads(web.does(*command("guestosinfo", "web")))
    assert (told["hostname"], told["os"]["id"]) == ("web", "virtfleet-guest")
    assert json.loads(web.does(*command("userlist", "web")))["items"] == []
    mounts = [f["mountPoint"] for f in json.loads(web.does(*command("fslist", "web")))["items"]]
    assert "/var/lib/cloud/seed/nocloud" in mounts


def test_expand(web: Used) -> None:
    expanded = yaml.safe_load(web.does(*command("expand", "--vm", "web")))
    assert (expanded["kind"], expanded["metadata"]["name"]) == ("VirtualMachine", "web")


TYPES = """\
apiVersion: instancetype.kubevirt.io/v1beta1
kind: VirtualMachineInstancetype
metadata: {name: tiny}
spec: {cpu: {guest: 2}, memory: {guest: 192Mi}}
---
apiVersion: instancetype.kubevirt.io/v1beta1
kind: VirtualMachinePreference
metadata: {name: cores}
spec: {cpu: {preferredCPUTopology: cores}, devices: {preferredDiskBus: virtio}}
"""


@pytest.mark.thorough("sizes are worked out by the same code in both homes")
def test_a_guest_is_as_large_as_the_instance_type_that_it_was_created_with(web: Used) -> None:
    web.kubectl.apply(*yaml.safe_load_all(TYPES))
    names = ("--instancetype", "virtualmachineinstancetype/tiny", "--preference", "virtualmachinepreference/cores")
    disk = f"src:{guestimage.IMAGE}"
    made = web.does(*command("create", "vm", "--name", "typed", *names, "--volume-containerdisk", disk))
    web.kubectl.apply(yaml.safe_load(made))
    eventually(lambda: web.kubectl.json("get", "vmi", "typed")["status"].get("phase") == "Running", 2 * PATIENCE)
    with web.console(*command("console", "typed")) as terminal:
        terminal.says("onnected to")
        terminal.says("guest# ", nudge="\r")
        terminal.type("echo CPUs: $(grep -c ^processor /proc/cpuinfo)\r")
        terminal.says("CPUs: 2")
        terminal.type('awk \'/MemTotal/ {print ($2 > 98304 && $2 < 196608) ? "as" "ked" : $0}\' /proc/meminfo\r')
        terminal.says("asked")
    expanded = yaml.safe_load(web.does(*command("expand", "--vm", "typed")))["spec"]
    assert expanded["template"]["spec"]["domain"]["cpu"]["cores"] == 2
    assert not {"instancetype", "preference"} & expanded.keys()
    kept = web.kubectl.json("get", "vm", "typed")["status"]["instancetypeRef"]["controllerRevisionRef"]["name"]
    assert web.kubectl.json("get", "controllerrevision", kept)["data"]["spec"]["memory"] == {"guest": "192Mi"}
    common = web.kubectl.json("get", "virtualmachineclusterinstancetype", "u1.small")
    assert common["spec"] == {"cpu": {"guest": 1}, "memory": {"guest": "2Gi"}}
    web.kubectl("delete", "vm", "typed")


def test_expose(web: Used) -> None:
    web.does(*command("expose", "vm", "web", "--name", "web-http", "--port", "80"))
    vmi = web.vmi()
    assert vmi
    address = vmi["status"]["interfaces"][0]["ipAddress"]

    def ready() -> list[str]:
        slices = web.kubectl.json("get", "endpointslices", "-l", "kubernetes.io/service-name=web-http")["items"]
        endpoints = [endpoint for piece in slices for endpoint in piece["endpoints"] or ()]
        return [a for endpoint in endpoints if endpoint["conditions"]["ready"] for a in endpoint["addresses"]]

    eventually(lambda: address in ready())
    web.does(*command("pause", "vm", "web"))
    eventually(lambda: address not in ready())
    web.does(*command("unpause", "vm", "web"))
    eventually(lambda: address in ready())


def test_version(web: Used) -> None:
    assert "Server Version" in web.does(*command("version"))


def test_permitted_devices(web: Used, fleet: Cluster) -> None:
    kubevirt = Kubectl(fleet, "kubevirt").json("get", "kubevirt", "kubevirt")
    permitted = kubevirt["spec"]["configuration"].get("permittedHostDevices") or {}
    told = web.does(virtctl(), "-n", "kubevirt", "permitted-devices")
    for device in permitted.get("pciHostDevices", ()):
        assert device["resourceName"] in told
    assert "Permitted Devices" in told


@pytest.mark.thorough("others migrate and cancel as well")
def test_migrate_and_migrate_cancel(web: Used) -> None:
    nothing = web.run(*command("migrate-cancel", "web"))
    assert (nothing.returncode, "Found no migration to cancel for web" in nothing.stderr) == (1, True)

    def latest() -> dict[str, str]:
        migrations = web.kubectl.json("get", "vmim")["items"]
        migrations.sort(key=lambda each: each["metadata"]["creationTimestamp"])
        return {each["metadata"]["name"]: each.get("status", {}).get("phase", "") for each in migrations[-1:]}

    def node() -> str:
        vmi = web.vmi()
        assert vmi
        return str(vmi["status"]["nodeName"])

    here = node()
    # Nowhere is such a node, so that the migration is still there to be cancelled.
    web.does(*command("migrate", "web", "--addedNodeSelector", "nowhere=true"))
    eventually(lambda: "Scheduling" in latest().values())
    second = web.run(*command("migrate", "web"))
    assert second.returncode == 1
    assert "in-flight migration detected" in second.stderr, second.stderr
    assert "was scheduled to migrate" not in second.stdout
    web.does(*command("migrate-cancel", "web"))
    eventually(lambda: not latest(), PATIENCE)
    assert node() == here
    assert "scheduled to migrate" in web.does(*command("migrate", "web"))
    eventually(lambda: "Succeeded" in latest().values(), PATIENCE)
    assert node() != here


def test_what_cannot_be_done_is_refused_with_a_reason(web: Used) -> None:
    refused = web.run(*command("memory-dump", "get", "web", "--claim-name", "none"))
    assert refused.returncode == 1
    assert "memory cannot be dumped to a claim yet" in refused.stderr


@pytest.mark.thorough("a guest boots again as it does in the local home")
def test_soft_reboot_and_reset(web: Used) -> None:
    web.wait_for_agent()
    with web.console(*command("console", "web")) as console:
        console.says("Successfully connected")
        web.does(*command("soft-reboot", "web"))
        console.says("virtfleet-guest reboot")
        console.says("virtfleet-guest ready")
        web.does(*command("reset", "web"))
        console.says("virtfleet-guest ready")


def test_restart_stop_and_start(web: Used) -> None:
    first = web.runs()
    web.does(*command("restart", "web", "--force", "--grace-period", "0"))
    second = web.runs(other_than=first)
    web.does(*command("stop", "web", "--force", "--grace-period", "0"))
    eventually(lambda: web.vmi() is None, PATIENCE)
    web.does(*command("start", "web", "--paused"))
    assert web.runs() != second
    eventually(lambda: web.condition("Paused"))
    web.does(*command("unpause", "vm", "web"))
    eventually(lambda: not web.condition("Paused"))
