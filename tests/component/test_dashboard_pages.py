"""The dashboard's pages in a real browser, over an API server with ten thousand VMs that do not run."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
from playwright.async_api import Page, async_playwright, expect

from browser import CHROMIUM, FLAGS
from component.test_dashboard import KEY, Kit, Start, start  # noqa: F401 (a fixture)
from virtfleet.kube.resource import KUBEVIRTS, NAMESPACES, NODES, VMIS, VMS

pytestmark = [
    pytest.mark.timeout(300),
    pytest.mark.slow,
    pytest.mark.skipif(not CHROMIUM, reason="needs Debian's chromium"),
]
COUNT = 10_000
LONG = 100_000  # milliseconds, on a machine that has other things to do
ROWS = "[data-test^=row-]"


@pytest.fixture
async def kit(start: Start) -> Kit:  # noqa: F811
    kit = await start()
    kubevirt = {"apiVersion": "kubevirt.io/v1", "kind": "KubeVirt", "spec": {}}
    kit.cluster.put(KUBEVIRTS, {**kubevirt, "metadata": _meta("kubevirt", "kubevirt")})
    kit.cluster.put(NAMESPACES, {"metadata": _meta("team")})
    labels = {"kubevirt.io/schedulable": "true", "hypervisor.node.kubevirt.io/qemu-kvm": "true"}
    for name in ("node-a", "node-b"):
        meta = {**_meta(name), "labels": labels}
        status = {"allocatable": {"cpu": "8", "memory": "64Gi"}, "conditions": [{"type": "Ready", "status": "True"}]}
        kit.cluster.put(NODES, {"metadata": meta, "status": status})
    for i in range(COUNT):
        _put(kit, i, "Running")
    return kit


@pytest.fixture
async def page(kit: Kit) -> AsyncIterator[Page]:
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=CHROMIUM, args=list(FLAGS))
        page = await browser.new_page(viewport={"width": 1280, "height": 800})
        page.set_default_timeout(LONG)
        complaints: list[str] = []
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("console", lambda said: complaints.append(said.text) if "Content Security" in said.text else None)
        await page.goto(f"{kit.url}/#key={KEY}")
        await expect(page.locator("[data-test=who]")).to_have_text("owner", timeout=LONG)
        yield page
        await browser.close()
        assert complaints == []


async def test_ten_thousand_vms_are_there_and_only_those_in_sight_are_drawn(page: Page, kit: Kit) -> None:
    await page.goto(f"{kit.url}/#/vms")
    await expect(page.locator("[data-test=count]")).to_have_text(str(COUNT), timeout=LONG)
    assert await page.locator(ROWS).count() < 60
    await page.evaluate("() => { const list = document.querySelector('.body'); list.scrollTop = list.scrollHeight; }")
    await expect(page.locator(f"[data-test='row-team/vm-{COUNT - 1:05}']")).to_be_visible(timeout=LONG)
    assert await page.locator(ROWS).count() < 60

    # What changes is seen without asking, also by the filter.
    await page.locator(".filter").fill("paused")
    await expect(page.locator("[data-test=count]")).to_have_text(f"0 of {COUNT}", timeout=LONG)
    _put(kit, 4711, "Paused")
    await expect(page.locator("[data-test='row-team/vm-04711']")).to_be_visible(timeout=LONG)
    kit.cluster.remove(VMS, "vm-04711", "team")
    kit.cluster.remove(VMIS, "vm-04711", "team")
    await expect(page.locator(ROWS)).to_have_count(0, timeout=LONG)

    # The server comes back, and so does the list.
    kit.cluster.drop_watches()
    _put(kit, 12, "Paused")
    await expect(page.locator("[data-test='row-team/vm-00012']")).to_be_visible(timeout=LONG)

    # The fleet shows as many as fit, and nothing sticks out on a telephone.
    await page.goto(f"{kit.url}/#/")
    await expect(page.locator("[data-test=node-node-a] .more")).to_be_visible(timeout=LONG)
    await page.set_viewport_size({"width": 390, "height": 780})
    for place in ("", "vms", "create", "vm/team/vm-00012"):
        await page.goto(f"{kit.url}/#/{place}")
        await expect(page.locator("main")).to_be_visible()
        assert await page.evaluate("document.documentElement.scrollWidth") <= 390, place


def _meta(name: str, namespace: str = "", kind: str = "") -> dict[str, Any]:
    return {"name": name, "uid": f"{kind}{namespace}-{name}", **({"namespace": namespace} if namespace else {})}


def _put(kit: Kit, number: int, status: str) -> None:
    name = f"vm-{number:05}"
    spec = {"domain": {"cpu": {"cores": 1}, "memory": {"guest": "128Mi"}}}
    vm = {"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine", "spec": {"template": {"spec": spec}}}
    kit.cluster.put(VMS, {**vm, "metadata": _meta(name, "team", "vm"), "status": {"printableStatus": status}})
    paused = [{"type": "Paused", "status": "True"}] if status == "Paused" else []
    told = {"phase": "Running", "nodeName": f"node-{'ab'[number % 2]}", "conditions": paused}
    vmi = {"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstance", "spec": spec, "status": told}
    kit.cluster.put(VMIS, {**vmi, "metadata": _meta(name, "team", "vmi")})
