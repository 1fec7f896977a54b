"""The dashboard in a real browser: a VM from the form to its end, and somebody who may see little.

DASHBOARD_PICTURES=1 also writes the pictures of docs/dashboard.md.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

from browser import CHROMIUM, Complaints, chromium
from cluster.clusters import VIRTFLEET, Cluster, Kubectl
from virtfleet.local import guestimage
from vm.guests import PATIENCE
from vm.test_interfaces import definition
from waiting import eventually

pytestmark = [
    pytest.mark.timeout(600),
    pytest.mark.thorough("it asks the API that virtctl asks"),
    pytest.mark.skipif(not CHROMIUM, reason="needs Debian's chromium"),
]
PICTURES = Path(__file__).parents[2] / "docs/images" if os.environ.get("DASHBOARD_PICTURES") else None
LONG = 1000 * PATIENCE  # milliseconds
NAMESPACE, OTHERS = "dashboard", "dashboard-others"
BACKGROUND = "getComputedStyle(document.body).backgroundColor"
HOST = "virt-dashboard.kubevirt.svc"


@pytest.fixture(scope="module")
def kubectl(fleet: Cluster) -> Iterator[Kubectl]:
    kubectl = Kubectl(fleet, NAMESPACE)
    for namespace in (NAMESPACE, OTHERS):
        kubectl("create", "namespace", namespace)
    if fleet.data:
        kubectl.apply(definition("blue", "10.78.0.0/24"))
    yield kubectl
    for namespace in (NAMESPACE, OTHERS):
        kubectl("delete", "vm", "--all", "-n", namespace, "--timeout=80s")
        kubectl("delete", "namespace", namespace, "--wait=false")


@pytest.fixture
def url(fleet: Cluster) -> Iterator[str]:
    """The link that `virtfleet dashboard` prints."""
    command = [VIRTFLEET, "dashboard", "--kubeconfig", str(fleet.kubeconfig), "-o", "json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        printed = ""
        try:
            while not printed.rstrip().endswith("}"):
                line = process.stdout.readline()
                assert line, "it has ended"
                printed += line
            yield json.loads(printed)["url"]
            process.send_signal(signal.SIGINT)
            assert process.wait(30) == 0
        finally:
            process.kill()


@pytest.fixture
def browser() -> Iterator[Browser]:
    with chromium() as browser:
        yield browser


def by(page: Page, name: str):  # type: ignore[no-untyped-def]
    return page.locator(f"[data-test={name}]")


def picture(page: Page, name: str) -> None:
    if PICTURES:
        PICTURES.mkdir(exist_ok=True)
        page.screenshot(path=PICTURES / f"dashboard-{name}.png")


def screen(page: Page) -> str:
    """The pixels of the guest's screen."""
    return page.evaluate("document.querySelector('[data-test=screen] canvas').toDataURL()")


def test_a_vm_from_the_form_to_its_end(kubectl: Kubectl, url: str, browser: Browser) -> None:
    context = browser.new_context(viewport={"width": 1280, "height": 800})
    page = context.new_page()
    complaints = Complaints(page)
    home = url.partition("#")[0]

    # In by the link, which no longer stands in the address; the fleet is there.
    page.goto(url)
    expect(by(page, "who")).to_be_visible(timeout=LONG)
    assert "key=" not in page.url
    expect(page.locator(".node")).not_to_have_count(0, timeout=LONG)
    expect(by(page, "pool-primary")).to_be_visible()

    # A mistake is marked while it is typed; what is right is taken, and where it would go is told.
    page.keyboard.press("c")
    page.locator("[name=name]").fill("faced")
    page.locator("[name=namespace]").select_option(NAMESPACE)
    page.locator("[name=image]").fill(guestimage.IMAGE)
    page.locator("[name=memory]").fill("128Mo")
    expect(by(page, "verdict")).to_have_attribute("data-allowed", "false", timeout=LONG)
    expect(by(page, "verdict")).to_contain_text("memory")
    expect(by(page, "create")).to_be_disabled()
    page.locator("[name=memory]").fill("128Mi")
    by(page, "add-disk").click()
    page.locator("[name=disk-kind-0]").select_option("scratch")
    page.locator("[name=disk-size-0]").fill("8Mi")
    if kubectl.cluster.data:  # elsewhere nobody may attach Pods
        page.locator("[name=networks]").fill("blue")
    expect(by(page, "verdict")).to_have_attribute("data-allowed", "true", timeout=LONG)
    expect(by(page, "outlook")).to_contain_text("qemu-kvm", timeout=LONG)
    picture(page, "create")
    by(page, "create").click()

    # It boots before one's eyes.
    expect(by(page, "vm-name")).to_have_text("faced", timeout=LONG)
    expect(by(page, "status")).to_have_text("Running", timeout=LONG)
    expect(by(page, "conditions")).to_contain_text("The guest's agent answers.", timeout=2 * LONG)
    assert kubectl.json("get", "vm", "faced")["spec"]["runStrategy"] == "Always"
    vmi = kubectl.json("get", "vmi", "faced")
    assert {volume["name"] for volume in vmi["status"]["volumeStatus"]} >= {"root", "disk1"}
    interfaces = {interface["name"] for interface in vmi["status"]["interfaces"]}
    assert interfaces == ({"default", "net1"} if kubectl.cluster.data else {"default"})

    # What is typed into its console is answered, and what is written to its screen is seen there.
    page.locator("[data-test=tab-console]").click()
    expect(by(page, "console-state")).to_have_text("connected", timeout=LONG)
    page.locator(".terminal textarea").focus()

    def shown() -> str:
        return page.evaluate("document.querySelector('[data-test=terminal]').shown()")

    def answered(typed: str, answer: str) -> bool:
        if answer not in shown():
            page.keyboard.type(f"{typed}\n")
            page.wait_for_timeout(500)
        return answer in shown()

    eventually(lambda: answered("echo $((6 * 7)) is the answer", "42 is the answer"), PATIENCE)
    picture(page, "console")
    beside = context.new_page()
    beside.goto(f"{home}#/vm/{NAMESPACE}/faced/screen")
    expect(by(beside, "screen-state")).to_have_text("connected", timeout=LONG)
    eventually(lambda: beside.locator("[data-test=screen] canvas").count(), PATIENCE)
    before = screen(beside)

    def changed() -> bool:
        page.keyboard.type("head -c 3000 /dev/zero | tr '\\0' '#' >/dev/tty0\n")
        beside.wait_for_timeout(500)
        return screen(beside) != before

    eventually(changed, PATIENCE)
    beside.close()

    # Its YAML is the VM's own.
    page.locator("[data-test=tab-yaml]").click()
    expect(page.locator(".cm-content")).to_contain_text("VirtualMachine", timeout=LONG)
    expect(by(page, "verdict")).to_have_attribute("data-allowed", "true", timeout=LONG)

    # Pause, and on.
    page.locator("[data-test=tab-overview]").click()
    by(page, "pause").click()
    expect(by(page, "status")).to_have_text("Paused", timeout=LONG)
    by(page, "unpause").click()
    expect(by(page, "status")).to_have_text("Running", timeout=LONG)

    # To another node, with its progress.
    node = by(page, "fact-Node").inner_text()
    by(page, "migrate").click(timeout=LONG)
    expect(by(page, "move")).to_have_attribute("data-phase", "Succeeded", timeout=LONG)
    expect(by(page, "fact-Node")).not_to_have_text(re.compile(rf"^{node}\b"), timeout=LONG)
    moved = by(page, "fact-Node").inner_text()
    expect(page.locator("figure").first).to_be_visible(timeout=LONG)
    picture(page, "vm")

    # Why it is there.
    page.locator("[data-test=tab-why]").click()
    expect(by(page, "why")).to_contain_text(f"It runs on {moved}", timeout=LONG)
    expect(by(page, "why")).to_contain_text(
        "superduper.io/MegaSlop_9000" if "megaslop" in by(page, "why").inner_text() else "Node by node"
    )
    picture(page, "why")

    # On a telephone nothing sticks out.
    page.set_viewport_size({"width": 390, "height": 780})
    for place in ("", "vms", "create", f"vm/{NAMESPACE}/faced"):
        page.goto(f"{home}#/{place}")
        expect(page.locator("main")).to_be_visible()
        assert page.evaluate("document.documentElement.scrollWidth") <= 390, place
    page.goto(f"{home}#/")
    expect(page.locator("a.cell").first).to_be_visible(timeout=LONG)
    picture(page, "narrow")
    page.set_viewport_size({"width": 1280, "height": 800})
    picture(page, "fleet")
    light = page.evaluate(BACKGROUND)
    page.get_by_label("Light or dark").click()
    assert page.evaluate(BACKGROUND) != light
    picture(page, "fleet-dark")
    page.set_viewport_size({"width": 390, "height": 780})
    picture(page, "narrow-dark")
    page.set_viewport_size({"width": 1280, "height": 800})

    # Found by the keyboard, and deleted.
    page.goto(f"{home}#/vms")
    page.keyboard.press("/")
    page.keyboard.type(f"{NAMESPACE}/faced")
    expect(by(page, "count")).to_have_text(re.compile("^1( |$)"), timeout=LONG)
    page.keyboard.press("Enter")
    by(page, "delete").click(timeout=LONG)
    by(page, "confirm").click()
    expect(page.locator(f"[data-test='row-{NAMESPACE}/faced']")).to_have_count(0, timeout=LONG)
    eventually(lambda: kubectl.run("get", "vm", "faced").returncode != 0, PATIENCE)
    assert complaints == [], "nothing was kept from the page by its policy"
    context.close()


@pytest.mark.local_home("the network of Pods has to be reached from here")
def test_who_may_see_little_sees_what_is_theirs_on_the_clusters_own_dashboard(kubectl: Kubectl) -> None:
    for namespace in (NAMESPACE, OTHERS):
        kubectl("apply", "-n", namespace, "-f", "-", stdin=json.dumps(_halted(f"of-{namespace}")))
    kubectl("create", "serviceaccount", "visitor")
    binding = ("rolebinding", "visitor", "--clusterrole=kubevirt.io:view", f"--serviceaccount={NAMESPACE}:visitor")
    kubectl("create", *binding)
    token = kubectl("create", "token", "visitor").strip()
    _switch(kubectl, "{}")
    try:
        pod = eventually(lambda: _ready(kubectl), PATIENCE)
        assert pod["spec"]["automountServiceAccountToken"] is False
        account = f"system:serviceaccount:kubevirt:{pod['spec']['serviceAccountName']}"
        assert kubectl.run("auth", "can-i", "list", "vm", "-A", f"--as={account}").stdout.strip() == "no"
        with chromium(f"--host-resolver-rules=MAP {HOST} {pod['status']['podIP']}") as browser:
            page = browser.new_context(ignore_https_errors=True).new_page()
            complaints = Complaints(page)
            page.goto(f"https://{HOST}:8443/")
            page.locator("[name=token]").fill("nobody")
            page.get_by_role("button", name="Log in").click()
            expect(page.get_by_role("alert")).to_contain_text("does not know this token", timeout=LONG)
            page.locator("[name=token]").fill(token)
            page.get_by_role("button", name="Log in").click()
            expect(by(page, "who")).to_have_text("visitor", timeout=LONG)
            page.goto(f"https://{HOST}:8443/#/vms")
            expect(page.locator(f"[data-test='row-{NAMESPACE}/of-{NAMESPACE}']")).to_be_visible(timeout=LONG)
            expect(by(page, "count")).to_have_text("1")
            page.goto(f"https://{HOST}:8443/#/vm/{OTHERS}/of-{OTHERS}")
            expect(page.locator(".empty")).to_contain_text("forbidden", timeout=LONG)
            page.goto(f"https://{HOST}:8443/#/vm/{NAMESPACE}/of-{NAMESPACE}")
            by(page, "start").click(timeout=LONG)
            expect(page.locator(".notice.bad")).to_contain_text("You may not do that", timeout=LONG)
            assert kubectl.json("get", "vm", f"of-{NAMESPACE}")["spec"]["runStrategy"] == "Halted"
            assert complaints == []
    finally:
        _switch(kubectl, "null")
    eventually(
        lambda: not kubectl("get", "deployment,service", "virt-dashboard", "-n", "kubevirt", "--ignore-not-found")
    )


def _switch(kubectl: Kubectl, to: str) -> None:
    patch = f'{{"spec": {{"configuration": {{"dashboard": {to}}}}}}}'
    kubectl("patch", "kubevirt", "kubevirt", "-n", "kubevirt", "--type=merge", "-p", patch)


def _ready(kubectl: Kubectl) -> dict | None:  # type: ignore[type-arg]
    pods = kubectl.json("get", "pods", "-n", "kubevirt", "-l", "kubevirt.io=virt-dashboard")["items"]
    return next(
        (p for p in pods if all(c["ready"] for c in p["status"].get("containerStatuses") or [{"ready": False}])), None
    )


def _halted(name: str) -> dict[str, object]:
    spec = {"domain": {"memory": {"guest": "64Mi"}, "devices": {}}}
    return {
        "apiVersion": "kubevirt.io/v1",
        "kind": "VirtualMachine",
        "metadata": {"name": name},
        "spec": {"runStrategy": "Halted", "template": {"spec": spec}},
    }
