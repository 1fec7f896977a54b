"""What VM users do with `virtfleet`, through the aggregated API of a real installation, with a guest that answers."""

from __future__ import annotations

import json
import re
import shutil
import signal
import struct
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from cluster.clusters import VIRTFLEET, Cluster, free_port
from docblocks import Block, run, shown
from vm.accessed import NO_QUESTIONS, Used, greeting, holders
from vm.guests import PATIENCE
from vm.reader import environment
from waiting import eventually

NAMESPACE = "access"

pytestmark = [
    pytest.mark.timeout(600),
    pytest.mark.thorough("it asks the API that virtctl asks"),
    pytest.mark.skipif(not shutil.which("ssh"), reason="needs an ssh client"),
]


@pytest.fixture(scope="module")
def web(fleet: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Used]:
    with Used(fleet, NAMESPACE, tmp_path_factory.mktemp("home")) as used:
        yield used


@pytest.fixture
def page(web: Used, tmp_path: Path) -> Callable[..., None]:
    """Does what docs/user-access.md shows, of a block that begins with a command."""

    def does(block: Block, **given: str) -> None:
        quietly = f"-i {web.key} -q {' '.join(NO_QUESTIONS)}"
        names = {"default": NAMESPACE, "-i key": quietly, **given}
        run(block, tmp_path, environment(web.kubectl.cluster, tmp_path, NAMESPACE), names)

    return does


def command(*words: str) -> list[str]:
    return [VIRTFLEET, words[0], "-n", NAMESPACE, *words[1:]]


@contextmanager
def serving(web: Used, *words: str) -> Iterator[Any]:
    """A command that offers local ports until ^C, and which ones."""
    process = subprocess.Popen([*command(*words), "-o", "json"], stdout=subprocess.PIPE, text=True, env=web.environment)
    try:
        assert process.stdout
        decoder, printed = json.JSONDecoder(), ""
        for line in process.stdout:
            printed += line
            try:
                told, _ = decoder.raw_decode(printed)
            except ValueError:
                continue
            break
        yield told
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 0
    finally:
        process.kill()
        process.wait()


def test_what_is_typed_on_the_console_is_answered_by_the_guest(web: Used) -> None:
    web.answers_what_is_typed(*command("console", "web"))


def test_what_the_guest_has_said_is_in_a_log(web: Used, page: Callable[..., None]) -> None:
    [pod] = web.kubectl.json("get", "pods", "-l", "vm.kubevirt.io/name=web")["items"]
    page(shown(__file__, "kubectl logs"), **{"virt-launcher-web-0f6a1a24": pod["metadata"]["name"]})
    both = 2 + len(holders(pod))
    assert web.kubectl("get", "pod", pod["metadata"]["name"], "--no-headers").split()[1] == f"{both}/{both}"


def test_a_second_console_takes_over_from_the_first(web: Used) -> None:
    reason = "somebody else has connected to the console of access/web"
    web.lets_the_last_one_have_the_console(*command("console", "web"), reason=reason)


def test_the_screen_is_there_as_a_picture_and_for_viewers(web: Used, tmp_path: Path, page: Callable[..., None]) -> None:
    page(shown(__file__, "virtfleet vnc"))
    picture = tmp_path / "screen.png"
    web.does(*command("vnc", "web", "--screenshot", str(picture)))
    png = picture.read_bytes()
    assert png.startswith(b"\x89PNG\r\n\x1a\n")
    width, height = struct.unpack("!II", png[16:24])
    assert width >= 640 and height >= 400
    with serving(web, "vnc", "web") as told:
        assert greeting(told["port"]) == b"RFB 003.008\n"


def test_a_paused_guest_is_shown_as_such_until_it_goes_on(web: Used, page: Callable[..., None]) -> None:
    page(shown(__file__, "virtfleet pause"))
    web.does(*command("pause", "web"))
    eventually(lambda: web.condition("Paused") and not web.condition("Ready"))
    refused = web.run(*command("pause", "web"))
    assert refused.returncode == 1
    assert "VMI is already paused" in refused.stderr
    web.does(*command("unpause", "web"))
    eventually(lambda: web.condition("Ready") and not web.condition("Paused"))


def test_ports_of_the_guest_are_reached_from_here(web: Used, page: Callable[..., None]) -> None:
    page(shown(__file__, "virtfleet port-forward"), **{"8080": str(free_port()), "2222": str(free_port())})
    with serving(web, "port-forward", "web", "0:80") as [port]:
        assert web.hello(port["port"]) == "hello from web at 10.0.2.2\n"


def test_ssh_runs_a_command_in_the_guest(web: Used, page: Callable[..., None]) -> None:
    ssh = command("ssh", "root@web", "-i", str(web.key), *NO_QUESTIONS, "hostname; exit 3")

    def done() -> subprocess.CompletedProcess[str] | None:
        tried = web.run(*ssh)
        return tried if tried.returncode == 3 else None

    assert eventually(done, PATIENCE).stdout == "web\n"
    page(shown(__file__, "virtfleet ssh"))


def configured(web: Used, checking: str) -> list[str]:
    """Options of ssh and scp: the configuration that the docs show, and a file that keeps the guest's key."""
    text = (Path(__file__).parents[2] / "docs/user-access.md").read_text()
    found = re.search(r"# ~/.ssh/config\n(.*?)```", text, re.DOTALL)
    assert found and "virtfleet ssh --proxy" in found[1]
    file = web.key.with_name("config")
    file.write_text(found[1].replace("virtfleet ssh", f"{VIRTFLEET} ssh -n {NAMESPACE}"))
    keys = ["-o", f"UserKnownHostsFile={web.key.with_name('known')}", "-o", f"StrictHostKeyChecking={checking}"]
    return ["-F", str(file), "-i", str(web.key), *keys]


def test_scp_by_the_configuration_that_the_docs_show(web: Used, tmp_path: Path) -> None:
    there, back = tmp_path / "there", tmp_path / "back"
    there.write_bytes(bytes(range(256)) * 1000)
    scp = ["scp", "-q", *configured(web, "accept-new")]
    # The guest's agent is there before its ssh server.
    eventually(lambda: web.run(*scp, str(there), "root@web.vm:there").returncode == 0, PATIENCE)
    web.does(*scp, "root@web.vm:there", str(back))
    assert back.read_bytes() == there.read_bytes()


def test_a_vm_is_restarted_stopped_and_started_and_its_console_waits_for_it(web: Used) -> None:
    first = web.runs()
    web.does(*command("restart", "web", "--force"))
    second = web.runs(other_than=first)
    web.does(*command("restart", "web", "--force"))
    web.does(*command("stop", "web", "--force"))  # at once: the last word wins
    eventually(lambda: web.vm()["status"]["printableStatus"] == "Stopped" and web.vmi() is None, PATIENCE)
    assert "stateChangeRequests" not in web.vm()["status"], "nothing waits to start it again"
    assert web.vm()["spec"]["runStrategy"] == "Halted"
    again = web.run(*command("stop", "web"))
    assert (again.returncode, "not running" in again.stderr) == (1, True)
    with web.console(*command("console", "web")) as waiting:
        waiting.says("does not run yet; waiting")
        assert web.does(*command("start", "web", "--wait")).startswith("access/web is Running on ")
        waiting.says("virtfleet-guest ready name=web")
    assert web.runs() != second
    ssh = ["ssh", *configured(web, "yes"), "root@web.vm", "hostname"]
    assert eventually(lambda: web.run(*ssh).stdout, PATIENCE) == "web\n", "its key is the one of before"


def test_a_guest_finds_its_devices_where_they_were_when_one_was_added_before_them(
    web: Used, page: Callable[..., None]
) -> None:
    first = web.runs()
    known = eventually(lambda: web.vm()["status"].get("guestABI"))
    assert known["machine"].startswith("pc-q35-"), "the version, and not the alias that the spec has"
    assert "cpu" not in known, "which is that of a run"
    page(shown(__file__, "virtfleet stop"))
    eventually(lambda: web.vm()["status"]["printableStatus"] == "Stopped" and web.vmi() is None, PATIENCE)
    added = [("volumes/0", {"emptyDisk": {"capacity": "8Mi"}}), ("domain/devices/disks/0", {"disk": {"bus": "virtio"}})]
    patch = [
        {"op": "add", "path": f"/spec/template/spec/{path}", "value": {"name": "added", **value}}
        for path, value in added
    ]
    web.kubectl("patch", "vm", "web", "--type=json", "-p", json.dumps(patch))
    page(shown(__file__, "virtfleet start"))  # and its console
    web.runs(other_than=first)
    vmi = web.vmi()
    assert vmi is not None
    now = vmi["status"]["guestABI"]
    assert vmi["status"]["machine"]["type"] == now["machine"] == known["machine"]
    places = {device["name"]: device for device in now["devices"]}
    assert [places.get(device["name"]) for device in known["devices"]] == known["devices"]
    assert {name.rpartition("/")[2] for name in places} >= {"added", "root", "seed", "default"}
    (interface,) = vmi["status"]["interfaces"]
    assert interface["mac"] in {device.get("mac") for device in known["devices"]}
