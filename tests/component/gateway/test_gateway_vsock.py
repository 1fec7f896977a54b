"""vsock ports from a client through the API server, virt-api and a real handler's server to a pretended guest."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest
from access_node import CID, Node, node
from aiohttp import WSCloseCode, WSMsgType, web
from vsock_guest import GuestServer

from component.gateway.gateway_kit import Kit
from virtfleet.kube import certificates

PATH = "virtualmachineinstances/vm/vsock"
ATTACHED = {"autoattachVSOCK": True}
UPGRADE = {"Connection": "Upgrade", "Upgrade": "websocket"}


@asynccontextmanager
async def handled(kit: Kit) -> AsyncIterator[Node]:
    """A node whose handler's own server virt-api asks."""
    async with node() as here:
        app = web.Application()
        app.add_routes(here.access.routes())
        runner = web.AppRunner(app, shutdown_timeout=0.1)
        await runner.setup()
        own = kit.credentials["virt-handler"]
        context = certificates.server_context(own, clients=own.bundle)
        await web.TCPSite(runner, "127.0.0.3", kit.handler_port, ssl_context=context).start()
        await kit.add_handler_pod("node02", "127.0.0.3")
        try:
            yield here
        finally:
            await runner.cleanup()


async def vmi(kit: Kit, name: str = "vm", cid: int | None = CID, **fields: Any) -> None:
    status = {"nodeName": "node02", **({} if cid is None else {"VSOCKCID": cid})}
    await kit.vmi(name, devices=fields.pop("devices", ATTACHED), status=status, **fields)


async def test_bytes_reach_a_port_of_the_guest_and_come_back(kit: Kit) -> None:
    await vmi(kit)
    async with handled(kit) as here, GuestServer(here.port_of_guest(1234)) as guest:
        async with kit.stream(f"{PATH}?port=1234&tls=false") as stream:
            await stream.send_bytes(b"Hello World?")
            assert await stream.receive_bytes(timeout=20) == b"Hello World?"
            assert guest.open == 1
        async with kit.stream(f"{PATH}?port=9999&tls=false") as stream:
            last = await stream.receive(timeout=20)
            assert (last.type, last.data) == (WSMsgType.CLOSE, WSCloseCode.INTERNAL_ERROR)
            assert "is a server listening there?" in str(last.extra)
        for query in ("port=0", "port=http&tls=false", ""):
            with pytest.raises(aiohttp.WSServerHandshakeError, match="400"):
                async with kit.stream(f"{PATH}?{query}"):
                    pass


async def test_who_cannot_be_reached_says_why_and_what_to_do(kit: Kit) -> None:
    await vmi(kit, "bare", devices={})
    await vmi(kit, "waits", phase="Scheduled")
    await vmi(kit, "older", cid=None)
    expected = {
        "none": (404, "not found"),
        "bare": (400, "VSOCK is not attached. Set spec.domain.devices.autoattachVSOCK: true"),
        "waits": (400, "VMI is not running"),
        "older": (409, "VMI was started without a vsock; restart the VM"),
    }
    for name, (code, words) in expected.items():
        answer = await kit.of_vmi("vsock?port=1", method="GET", name=name, **UPGRADE)
        assert (answer.status, words in answer.body["message"]) == (code, True), answer.body["message"]
    assert kit.handler.seen == []


async def test_none_of_the_roles_for_people_may_as_in_kubevirt(kit: Kit) -> None:
    await vmi(kit)
    for role in ("kubevirt.io:view", "kubevirt.io:edit", "kubevirt.io:admin", "kubevirt.io:migrate"):
        token = await kit.user(role.rpartition(":")[2], role)
        answer = await kit.of_vmi("vsock?port=1", method="GET", token=token, **UPGRADE)
        assert answer.status == 403
