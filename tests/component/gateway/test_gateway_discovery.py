"""Discovery and OpenAPI of the aggregated group, as the real kubectl and the API server read them."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import pytest

from component.gateway.gateway_kit import ROOT, Kit
from virtfleet.api.subresources import GROUP, TABLE, VERSIONS

KUBECTL = Path(sys.executable).parent / "kubectl"


async def kubectl(kit: Kit, home: Path, *args: str) -> str:
    config = home / "kubeconfig"
    config.write_text(kit.server.pki.kubeconfig(kit.server.url, kit.server.pki.admin))
    process = await asyncio.create_subprocess_exec(
        str(KUBECTL),
        f"--kubeconfig={config}",
        f"--cache-dir={home / 'cache'}",
        *args,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    output, _ = await process.communicate()
    assert process.returncode == 0, output.decode()
    return output.decode()


async def test_the_group_and_its_resources_are_listed(kit: Kit) -> None:
    group = (await kit.call("GET", f"/apis/{GROUP}")).body
    assert [v["version"] for v in group["versions"]] == list(VERSIONS)
    assert group["preferredVersion"]["version"] == "v1"
    for version in VERSIONS:
        listed = (await kit.call("GET", f"/apis/{GROUP}/{version}")).body
        assert listed["groupVersion"] == f"{GROUP}/{version}"
        assert {r["name"] for r in listed["resources"]} == {e.rbac for e in TABLE if e.namespaced}
        assert all(r["namespaced"] for r in listed["resources"])
        [console] = [r for r in listed["resources"] if r["name"] == "virtualmachineinstances/console"]
        assert console["verbs"] == ["get"]


async def test_virt_api_answers_for_its_group_by_itself(kit: Kit) -> None:
    async with kit.directly(kit.server.pki.front_proxy) as session:
        session.headers["X-Remote-User"] = "system:kube-aggregator"
        async with session.get("/apis") as answer:
            assert [group["name"] for group in (await answer.json())["groups"]] == [GROUP]
        async with session.get(f"/apis/{GROUP}") as answer:
            assert (await answer.json())["kind"] == "APIGroup"


async def test_openapi_describes_every_path(kit: Kit) -> None:
    async with kit.directly(kit.server.pki.front_proxy) as session:
        session.headers["X-Remote-User"] = "system:kube-aggregator"
        async with session.get(f"/openapi/v3/apis/{GROUP}/v1") as answer:
            paths = (await answer.json())["paths"]
    expected = {f"{ROOT}{path}": {"GET": "get", "PUT": "put"}[e.method] for e in TABLE for path in e.paths()}
    assert {path: next(iter(item)) for path, item in paths.items()} == expected
    operations = [op["operationId"] for item in paths.values() for op in item.values()]
    assert len(operations) == len(set(operations))


@pytest.mark.slow
async def test_kubectl_finds_what_it_should_and_nothing_disturbs_it(kit: Kit, tmp_path: Path) -> None:
    await kit.vm()
    listed = await kubectl(kit, tmp_path, "api-resources", "-o", "name")
    assert "virtualmachines.kubevirt.io" in listed
    assert GROUP not in listed, "there are no objects in the group of subresources"
    assert "vm" in await kubectl(kit, tmp_path, "get", "vm")
    assert "error" not in (await kubectl(kit, tmp_path, "get", "all")).lower()
    assert "Run strategy" in await kubectl(kit, tmp_path, "explain", "vm.status.runStrategy")
    raw = await kubectl(kit, tmp_path, "get", "--raw", f"{ROOT}/version")
    assert "gitVersion" in raw
    can = await kubectl(kit, tmp_path, "auth", "can-i", "update", f"virtualmachines.{GROUP}/start")
    assert can.strip().endswith("yes")
