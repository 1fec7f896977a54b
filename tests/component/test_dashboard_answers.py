"""What the dashboard answers of VMs, over the local API server with admission's own rules and people's rights."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import yaml
from aiohttp import web

from component.handler_kit import api_server
from component.test_dashboard import KEY, Kit
from virtfleet.api.kinds import BY_NAME
from virtfleet.cli.look.verdicts import Rules
from virtfleet.dashboard.guard import Guard
from virtfleet.dashboard.server import Dashboard
from virtfleet.dashboard.visitors import Visitors
from virtfleet.installation import Installation
from virtfleet.kube.config import Config
from virtfleet.kube.resource import KUBEVIRTS, NAMESPACES, NODES, Obj
from virtfleet.local.apiserver.extensions.admission import AdmissionRequest
from virtfleet.local.apiserver.rights.access import Attributes, User
from virtfleet.local.apiserver.serving.http import Server

EXAMPLES = Path(__file__).parents[2] / "examples"
VMS = {vm["metadata"]["name"]: vm for vm in yaml.safe_load_all((EXAMPLES / "demo.yaml").read_text())}
NODE_LABELS: dict[str, dict[str, str]] = {"node-a": {}, "node-c": {"superduper.io/megaslop": "true"}}
pytestmark = pytest.mark.timeout(60)


class OwnRules(Rules):
    """Admission of VirtFleet's kinds; others are not its matter."""

    async def mutate(self, request: AdmissionRequest) -> Obj | None:
        return await super().mutate(request) if request.kind.resource.kind in BY_NAME else request.obj

    async def validate(self, request: AdmissionRequest) -> None:
        if request.kind.resource.kind in BY_NAME:
            await super().validate(request)


@pytest.fixture
async def denied() -> set[str]:
    """Resources that nobody may read."""
    return set()


@pytest.fixture
async def kit(place: Path, denied: set[str]) -> AsyncIterator[Kit]:
    kubevirt = yaml.safe_load((EXAMPLES / "kubevirt.yaml").read_text())
    async with api_server(place) as api:
        operations = api._operations

        async def review(obj: Obj, **_: Any) -> Obj:
            return {**obj, "status": {"userInfo": {"username": "alice"}}}

        operations.posts["authentication.k8s.io", "selfsubjectreviews", ""] = review
        for namespace in ("team", "kubevirt"):
            await api.create(NAMESPACES, {"metadata": {"name": namespace}})
        await api.create(KUBEVIRTS, kubevirt)
        for name, labels in NODE_LABELS.items():
            facts = {"kubevirt.io/schedulable": "true", "kubernetes.io/os": "linux", "kubernetes.io/arch": "amd64"}
            works = {"hypervisor.node.kubevirt.io/qemu-kvm": "true", "hypervisor.node.kubevirt.io/lxc": "true"}
            await api.create(NODES, {"metadata": {"name": name, "labels": {**labels, **facts, **works}}})
        operations.admission = OwnRules(Installation(kubevirt))

        async def authenticate(_: web.Request) -> User:
            return User("alice", ("system:authenticated",))

        def authorize(asked: Attributes) -> bool:
            return asked.resource not in denied

        server = Server(operations, operations.kinds, authenticate, authorize)
        [port] = await server.start([("127.0.0.1", 0)])
        visitors = Visitors(lambda _: Config(f"http://127.0.0.1:{port}"), key=KEY)
        app = web.Application()
        app.add_routes(Dashboard(Guard(visitors, frozenset({"127.0.0.1"}), "v", https=False)).routes())
        runner = web.AppRunner(app, shutdown_timeout=0.1)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        async with aiohttp.ClientSession(cookie_jar=aiohttp.CookieJar(unsafe=True)) as browser:
            yield Kit(server, visitors, url, browser)  # type: ignore[arg-type]  # the real one, for once
        await visitors.close()
        await runner.cleanup()
        await server.stop()


async def ask(kit: Kit, what: str, **question: Any) -> tuple[int, Any]:
    headers = await kit.login(kit.visitors.key)
    async with kit.browser.post(f"{kit.url}/api/{what}", json=question, headers=headers) as answer:
        return answer.status, await answer.json()


def vm(name: str, **spec: Any) -> dict[str, Any]:
    made = VMS[name]
    template = {**made["spec"]["template"], "spec": {**made["spec"]["template"]["spec"], **spec}}
    return {**made, "metadata": {"name": name, "namespace": "team"}, "spec": {**made["spec"], "template": template}}


async def test_a_vm_is_checked_as_the_cluster_would_and_not_kept(kit: Kit) -> None:
    assert (await ask(kit, "validate", object=vm("plain")))[1] == {"allowed": True, "causes": [], "warnings": []}
    status, verdict = await ask(kit, "validate", object=vm("plain", volumes=[]))
    assert (status, verdict["allowed"]) == (200, False)
    assert any("disks[0]" in cause["field"] for cause in verdict["causes"]), verdict
    _, verdict = await ask(kit, "validate", object=vm("plain", volumez=[]))
    assert "volumez" in str(verdict["causes"]) and not verdict["allowed"]
    assert (await ask(kit, "explain", name="plain", namespace="team"))[0] == 404, "nothing was kept"


async def test_only_vms_are_written(kit: Kit) -> None:
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "a", "namespace": "team"}}
    _, verdict = await ask(kit, "validate", object=secret)
    assert [cause["field"] for cause in verdict["causes"]] == ["kind"]


async def test_why_a_vm_would_go_where_it_would_go(kit: Kit) -> None:
    status, told = await ask(kit, "explain", object=vm("slopped"))
    assert (status, told["pool"], told["hypervisor"]) == (200, "megaslop", "qemu-kvm")
    reasons = {node["name"]: node["why"] for node in told["nodes"]}
    assert any("superduper.io/MegaSlop_9000" in why for why in reasons["node-a"])
    assert [(pool["name"], pool["used"]) for pool in told["pools"]] == [("megaslop", True), ("canary", False)]


async def test_who_may_not_list_nodes_is_told_of_pools(kit: Kit, denied: set[str]) -> None:
    denied.add("nodes")
    status, told = await ask(kit, "explain", object=vm("slopped"))
    assert (status, told["pool"], "nodes" in told) == (200, "megaslop", False)
    assert "may not list nodes" in told["unseen"]


@pytest.mark.parametrize("question", [{"object": []}, {"object": {"kind": 7}}, {"name": "../x"}, {"x": 1}], ids=str)
async def test_questions_that_make_no_sense_are_refused(kit: Kit, question: dict[str, Any]) -> None:
    for what in ("validate", "explain"):
        status, answer = await ask(kit, what, **question)
        assert 400 <= status < 500 or answer.get("allowed") is False
