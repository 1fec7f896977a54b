"""The HTTPS server of a component: whose client certificates are good, and how routes learn who called."""

from __future__ import annotations

import argparse
import asyncio
import socket
import ssl
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import aiohttp
import orjson
import pytest
from aiohttp import web

from virtfleet.api.configuration import TLSConfiguration
from virtfleet.api.tlsrules import TlsRules, rules
from virtfleet.kube import certificates, component, peers
from virtfleet.kube.authority import Authority, Lifespan, Profile
from virtfleet.kube.certificates import Credential

HOUR = timedelta(hours=1)
LIFE = Lifespan(HOUR, HOUR / 6)
SERVER = Profile("server", LIFE, hosts=("127.0.0.1",))
CLIENT = Profile("kubevirt:virt-api", LIFE, organizations=("friends",), client=True)


async def who(request: web.Request) -> web.Response:
    peer = peers.verified(request)
    return web.json_response([peer.name, *peer.organizations] if peer else None)


@dataclass
class Served:
    url: str
    trust: bytes
    clients: bytes
    end: Callable[[], object] = lambda: None
    tls: TlsRules = rules(None)  # noqa: RUF009 (it is a tuple)

    async def ask(self, path: str = "/who", client: Credential | None = None) -> object:
        """The answer on a connection of its own."""
        context = certificates.client_context(self.trust, client)
        async with (
            aiohttp.ClientSession(connector=aiohttp.TCPConnector(force_close=True)) as session,
            session.get(self.url + path, ssl=context) as answer,
        ):
            assert answer.status == 200
            return await (answer.json() if path == "/who" else answer.text())

    async def accepts(self, client: Credential) -> bool:
        try:
            await self.ask(client=client)
        except (aiohttp.ClientError, OSError):
            return False
        return True

    async def until_accepts(self, client: Credential, wanted: bool) -> None:
        async with asyncio.timeout(30):
            while await self.accepts(client) is not wanted:  # noqa: ASYNC110
                await asyncio.sleep(0.05)


@pytest.fixture
def friends() -> Authority:
    return Authority.create("friends", LIFE)


@pytest.fixture
async def served(tmp_path: Path, friends: Authority, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Served]:
    monkeypatch.setattr(component, "LISTENER_PERIOD", 0.02)
    own = Authority.create("own", LIFE)
    certificates.write(tmp_path, own.issue(SERVER).files())
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    options = argparse.Namespace(certificates=tmp_path, host="127.0.0.1", port=port)
    made = Served(f"https://127.0.0.1:{port}", own.bundle, friends.bundle)
    serving = asyncio.create_task(
        component.serve(
            options,
            [web.get("/who", who)],
            clients=lambda credential: made.clients,
            farewell=0.5,
            configuration=lambda: "42",
            tls=lambda: made.tls,
        )
    )
    made.end = serving.cancel
    async with asyncio.timeout(30):
        while True:
            try:
                await made.ask("/healthz")
                break
            except aiohttp.ClientConnectorError:
                await asyncio.sleep(0.02)
    yield made
    serving.cancel()
    await asyncio.gather(serving, return_exceptions=True)


async def test_callers_need_no_certificate_and_then_are_nobody(served: Served) -> None:
    assert await served.ask("/livez") == "ok"
    assert "python_info" in str(await served.ask("/metrics"))
    assert await served.ask() is None


@pytest.mark.parametrize("path", ["/healthz", "//healthz"])
async def test_tools_learn_which_configuration_a_component_goes_by(served: Served, path: str) -> None:
    assert orjson.loads(str(await served.ask(path))) == {"config-resource-version": "42"}


async def test_a_server_that_is_told_to_end_says_so_and_answers_until_everybody_knows(served: Served) -> None:
    context = certificates.client_context(served.trust)
    async with aiohttp.ClientSession() as session:
        async with session.get(f"{served.url}/readyz", ssl=context) as answer:
            assert (answer.status, answer.headers.get("Connection")) == (200, None)
        served.end()
        async with session.get(f"{served.url}/readyz", ssl=context) as answer:
            assert (answer.status, await answer.text()) == (503, "it is told to end")
            assert answer.headers["Connection"] == "close"
    assert await served.ask() is None
    async with asyncio.timeout(30):
        with pytest.raises(aiohttp.ClientConnectorError):
            while True:
                await served.ask()


async def test_a_caller_with_a_trusted_certificate_is_known_by_its_names(served: Served, friends: Authority) -> None:
    assert await served.ask(client=friends.issue(CLIENT)) == ["kubevirt:virt-api", "friends"]


async def test_certificates_of_strangers_and_expired_ones_get_no_connection(
    served: Served, friends: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    stranger = Authority.create("friends", LIFE).issue(CLIENT)
    expired = friends.issue(CLIENT, datetime.now(UTC) - 2 * HOUR)
    serving = friends.issue(SERVER)
    for refused in (stranger, expired, serving):
        caplog.clear()
        assert not await served.accepts(refused)
        assert "refused a client's certificate" in caplog.text
    assert await served.accepts(friends.issue(CLIENT))


async def test_authorities_of_clients_are_followed(served: Served, friends: Authority) -> None:
    others = Authority.create("others", LIFE)
    served.clients = others.bundle
    await served.until_accepts(others.issue(CLIENT), True)
    assert not await served.accepts(friends.issue(CLIENT))
    served.clients = b""
    await served.until_accepts(others.issue(CLIENT), False)
    assert await served.ask() is None, "without a certificate all goes on"


async def test_authorities_that_cannot_be_read_change_nothing(
    served: Served, friends: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    served.clients = b"nonsense"
    async with asyncio.timeout(30):
        while "kept the certificate" not in caplog.text:  # noqa: ASYNC110
            await asyncio.sleep(0.02)
    assert await served.accepts(friends.issue(CLIENT))


def test_a_certificate_that_ends_while_its_connection_is_open_is_noticed() -> None:
    now = datetime.now(UTC)
    assert peers.Peer("virt-api", (), now - HOUR, now + HOUR).is_current()
    assert not peers.Peer("virt-api", (), now - HOUR, now).is_current()


async def test_versions_and_ciphers_of_tls_are_those_that_are_configured_now(served: Served) -> None:
    def handshake(**how: Any) -> tuple[str, str]:
        context = certificates.client_context(served.trust)
        for name, value in how.items():
            context.set_ciphers(value) if name == "ciphers" else setattr(context, name, value)
        host, port = served.url.removeprefix("https://").split(":")
        with (
            socket.create_connection((host, int(port)), 10) as plain,
            context.wrap_socket(plain, server_hostname="127.0.0.1") as secure,
        ):
            cipher = secure.cipher()
            return str(secure.version()), cipher[0] if cipher else ""

    async def spoken(**how: Any) -> tuple[str, str]:
        try:
            return await asyncio.to_thread(handshake, **how)
        except ssl.SSLError:
            return "", ""

    async def until(wanted: tuple[str, str], **how: Any) -> None:
        async with asyncio.timeout(30):
            while await spoken(**how) != wanted:  # noqa: ASYNC110
                await asyncio.sleep(0.02)

    old = ssl.TLSVersion.TLSv1_2
    assert (await spoken())[0] == "TLSv1.3"
    assert (await spoken(maximum_version=old))[0] == "TLSv1.2"
    chosen = "ECDHE-ECDSA-AES256-GCM-SHA384"
    configured = TLSConfiguration(
        min_tls_version="VersionTLS12", ciphers=["TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384", "TLS_unknown"]
    )
    served.tls = rules(configured)
    await until(("", ""), maximum_version=old, ciphers="ECDHE-ECDSA-AES128-GCM-SHA256")
    assert await spoken(maximum_version=old) == ("TLSv1.2", chosen)
    served.tls = rules(TLSConfiguration(min_tls_version="VersionTLS13"))
    await until(("", ""), maximum_version=old)
    assert (await spoken())[0] == "TLSv1.3"
    served.tls = rules(None)
    await until(("TLSv1.2", chosen), maximum_version=old, ciphers=chosen)
    assert (await spoken(maximum_version=old, ciphers="ECDHE-ECDSA-AES128-GCM-SHA256"))[0] == "TLSv1.2"


async def test_before_a_certificate_is_mounted_another_is_shown_on_every_port(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(component, "LISTENER_PERIOD", 0.02)
    monkeypatch.setattr(component, "CERTIFICATE_PERIOD", 0.0)
    first, second = Authority.create("first", LIFE), Authority.create("second", LIFE)
    with socket.create_server(("127.0.0.1", 0)) as one, socket.create_server(("127.0.0.1", 0)) as two:
        ports = [one.getsockname()[1], two.getsockname()[1]]
    options = argparse.Namespace(certificates=tmp_path, host="127.0.0.1", port=ports[0])
    mounted = component.MountedCredential(tmp_path, first.issue(SERVER))
    serving = asyncio.create_task(component.serve(options, mounted=mounted, more_ports=ports[1:]))

    async def shown(by: Authority) -> None:
        for port in ports:
            async with asyncio.timeout(30):
                while True:
                    try:
                        assert await Served(f"https://127.0.0.1:{port}", by.bundle, b"").ask("/livez") == "ok"
                        break
                    except aiohttp.ClientConnectorError:
                        await asyncio.sleep(0.02)

    await shown(first)
    certificates.write(tmp_path, second.issue(SERVER).files())
    await shown(second)
    serving.cancel()
    await asyncio.gather(serving, return_exceptions=True)
