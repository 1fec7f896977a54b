"""Ports of guests on vsock through the node's own API. Only the kernel's vsock is pretended: this machine has none."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import aiohttp
import pytest
from access_node import LIFE, GuestSocket, Node, node
from aiohttp import WSCloseCode, WSMsgType
from kube_fixtures import eventually
from vsock_guest import GuestServer

from virtfleet.handler.access import vsock
from virtfleet.handler.access.seats import End
from virtfleet.kube.authority import Authority, Profile
from virtfleet.protocol.messages import Status

NAME = "kubevirt.io:system:client:vsock"  # what guests look for


@pytest.fixture
async def here() -> AsyncIterator[Node]:
    async with node() as made:
        yield made


async def said(here: Node, words: bytes, query: str) -> bytes:
    """What a guest's server answers."""
    async with here.attached(f"vsock?{query}") as client:
        await client.send_bytes(words)
        return (await client.receive_bytes(timeout=20))[: len(words)]


async def end_of(here: Node, query: str) -> tuple[int | None, str]:
    """How a client that gets in hears that it is over."""
    async with here.attached(f"vsock?{query}") as client:
        message = await client.receive(timeout=20)
        assert message.type is WSMsgType.CLOSE
        return message.data, str(message.extra)


async def refusal(here: Node, query: str) -> tuple[int, str]:
    code, status = await here.ask("GET", f"vsock?{query}")
    return code, status["message"]


async def test_bytes_go_to_the_port_that_is_asked_for_and_back(here: Node) -> None:
    async with GuestSocket(here.port_of_guest(1234)), GuestSocket(here.port_of_guest(4294967294)) as last:
        assert await said(here, b"Hello World?", "port=1234&tls=false") == b"Hello World?"
        assert not last.served
        assert await said(here, b"\x00" * 9, "port=4294967294&tls=f") == b"\x00" * 9


async def test_what_is_no_port_is_refused_with_what_to_do(here: Node) -> None:
    for port in ("0", "4294967295", "-1", "http", "", "1" * 5000, "%D9%A1"):
        code, message = await refusal(here, f"port={port}&tls=false")
        assert code == 400 and "give a number from 1 to 4294967294" in message
    assert (await refusal(here, "tls=false"))[0] == 400
    assert await refusal(here, "port=1&tls=perhaps") == (400, "tls 'perhaps' is neither true nor false")


async def test_a_port_where_nobody_listens_lets_its_client_in_and_says_so_as_kubevirts_clients_expect(
    here: Node,
) -> None:
    assert await end_of(here, "port=9999&tls=false") == (WSCloseCode.INTERNAL_ERROR, End.UNREACHED.value)


async def test_a_guest_that_does_not_answer_is_given_up(here: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    async def never(cid: int, port: int) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(vsock, "_PATIENCE", 0.05)
    monkeypatch.setattr(here.access._guests, "_dial", never)
    assert await end_of(here, "port=1&tls=false") == (WSCloseCode.INTERNAL_ERROR, End.UNREACHED.value)


async def test_a_vm_without_an_address_or_that_does_not_run_says_so(here: Node) -> None:
    here.launcher.becomes(Status.ABSENT)
    await eventually(lambda: here.vms[0].launcher.state == here.launcher.updates.latest.state)
    assert (await refusal(here, "port=1&tls=false"))[0] == 409
    here.launcher.becomes(Status.RUNNING)
    await eventually(lambda: here.vms[0].launcher.state == here.launcher.updates.latest.state)
    here.instance.vmi.status.vsock_cid = None
    assert await refusal(here, "port=1&tls=false") == (400, "VM doesn't have VSOCK enabled")


async def test_a_guest_serves_many_at_once_and_not_without_end(here: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vsock, "MOST", 3)
    async with GuestServer(here.port_of_guest(7)) as guest, AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(here.attached("vsock?port=7&tls=false")) for _ in range(3)]
        for client in clients:
            await client.send_bytes(b"x")
            assert await client.receive_bytes(timeout=20) == b"x"
        with pytest.raises(aiohttp.WSServerHandshakeError, match="503"):
            async with here.attached("vsock?port=7&tls=false"):
                pass
        await clients[0].close()
        await eventually(lambda: guest.open == 2)
        assert await said(here, b"y", "port=7&tls=false") == b"y"


async def test_sessions_end_with_the_handler_and_with_the_guest(here: Node) -> None:
    async with GuestServer(here.port_of_guest(7)) as guest, here.attached("vsock?port=7&tls=false") as client:
        await client.send_bytes(b"x")
        await client.receive_bytes(timeout=20)
        here.access.close()
        assert (await client.receive(timeout=20)).data == WSCloseCode.GOING_AWAY
        await eventually(lambda: guest.open == 0)
    async with GuestServer(here.port_of_guest(8)) as guest, here.attached("vsock?port=8&tls=false") as client:
        await client.send_bytes(b"end")
        assert await client.receive_bytes(timeout=20) == b"end"
        assert (await client.receive(timeout=20)).data == WSCloseCode.OK


# TLS, which is spoken unless somebody says otherwise.


async def test_a_guest_that_asks_who_calls_is_shown_the_certificate_for_guests(here: Node) -> None:
    here.to_guests = here.authority.issue(Profile(NAME, LIFE, client=True))
    async with GuestServer(here.port_of_guest(7), here.authority.bundle) as guest:
        for query in ("port=7", "port=7&tls=", "port=7&tls=true"):
            assert await said(here, b"secret", query) == b"secret"
        assert guest.callers == [NAME] * 3
        assert guest.versions == {"TLSv1.3"}


async def test_a_certificate_of_another_authority_is_of_no_use(here: Node) -> None:
    here.to_guests = Authority.create("another", LIFE).issue(Profile(NAME, LIFE, client=True))
    async with (
        GuestServer(here.port_of_guest(7), here.authority.bundle) as guest,
        here.attached("vsock?port=7") as client,
    ):
        with pytest.raises(TypeError):  # an end, and no bytes
            await client.receive_bytes(timeout=20)
        assert guest.callers == []


async def test_a_guest_that_speaks_no_tls_is_told_apart(here: Node) -> None:
    here.to_guests = here.authority.issue(Profile(NAME, LIFE, client=True))
    async with GuestServer(here.port_of_guest(7)) as guest:
        assert await end_of(here, "port=7") == (WSCloseCode.INTERNAL_ERROR, End.NO_TLS.value)
        await eventually(lambda: guest.open == 0)


async def test_without_a_certificate_tls_is_refused_and_plain_is_not(here: Node) -> None:
    async with GuestServer(here.port_of_guest(7)):
        code, message = await refusal(here, "port=7")
        assert code == 503 and "use tls=false meanwhile" in message
        assert await said(here, b"x", "port=7&tls=false") == b"x"
