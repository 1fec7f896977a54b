"""Every request that virtctl makes for its commands, replayed: served, or refused as documented.

The real client is tried in tests/vm where it is there; here its recorded requests stand for it.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import yaml

from component.gateway.gateway_kit import Kit
from virtfleet.api.subresources import TABLE

RECORDED: list[dict[str, Any]] = yaml.safe_load((Path(__file__).parent / "virtctl.yaml").read_text())
STRATEGIES = {"halted": "Halted", "manual": "Manual"}


async def machine(kit: Kit, name: str, state: str) -> None:
    strategy = STRATEGIES.get(state, "Always")
    vm = await kit.vm(name, runStrategy=strategy, status={"created": strategy == "Always"})
    if strategy == "Always":
        owner = {"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine", "name": name, "uid": vm["metadata"]["uid"]}
        await kit.guest(
            name,
            conditions=["Paused" if state == "paused" else "AgentConnected"],
            metadata={"ownerReferences": [owner]},
        )


async def answer(kit: Kit, recorded: dict[str, Any], name: str, port: int) -> int:
    path = recorded["path"].replace("NAME", name).replace("PORT", str(port))
    if recorded.get("stream"):
        try:
            async with kit.stream(path):
                return 101
        except aiohttp.WSServerHandshakeError as refusal:
            return refusal.status
    session = await kit.server.session(kit.server.pki.admin)
    whole = path if path.startswith("/") else f"/apis/subresources.kubevirt.io/v1/namespaces/default/{path}"
    async with session.request(recorded["ask"], whole, json=recorded.get("body")) as response:
        await response.read()
        return response.status


@pytest.mark.slow
async def test_virtctl_gets_the_answers_that_it_works_with(kit: Kit) -> None:
    async def hang_up(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()

    given = {}
    async with await asyncio.start_server(hang_up, "127.0.0.1", 0) as guest:
        port = guest.sockets[0].getsockname()[1]
        for number, recorded in enumerate(RECORDED):
            name = f"vm{number}"
            await machine(kit, name, recorded["state"])
            given[recorded["virtctl"]] = await answer(kit, recorded, name, port)
    assert given == {recorded["virtctl"]: recorded["answer"] for recorded in RECORDED}


def test_every_subresource_that_virtctl_uses_is_declared() -> None:
    declared = {entry.rbac for entry in TABLE}
    for recorded in RECORDED:
        parts = recorded["path"].partition("?")[0].split("/")
        if parts[0].startswith("virtualmachine"):
            name = "portforward" if parts[2] == "portforward" else "/".join(parts[2:])
            assert f"{parts[0]}/{name}" in declared
