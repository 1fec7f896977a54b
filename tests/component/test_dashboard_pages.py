"""The dashboard's pages in a real browser, over an API server with ten thousand VMs that do not run."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any

import pytest
import yaml
from aiohttp import web
from playwright.async_api import Page, async_playwright, expect

from browser import CHROMIUM, FLAGS
from component.test_dashboard import KEY, Kit, Start, start  # noqa: F401 (a fixture)
from virtfleet.kube.resource import KUBEVIRTS, NAMESPACES, NODES, PERSISTENT_VOLUME_CLAIMS, VMIS, VMS

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
    for i in range(COUNT):
        _put(kit, i, "Running")
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


async def test_the_form_makes_volumes_and_networks_of_every_kind(page: Page, kit: Kit) -> None:
    kit.cluster.put(PERSISTENT_VOLUME_CLAIMS, {"metadata": _meta("kept", "team"), "status": {"phase": "Bound"}})
    await page.set_viewport_size({"width": 1280, "height": 2400})  # all of the YAML is drawn
    await page.goto(f"{kit.url}/#/create")

    await _fill(page, name="made", namespace="team", source="import")
    await _fill(
        page, url="docker://registry.example/disk:1", storage="5Gi", network="bridge", networks="blue, other/green"
    )
    for at in range(5):
        await page.locator("[data-test=add-disk]").click()
        await expect(page.locator(f"[name=disk-kind-{at}]")).to_be_visible(timeout=LONG)
    await _fill(page, disk_kind_0="claim", disk_kind_1="blank", disk_kind_2="import", disk_kind_3="scratch")
    await _fill(page, disk_from_0="kept", disk_size_1="1Gi", disk_size_2="2Gi", disk_size_3="3Gi")
    await _fill(page, disk_from_2="https://images.example/disk.qcow2")
    await page.get_by_label("Without disk 5").click()
    await expect(page.locator(".cm-content")).to_contain_text("disk.qcow2", timeout=LONG)
    await expect(page.locator(".cm-content")).not_to_contain_text("made-disk5", timeout=LONG)
    made = (await _written(page))["spec"]
    brought = {each["metadata"]["name"]: each["spec"] for each in made["dataVolumeTemplates"]}
    assert {name: spec["source"] for name, spec in brought.items()} == {
        "made-root": {"registry": {"url": "docker://registry.example/disk:1"}},
        "made-disk2": {"blank": {}},
        "made-disk3": {"http": {"url": "https://images.example/disk.qcow2"}},
    }
    sizes = [spec["storage"]["resources"]["requests"]["storage"] for spec in brought.values()]
    assert sizes == ["5Gi", "1Gi", "2Gi"]
    spec = made["template"]["spec"]
    assert spec["volumes"] == [
        {"name": "root", "dataVolume": {"name": "made-root"}},
        {"name": "disk1", "persistentVolumeClaim": {"claimName": "kept"}},
        {"name": "disk2", "dataVolume": {"name": "made-disk2"}},
        {"name": "disk3", "dataVolume": {"name": "made-disk3"}},
        {"name": "disk4", "emptyDisk": {"capacity": "3Gi"}},
    ]
    assert [disk["name"] for disk in spec["domain"]["devices"]["disks"]] == [each["name"] for each in spec["volumes"]]
    assert spec["networks"] == [
        {"name": "default", "pod": {}},
        {"name": "net1", "multus": {"networkName": "blue"}},
        {"name": "net2", "multus": {"networkName": "other/green"}},
    ]
    assert spec["domain"]["devices"]["interfaces"] == [
        {"name": name, "bridge": {}} for name in ("default", "net1", "net2")
    ]
    await page.set_viewport_size({"width": 390, "height": 780})
    assert await page.evaluate("document.documentElement.scrollWidth") <= 390


async def test_the_form_hints_at_a_pool_by_what_its_rules_look_for(page: Page, kit: Kit) -> None:
    pools = [
        {"name": "boxes", "nodeSelector": {"kind": "box"}, "selector": {"vmLabels": {"matchLabels": {"app": "box"}}}},
        {"name": "gpus", "nodeSelector": {"kind": "gpu"}, "selector": {"deviceNames": ["acme.example/GPU"]}},
    ]
    more = [{"name": "canary", "nodeSelector": {"ring": "canary"}}]
    gates = {"developerConfiguration": {"featureGates": ["VirtHandlerPools", "AdditionalVirtHandlers"]}}
    spec = {"configuration": gates, "virtHandlerPools": pools, "additionalVirtHandlers": more}
    kit.cluster.put(KUBEVIRTS, {"metadata": _meta("kubevirt", "kubevirt"), "spec": spec})
    await page.set_viewport_size({"width": 1280, "height": 2400})
    await page.goto(f"{kit.url}/#/create")
    await _fill(page, name="made", namespace="team", image="registry.example/disk:1")
    text = page.locator(".cm-content")

    await _fill(page, pool="boxes")
    await expect(text).to_contain_text("app: box", timeout=LONG)
    template = (await _written(page))["spec"]["template"]
    assert template["metadata"] == {"labels": {"app": "box"}}
    assert "nodeSelector" not in template["spec"]

    await _fill(page, pool="gpus")
    await expect(text).to_contain_text("acme.example/GPU", timeout=LONG)
    template = (await _written(page))["spec"]["template"]
    assert template["spec"]["domain"]["devices"]["hostDevices"] == [{"name": "hint", "deviceName": "acme.example/GPU"}]
    assert "metadata" not in template and "nodeSelector" not in template["spec"]

    await _fill(page, pool="canary")
    await expect(text).to_contain_text("ring: canary", timeout=LONG)
    template = (await _written(page))["spec"]["template"]
    assert template["spec"]["nodeSelector"] == {"ring": "canary"}
    assert "hostDevices" not in template["spec"]["domain"]["devices"]


async def test_the_form_seeds_a_guest_and_never_spoils_its_cloud_init(page: Page, kit: Kit) -> None:
    await page.set_viewport_size({"width": 1280, "height": 2400})
    await page.goto(f"{kit.url}/#/create")
    await _fill(page, name="made", namespace="team", image="registry.example/disk:1", key="ssh-ed25519 AAAA me")
    text, clash = page.locator(".cm-content"), page.locator("[data-test=key-clash]")

    async def seed() -> Any:
        volumes = (await _written(page))["spec"]["template"]["spec"]["volumes"]
        return next(each["cloudInitNoCloud"]["userData"] for each in volumes if each["name"] == "seed")

    await expect(text).to_contain_text("ssh-ed25519", timeout=LONG)
    assert yaml.safe_load(await seed()) == {"ssh_authorized_keys": ["ssh-ed25519 AAAA me"]}

    await _fill(page, cloudinit="#cloud-config\nhostname: made-here\n")
    await expect(text).to_contain_text("made-here", timeout=LONG)
    assert yaml.safe_load(await seed()) == {"hostname": "made-here", "ssh_authorized_keys": ["ssh-ed25519 AAAA me"]}

    for own, why in {
        "#!/bin/sh\necho by-a-script": "#cloud-config only",
        "#cloud-config\nssh_authorized_keys: [by-a-script]": "of its own",
    }.items():
        await _fill(page, cloudinit=own)
        await expect(clash).to_contain_text(why, timeout=LONG)
        await expect(text).to_contain_text("by-a-script", timeout=LONG)
        await expect(text).not_to_contain_text("ssh-ed25519", timeout=LONG)
        assert await seed() == f"{own}\n"
        await expect(page.locator("[data-test=create]")).to_be_disabled()
    await _fill(page, key="")
    await expect(clash).to_have_count(0, timeout=LONG)


async def _fill(page: Page, **fields: str) -> None:
    for name, value in fields.items():
        field = page.locator(f"[name='{name.replace('_', '-')}']")
        chosen = await field.evaluate("field => field.tagName") == "SELECT"
        await (field.select_option(value) if chosen else field.fill(value))


async def _written(page: Page) -> Any:
    """The document beside the form."""
    return yaml.safe_load("\n".join(await page.locator(".cm-line").all_inner_texts()))


async def test_console_and_screen_work_under_the_pages_own_policy(page: Page, kit: Kit) -> None:
    _put(kit, 1, "Running")
    kit.cluster.next("GET", "/console", _upper_case)
    await page.goto(f"{kit.url}/#/vm/team/vm-00001/console")
    await expect(page.locator("[data-test=console-state]")).to_have_text("connected", timeout=LONG)
    await page.locator(".terminal textarea").focus()
    await page.keyboard.type("hello")
    await _until(page, "document.querySelector('[data-test=terminal]').shown().includes('HELLO')")
    coloured = "getComputedStyle(document.querySelector('.xterm-rows')).color"
    assert await page.evaluate(coloured) == "rgb(215, 224, 223)", "its styles were let in"

    kit.cluster.next("GET", "/vnc", _screen)
    await page.goto(f"{kit.url}/#/vm/team/vm-00001/screen")
    await expect(page.locator("[data-test=screen-state]")).to_have_text("connected", timeout=LONG)
    pixel = "[...document.querySelector('.screen canvas').getContext('2d').getImageData(5, 5, 1, 1).data].join()"
    await _until(page, f"{pixel} === '0,0,255,255'")
    await page.locator(".screen canvas").click()
    await page.keyboard.press("a")
    await _until(page, f"{pixel} === '0,255,0,255'")


async def _until(page: Page, expression: str) -> None:
    """Playwright's own waiting has the page evaluate a string from the second look on, which the policy forbids."""
    async with asyncio.timeout(LONG / 1000):
        while True:
            if await page.evaluate(expression):
                return
            await asyncio.sleep(0.05)


async def _upper_case(request: web.Request) -> web.StreamResponse:
    """A console that answers in capitals."""
    socket = web.WebSocketResponse(protocols=("plain.kubevirt.io",))
    await socket.prepare(request)
    async for message in socket:
        await socket.send_bytes(message.data.upper())
    return socket


async def _screen(request: web.Request) -> web.StreamResponse:
    """A screen of ten pixels square, blue until a key is pressed and green from then on."""
    socket = web.WebSocketResponse(protocols=("plain.kubevirt.io",))
    await socket.prepare(request)
    held = b""

    async def read(count: int) -> bytes:
        nonlocal held
        while len(held) < count:
            held += await socket.receive_bytes()
        taken, held = held[:count], held[count:]
        return taken

    await socket.send_bytes(b"RFB 003.008\n")
    await read(12)
    await socket.send_bytes(b"\x01\x01")  # one way in: without a password
    await read(1)
    await socket.send_bytes(bytes(4))
    await read(1)
    form = struct.pack("!BBBBHHHBBBxxx", 32, 24, 0, 1, 255, 255, 255, 16, 8, 0)
    await socket.send_bytes(struct.pack("!HH", 10, 10) + form + struct.pack("!I", 4) + b"fake")
    shifts, colour, shown, asked = (16, 8, 0), (0, 0, 255), None, False
    with suppress(TypeError):  # the page has gone
        while True:
            (kind,) = await read(1)
            if kind == 0:
                shifts = struct.unpack("!13xBBB3x", await read(19))
            elif kind == 2:
                (count,) = struct.unpack("!xH", await read(3))
                await read(4 * count)
            elif kind == 3:
                await read(9)
                asked = True
            elif kind == 4:
                await read(7)
                colour = (0, 255, 0)
            elif kind == 5:
                await read(5)
            else:
                raise AssertionError(f"message {kind}")
            if asked and shown != colour:
                value = sum(part << shift for part, shift in zip(colour, shifts, strict=True))
                head = struct.pack("!BxHHHHHi", 0, 1, 0, 0, 10, 10, 0)
                await socket.send_bytes(head + struct.pack("<I", value) * 100)
                shown, asked = colour, False
    return socket


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
