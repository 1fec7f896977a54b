"""Credentials over real TLS and with real plugins: they are replaced while the client runs."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import ssl
import sys
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import trustme
import yaml
from aiohttp import web
from kube_fixtures import ScriptedServer, pod, status_answer

from virtfleet.kube.client import Client
from virtfleet.kube.config import Config, load
from virtfleet.kube.credentials import Material, StoredCredentials
from virtfleet.kube.errors import ApiError
from virtfleet.kube.resource import PODS

UNAUTHORIZED = status_answer(ApiError("Unauthorized", "Unauthorized"))


def server_tls(authority: trustme.CA, name: str = "127.0.0.1") -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert(name).configure_cert(context)
    return context


class TestTls:
    async def test_the_servers_certificate_is_checked_against_the_authority(self) -> None:
        good, other = trustme.CA(), trustme.CA()
        async with ScriptedServer(server_tls(good)) as server:
            async with Client(Config(server.url, ca=Material("ca", good.cert_pem.bytes()))) as api:
                assert await api.list(PODS) == []
            async with Client(Config(server.url, ca=Material("ca", other.cert_pem.bytes()))) as api:
                with pytest.raises(ApiError, match="its certificate is not good"):
                    await api.list(PODS)
            async with Client(Config(server.url, insecure=True)) as api:
                assert await api.list(PODS) == []

    async def test_another_name_than_the_urls_can_be_expected(self) -> None:
        authority = trustme.CA()
        ca = Material("ca", authority.cert_pem.bytes())
        async with ScriptedServer(server_tls(authority, "kubernetes.default.svc")) as server:
            async with Client(Config(server.url, ca=ca, tls_server_name="kubernetes.default.svc")) as api:
                assert await api.list(PODS) == []
            async with Client(Config(server.url, ca=ca)) as api:
                with pytest.raises(ApiError, match="certificate"):
                    await api.list(PODS)

    async def test_a_new_client_certificate_is_presented_without_a_restart(self, tmp_path: Path) -> None:
        authority = trustme.CA()
        tls = server_tls(authority)
        tls.verify_mode = ssl.CERT_REQUIRED
        authority.configure_trust(tls)
        presented = []

        async def note(request: web.Request) -> web.StreamResponse:
            assert request.transport is not None
            presented.append(request.transport.get_extra_info("peercert")["serialNumber"])
            return web.json_response({})

        certificate, key = tmp_path / "tls.crt", tmp_path / "tls.key"

        def issue() -> None:
            pair = authority.issue_cert("someone@example.org")
            certificate.write_bytes(pair.cert_chain_pems[0].bytes())
            key.write_bytes(pair.private_key_pem.bytes())

        issue()
        credentials = StoredCredentials(certificate=Material("crt", certificate), key=Material("key", key))
        ca = Material("ca", authority.cert_pem.bytes())
        async with ScriptedServer(tls) as server, Client(Config(server.url, credentials, ca=ca)) as api:
            server.next("GET", "/version", note, times=3)
            await api.request("GET", "/version")
            await api.request("GET", "/version")
            issue()
            await api.request("GET", "/version")
        assert presented[0] == presented[1] != presented[2]

    async def test_a_server_whose_authority_changed_is_reached_once_the_file_says_so(self, tmp_path: Path) -> None:
        old, new = trustme.CA(), trustme.CA()
        bundle = tmp_path / "ca.crt"
        bundle.write_bytes(old.cert_pem.bytes())
        ca = Material("ca", bundle)
        async with ScriptedServer(server_tls(old)) as server, Client(Config(server.url, ca=ca), patience=1.0) as api:
            await api.list(PODS)
            await server.stop()
            server.use_tls(server_tls(new))
            await server.start()
            with pytest.raises(ApiError, match="its certificate is not good"):
                await api.list(PODS)
            bundle.write_bytes(new.cert_pem.bytes())
            assert await api.list(PODS) == []


PLUGIN = """
import datetime, json, os, pathlib, sys
here = pathlib.Path(__file__).parent
runs = here / "runs"
with runs.open("a") as f:
    f.write(os.environ["KUBERNETES_EXEC_INFO"] + "\\n")
n = len(runs.read_text().splitlines())
answer = json.loads((here / "answer").read_text().replace("<n>", str(n)))
print(json.dumps(answer))
sys.exit(int(os.environ.get("EXIT", "0")))
"""


class Plugin:
    """An exec plugin that writes down how it was called and answers what the test says."""

    api_version = "client.authentication.k8s.io/v1"

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        (directory / "plugin.py").write_text(PLUGIN)
        self.answer(token="token-<n>")

    def answer(self, **status: str) -> None:
        answer = {"apiVersion": self.api_version, "kind": "ExecCredential", "status": status}
        (self.directory / "answer").write_text(json.dumps(answer))

    @property
    def runs(self) -> list[dict[str, Any]]:
        path = self.directory / "runs"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def config(self, server: str, **settings: Any) -> Config:
        plugin = {
            "apiVersion": self.api_version,
            "command": sys.executable,
            "args": [str(self.directory / "plugin.py")],
            "interactiveMode": "Never",
            **settings,
        }
        extension = {"name": "client.authentication.k8s.io/exec", "extension": {"audience": "us"}}
        path = self.directory / "config"
        path.write_text(
            yaml.safe_dump(
                {
                    "clusters": [{"name": "c", "cluster": {"server": server, "extensions": [extension]}}],
                    "users": [{"name": "u", "user": {"exec": plugin}}],
                    "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
                    "current-context": "x",
                }
            )
        )
        return load(path)


class TestExecPlugins:
    @pytest.fixture
    def plugin(self, tmp_path: Path) -> Plugin:
        return Plugin(tmp_path)

    @pytest.fixture
    async def server(self) -> AsyncIterator[ScriptedServer]:
        async with ScriptedServer() as server:
            yield server

    async def test_one_run_serves_all_requests(self, plugin: Plugin, server: ScriptedServer) -> None:
        async with Client(plugin.config(server.url)) as api:
            await asyncio.gather(*(api.list(PODS) for _ in range(5)))
        assert {headers["Authorization"] for headers in server.headers} == {"Bearer token-1"}
        assert plugin.runs == [
            {"apiVersion": plugin.api_version, "kind": "ExecCredential", "spec": {"interactive": False}}
        ]

    async def test_the_plugin_is_told_of_the_cluster_if_it_wants_to(
        self, plugin: Plugin, server: ScriptedServer
    ) -> None:
        async with Client(plugin.config(server.url, provideClusterInfo=True)) as api:
            await api.list(PODS)
        assert plugin.runs[0]["spec"]["cluster"] == {"server": server.url, "config": {"audience": "us"}}

    async def test_it_runs_again_after_the_expiry_it_stated(self, plugin: Plugin, server: ScriptedServer) -> None:
        async with Client(plugin.config(server.url)) as api:
            past = datetime.now(UTC) - timedelta(seconds=1)
            plugin.answer(token="token-<n>", expirationTimestamp=past.isoformat())
            await api.list(PODS)
            plugin.answer(token="token-<n>", expirationTimestamp=(past + timedelta(hours=1)).isoformat())
            await api.list(PODS)
            await api.list(PODS)
        assert [headers["Authorization"][-1] for headers in server.headers] == ["1", "2", "2"]

    async def test_a_refused_token_is_replaced_and_the_request_sent_again(
        self, plugin: Plugin, server: ScriptedServer
    ) -> None:
        server.next("POST", "/pods", UNAUTHORIZED)
        async with Client(plugin.config(server.url)) as api:
            await api.create(PODS, pod("a"))
        assert [headers["Authorization"] for headers in server.headers] == ["Bearer token-1", "Bearer token-2"]

    async def test_a_token_that_stays_refused_is_the_callers_problem(
        self, plugin: Plugin, server: ScriptedServer
    ) -> None:
        server.next("GET", "/pods", UNAUTHORIZED, times=5)
        async with Client(plugin.config(server.url)) as api:
            with pytest.raises(ApiError, match="Unauthorized"):
                await api.list(PODS)
        assert len(plugin.runs) == 2
        assert server.count("GET", "/pods") == 2

    async def test_a_certificate_is_presented(self, plugin: Plugin) -> None:
        authority = trustme.CA()
        tls = server_tls(authority)
        tls.verify_mode = ssl.CERT_REQUIRED
        authority.configure_trust(tls)
        pair = authority.issue_cert("someone@example.org")
        plugin.answer(
            clientCertificateData=pair.cert_chain_pems[0].bytes().decode(),
            clientKeyData=pair.private_key_pem.bytes().decode(),
        )
        async with ScriptedServer(tls) as server:
            plugin.config(server.url)
            kubeconfig = yaml.safe_load((plugin.directory / "config").read_text())
            data = base64.b64encode(authority.cert_pem.bytes()).decode()
            kubeconfig["clusters"][0]["cluster"]["certificate-authority-data"] = data
            (plugin.directory / "config").write_text(yaml.safe_dump(kubeconfig))
            config = load(plugin.directory / "config")
            async with Client(config) as api:
                assert await api.list(PODS) == []

    @pytest.mark.parametrize(
        ("settings", "message"),
        [
            ({"env": [{"name": "EXIT", "value": "3"}]}, r"users\[u\]\.user\.exec: .* failed with exit code 3"),
            (
                {"command": "no-such-plugin", "installHint": "apt install it"},
                r"exec\.command: cannot run 'no-such-plugin': No such file or directory\napt install it",
            ),
            (
                {"apiVersion": "client.authentication.k8s.io/v1beta1"},
                r"v1beta1 is configured, the plugin answered .*/v1",
            ),
            ({"interactiveMode": "Always"}, r"interactiveMode: Always, but standard input is not a terminal"),
        ],
    )
    async def test_a_plugin_that_fails_is_named(
        self, plugin: Plugin, server: ScriptedServer, settings: dict[str, Any], message: str
    ) -> None:
        async with Client(plugin.config(server.url, **settings)) as api:
            with pytest.raises(ApiError, match=message) as raised:
                await api.list(PODS)
        assert raised.value.code == 401
        assert server.requests == []

    @pytest.mark.parametrize("status", [{}, {"clientCertificateData": "half"}])
    async def test_an_answer_without_credentials_is_an_error(
        self, plugin: Plugin, server: ScriptedServer, status: dict[str, str]
    ) -> None:
        plugin.answer(**status)
        async with Client(plugin.config(server.url)) as api:
            with pytest.raises(ApiError, match="neither a token nor a certificate with its key"):
                await api.list(PODS)

    async def test_a_command_with_a_path_is_relative_to_the_kubeconfig(
        self, plugin: Plugin, server: ScriptedServer
    ) -> None:
        script = plugin.directory / "run-plugin"
        script.write_text(f"#!{sys.executable}\n{PLUGIN}")
        os.chmod(script, 0o755)
        async with Client(plugin.config(server.url, command="./run-plugin", args=None)) as api:
            await api.list(PODS)
        assert server.headers[0]["Authorization"] == "Bearer token-1"


async def test_a_token_file_that_was_rotated_just_now_is_tried_after_a_refusal(tmp_path: Path) -> None:
    secret = tmp_path / "token"
    secret.write_text("old")

    async def rotate(request: web.Request) -> web.StreamResponse:
        secret.write_text("newer")
        return await UNAUTHORIZED(request)

    async with ScriptedServer() as server:
        server.next("POST", "/pods", rotate)
        credentials = StoredCredentials(token=Material("token", secret))
        async with Client(Config(server.url, credentials)) as api:
            await api.create(PODS, pod("a"))
        assert [headers["Authorization"] for headers in server.headers] == ["Bearer old", "Bearer newer"]
