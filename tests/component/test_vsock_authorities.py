"""Guests ask their node by which authorities to know callers. A unix socket stands in for the node's vsock."""

from __future__ import annotations

import asyncio
import base64
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import grpc
import pytest
from access_node import node
from kube_fixtures import eventually
from vsock_guest import GuestServer

from virtfleet.handler.access import authorityport
from virtfleet.handler.access.authorityport import AuthorityPort
from virtfleet.installation import Installation
from virtfleet.kube import certificates
from virtfleet.operator import certificates as issuing

PEM = b"-----BEGIN CERTIFICATE-----\nMII=\n-----END CERTIFICATE-----\n" * 20
INSTALLATION = Installation({"metadata": {"name": "kubevirt", "namespace": "kubevirt"}})
HANDLER = "kubevirt-virt-handler-certs"


class Vsock:
    """Where a node listens for its guests."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.taken = False
        self.listening = 0

    def listen(self) -> socket.socket:
        if self.taken:
            raise OSError(98, "Address already in use")
        self.path.unlink(missing_ok=True)
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(str(self.path))
        listener.listen()
        self.listening += 1
        return listener

    async def ask(self) -> bytes:
        """What a guest is told. The Bundle is read as KubeVirt's agents do: its first field, of bytes."""
        async with grpc.aio.insecure_channel(f"unix://{self.path}") as channel:
            call = channel.unary_unary("/kubevirt.vsock.system.v1.System/CABundle")
            answer: bytes = await call(b"", timeout=20)
        assert answer[:1] == b"\x0a"
        length, at, shift = 0, 1, 0
        while True:
            length |= (answer[at] & 0x7F) << shift
            at, shift = at + 1, shift + 7
            if answer[at - 1] < 0x80:
                break
        assert len(answer) == at + length
        return answer[at:]


@pytest.fixture(autouse=True)
def _often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(authorityport, "LOOK", 0.02)


@asynccontextmanager
async def serving(vsock: Vsock, bundle: bytes = PEM, wanted: list[bool] | None = None) -> AsyncIterator[AuthorityPort]:
    port = AuthorityPort(lambda: (wanted or [True])[0], lambda: bundle, vsock.listen)
    task = asyncio.create_task(port.run())
    try:
        yield port
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


@pytest.fixture
def vsock(place: Path) -> Vsock:
    return Vsock(place / "vsock")


async def test_a_guest_is_told_the_authorities_of_the_installation(vsock: Vsock) -> None:
    async with serving(vsock):
        await eventually(lambda: vsock.listening)
        assert await asyncio.gather(*(vsock.ask() for _ in range(3))) == [PEM] * 3
        for method in ("/kubevirt.vsock.system.v1.System/Another", "/v1beta1.Registration/Register"):
            async with grpc.aio.insecure_channel(f"unix://{vsock.path}") as channel:
                with pytest.raises(grpc.aio.AioRpcError) as refusal:
                    await channel.unary_unary(method)(b"", timeout=20)
                assert refusal.value.code() is grpc.StatusCode.UNIMPLEMENTED


async def test_the_port_is_there_while_it_is_wanted_and_taken_over_when_it_is_free(
    vsock: Vsock, caplog: pytest.LogCaptureFixture
) -> None:
    wanted, vsock.taken = [False], True
    async with serving(vsock, wanted=wanted):
        wanted[0] = True
        await eventually(lambda: "Address already in use" in caplog.text)
        vsock.taken = False
        await eventually(lambda: vsock.listening == 1)
        assert await vsock.ask() == PEM
        wanted[0] = False
        await eventually(lambda: _refused(vsock.path))
        wanted[0] = True
        await eventually(lambda: vsock.listening == 2)
        assert await vsock.ask() == PEM
    assert caplog.text.count("Address already in use") == 1, "the same trouble is told once"


async def test_a_guest_that_takes_all_it_can_gets_no_more_than_its_share(vsock: Vsock) -> None:
    async with serving(vsock) as port:
        await eventually(lambda: vsock.listening)
        opened = [await asyncio.open_unix_connection(vsock.path) for _ in range(12)]
        ends = [asyncio.create_task(_end_of(reader)) for reader, _ in opened]
        await eventually(lambda: sum(end.done() for end in ends) == 8)
        assert port.guests == 4
        for _, writer in opened:
            writer.transport.abort()
        await eventually(lambda: port.guests == 0)
        assert await vsock.ask() == PEM


async def test_a_guest_that_says_nothing_is_not_waited_for(vsock: Vsock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(authorityport, "_SECONDS", 0.05)
    async with serving(vsock) as port:
        await eventually(lambda: vsock.listening)
        reader, writer = await asyncio.open_unix_connection(vsock.path)
        await asyncio.wait_for(_end_of(reader), 20)
        writer.transport.abort()
        await eventually(lambda: port.guests == 0)


async def test_a_request_that_is_too_long_is_refused(vsock: Vsock) -> None:
    async with serving(vsock):
        await eventually(lambda: vsock.listening)
        async with grpc.aio.insecure_channel(f"unix://{vsock.path}") as channel:
            with pytest.raises(grpc.aio.AioRpcError) as refusal:
                await channel.unary_unary("/kubevirt.vsock.system.v1.System/CABundle")(b"x" * 100_000, timeout=20)
            assert refusal.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert await vsock.ask() == PEM


def issued(existing: dict[str, issuing.Obj] | None = None, later: timedelta = timedelta()) -> dict[str, issuing.Obj]:
    made = issuing.issue(INSTALLATION, existing or {}, datetime.now(UTC) + later)
    return {obj["metadata"]["name"]: obj for obj in made.objects if obj["kind"] == "Secret"}


def mounted(secret: issuing.Obj) -> dict[str, bytes]:
    return {name: base64.b64decode(content) for name, content in secret["data"].items()}


def test_the_operator_makes_a_certificate_for_guests_keeps_it_and_renews_it() -> None:
    first = issued()
    files = mounted(first[HANDLER])
    assert certificates.for_guests(files) and certificates.for_guests({}) is None
    assert issued(first)[HANDLER] == first[HANDLER]
    later = mounted(issued(first, timedelta(hours=23))[HANDLER])
    assert later["vsock.crt"] != files["vsock.crt"] and certificates.for_guests(later)


async def test_a_guest_knows_a_caller_by_what_its_node_tells_it(vsock: Vsock) -> None:
    """All of it but the kernel's vsock: the operator's certificates, the node's answer, a guest that checks them."""
    files = mounted(issued()[HANDLER])
    async with node() as here, serving(vsock, files["ca.crt"]):
        here.to_guests = certificates.for_guests(files)
        await eventually(lambda: vsock.listening)
        trust = await vsock.ask()
        async with GuestServer(here.port_of_guest(7), trust) as guest:
            async with here.attached("vsock?port=7") as client:
                await client.send_bytes(b"who am I")
                assert await client.receive_bytes(timeout=20) == b"who am I"
            assert guest.callers == ["kubevirt.io:system:client:vsock"]


async def _end_of(reader: asyncio.StreamReader) -> None:
    try:
        while await reader.read(4096):
            pass
    except OSError:
        pass


def _refused(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as caller:
        return caller.connect_ex(str(path)) != 0
