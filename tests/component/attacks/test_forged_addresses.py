"""Port-forwarding to where a VM's user could not go: virt-api connects to the VM's own Pod, and to nothing else."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest

from component.gateway.gateway_kit import NODE, Kit, gateway
from virtfleet.gateway import guestaddress
from virtfleet.kube.resource import VMIS


@pytest.fixture
async def kit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Kit]:
    async with gateway(tmp_path, monkeypatch) as made:
        yield made


async def refused(kit: Kit, port: int) -> bool:
    """Whether virt-api refuses without having connected to the port."""
    try:
        async with kit.stream(f"virtualmachineinstances/vm/portforward/{port}/tcp"):
            return False
    except aiohttp.WSServerHandshakeError as refusal:
        return refusal.status == 400


async def test_an_address_in_the_status_is_not_what_is_dialled(kit: Kit) -> None:
    await kit.vmi(status={"interfaces": [{"ipAddress": "127.0.0.1"}]})
    assert await refused(kit, kit.port), "virt-api's own port"


async def test_a_pod_that_only_says_it_is_the_launcher_is_not_dialled(
    kit: Kit, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(guestaddress, "why_not_a_pods", lambda _: "")
    vmi = await kit.vmi(status={"interfaces": [{"ipAddress": "10.1.2.3"}], "activePods": {"other": NODE}})
    forged = await kit.launcher(vmi, "127.0.0.1")
    assert await refused(kit, kit.port)
    there = {"status": {"activePods": {forged["metadata"]["uid"]: "node09"}, "nodeName": "node09"}}
    await kit.server.api.patch(VMIS, "vm", there, "default")
    assert await refused(kit, kit.port), "a Pod on another node than the VM's"
    there["status"] |= {"activePods": {forged["metadata"]["uid"]: NODE}, "nodeName": NODE}
    await kit.server.api.patch(VMIS, "vm", there, "default")
    assert not await refused(kit, kit.port), "without these lines it would have been reached"


@pytest.mark.parametrize("address", ["127.0.0.1", "169.254.169.254", "0.0.0.0", "192.0.2.7"])
async def test_a_node_that_lies_about_a_pods_address_is_not_believed(kit: Kit, address: str) -> None:
    await kit.guest(address=address)
    assert await refused(kit, kit.port)


async def test_the_nodes_own_network_is_not_a_guests(kit: Kit, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guestaddress, "why_not_a_pods", lambda _: "")
    vmi = await kit.vmi(status={"interfaces": [{"ipAddress": "10.1.2.3"}]})
    pod = await kit.launcher(vmi, "127.0.0.1", hostNetwork=True)
    await kit.server.api.patch(VMIS, "vm", {"status": {"activePods": {pod["metadata"]["uid"]: NODE}}}, "default")
    assert await refused(kit, kit.port)
