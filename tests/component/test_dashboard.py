"""The dashboard's server: who gets in, and what nobody gets through it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import aiohttp
import orjson
import pytest
from aiohttp import web

from component.kube_fixtures import ScriptedServer, status_answer
from virtfleet.dashboard import visitors as visitors_module
from virtfleet.dashboard.figures import of_vm
from virtfleet.dashboard.guard import SECRET, Guard
from virtfleet.dashboard.server import Dashboard
from virtfleet.dashboard.visitors import Visitors
from virtfleet.kube.config import Config
from virtfleet.kube.credentials import Material, StoredCredentials
from virtfleet.kube.errors import ApiError
from virtfleet.kube.resource import VMS

pytestmark = pytest.mark.timeout(60)

KEY = "the-key-of-the-link"
VM = "/k8s/apis/kubevirt.io/v1/namespaces/team/virtualmachines"


@dataclass
class Kit:
    """A dashboard, the API server behind it, and a browser of somebody's."""

    cluster: ScriptedServer
    visitors: Visitors
    url: str
    browser: aiohttp.ClientSession

    @property
    def own(self) -> dict[str, str]:
        """What our own page's requests say of where they come from."""
        return {"Origin": self.url, "Sec-Fetch-Site": "same-origin"}

    async def login(self, token: str = KEY, **headers: str) -> dict[str, str]:
        """The headers of all further requests."""
        async with self.browser.post(
            f"{self.url}/api/login", json={"token": token}, headers={**self.own, **headers}
        ) as answer:
            assert answer.status == 200, await answer.text()
            return {**self.own, **headers, SECRET: (await answer.json())["secret"]}

    async def status(self, method: str, path: str, headers: dict[str, str], **more: Any) -> int:
        async with self.browser.request(method, f"{self.url}{path}", headers=headers, **more) as answer:
            await answer.read()
            return answer.status


async def _who(request: web.Request) -> web.StreamResponse:
    """Who the API server takes somebody for, by their token."""
    token = request.headers.get("Authorization", "").removeprefix("Bearer ")
    if token not in ("", "alices", "bobs"):
        status = {"kind": "Status", "message": "Unauthorized", "reason": "Unauthorized", "code": 401}
        return web.json_response(status, status=401)
    user = {"username": token.removesuffix("s") or "owner"}
    return web.Response(body=orjson.dumps({"status": {"userInfo": user}}), content_type="application/json", status=201)


Start = Callable[..., Awaitable[Kit]]


@pytest.fixture
async def start() -> AsyncIterator[Start]:
    async with _closing() as kits:

        async def begin(way: str = "owner", hosts: frozenset[str] | None = None) -> Kit:
            cluster = ScriptedServer()
            await cluster.start()
            cluster.next("POST", "selfsubjectreviews", _who, times=1000)

            def config(token: str) -> Config:
                return Config(
                    cluster.url, StoredCredentials(token=Material("a token", token.encode())) if token else None
                )

            header = "X-Forwarded-Access-Token" if way == "header" else ""
            visitors = Visitors(config, key=KEY if way == "owner" else "", header=header)
            app = web.Application()
            runner = web.AppRunner(app, shutdown_timeout=0.1)
            names: set[str] = set(hosts or ())
            guard = Guard(visitors, frozenset({"127.0.0.1", *names}), "virtfleet", https=False)
            app.add_routes(Dashboard(guard).routes())
            await runner.setup()
            await web.TCPSite(runner, "127.0.0.1", 0).start()
            url = f"http://127.0.0.1:{runner.addresses[0][1]}"
            browser = aiohttp.ClientSession(cookie_jar=aiohttp.CookieJar(unsafe=True))
            kits.append((Kit(cluster, visitors, url, browser), runner))
            return kits[-1][0]

        yield begin


@asynccontextmanager
async def _closing() -> AsyncIterator[list[tuple[Kit, web.AppRunner]]]:
    kits: list[tuple[Kit, web.AppRunner]] = []
    yield kits
    for kit, runner in kits:
        await kit.browser.close()
        await kit.visitors.close()
        await runner.cleanup()
        await kit.cluster.stop()


async def test_a_link_lets_one_browser_in(start: Start) -> None:
    kit = await start()
    headers = await kit.login()
    assert await kit.status("GET", "/api/me", headers) == 200
    async with kit.browser.post(f"{kit.url}/api/login", json={"token": KEY}, headers=kit.own) as again:
        assert again.status == 401
        assert "used before" in (await again.json())["message"]
    assert kit.visitors.key not in ("", KEY), "there is a next one"


async def test_the_cookie_is_out_of_reach_of_scripts_and_other_sites(start: Start) -> None:
    kit = await start()
    async with kit.browser.post(f"{kit.url}/api/login", json={"token": KEY}, headers=kit.own) as answer:
        cookie = answer.headers["Set-Cookie"]
    assert {"HttpOnly", "SameSite=Strict", "Path=/"} <= set(cookie.split("; "))


@pytest.mark.parametrize(
    "changed",
    [
        {SECRET: ""},
        {SECRET: "another"},
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
    ],
    ids=str,
)
async def test_another_sites_page_gets_nothing_with_the_visitors_cookie(start: Start, changed: dict[str, str]) -> None:
    kit = await start()
    headers = {**await kit.login(), **changed}
    before = len(kit.cluster.requests)
    for method, path in (("GET", "/api/me"), ("PUT", f"{VM}/a"), ("DELETE", f"{VM}/a"), ("POST", "/api/explain")):
        assert await kit.status(method, path, headers, json={} if method != "GET" else None) == 403
    assert len(kit.cluster.requests) == before, "the API server heard nothing of it"


async def test_a_change_has_to_say_where_it_comes_from(start: Start) -> None:
    kit = await start()
    headers = await kit.login()
    silent = {SECRET: headers[SECRET]}
    assert await kit.status("DELETE", f"{VM}/a", silent) == 403
    with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
        await kit.browser.ws_connect(f"{kit.url}/api/follow?secret={headers[SECRET]}")
    assert refused.value.status == 403


async def test_no_other_name_leads_here(start: Start) -> None:
    kit = await start()
    headers = await kit.login()
    rebound = {**headers, "Host": "evil.example:80", "Origin": "http://evil.example:80"}
    assert await kit.status("GET", "/", {"Host": "evil.example"}) == 421
    assert await kit.status("GET", "/api/me", rebound) == 421


async def test_without_a_login_there_are_the_files_of_the_page_alone(start: Start) -> None:
    kit = await start()
    assert await kit.status("GET", "/", {}) == 200
    for method, path in (("GET", "/api/me"), ("GET", "/api/figures"), ("POST", "/api/validate"), ("PUT", f"{VM}/a")):
        assert await kit.status(method, path, {**kit.own, SECRET: "x"}, json={} if method != "GET" else None) == 401


async def test_pages_take_nothing_from_outside(start: Start) -> None:
    kit = await start()
    async with kit.browser.get(kit.url) as page:
        policy, text = page.headers["Content-Security-Policy"], await page.text()
    assert "default-src 'none'" in policy and "script-src 'self';" in policy and "unsafe" not in policy
    assert "frame-ancestors 'none'" in policy and "http:" not in policy.replace("http://www.w3.org", "")
    nonce = policy.partition("nonce-")[2].partition("'")[0]
    assert f'content="{nonce}"' in text and "@NONCE@" not in text
    async with kit.browser.get(kit.url) as page:
        assert nonce not in page.headers["Content-Security-Policy"], "a new one each time"


async def test_a_file_outside_the_pages_is_not_served(start: Start) -> None:
    kit = await start()
    for path in ("/static/..%2Fserver.py", "/static/%2e%2e/server.py", "/static/index.html", "/static/SOURCES"):
        assert await kit.status("GET", path, {}) == 404


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/k8s/api/v1/namespaces/team/secrets"),
        ("GET", "/k8s/api/v1/namespaces/team/secrets/a"),
        ("POST", "/k8s/api/v1/namespaces/team/pods"),
        ("PUT", f"{VM}/../../../../../../api/v1/namespaces/team/secrets/a"),
        ("PUT", f"{VM}/%2e%2e%2fpods"),
        ("PUT", f"{VM}/a%2Fb"),
        ("PUT", f"{VM}/A"),
        ("DELETE", VM),
        ("POST", "/k8s/apis/kubevirt.io/v1/namespaces/team/virtualmachineinstances"),
        ("PUT", "/k8s/apis/subresources.kubevirt.io/v1/namespaces/team/virtualmachines/a/portforward"),
        ("POST", f"{VM}?fieldManager=x"),
        ("PUT", "/k8s/apis/kubevirt.io/v1/namespaces/team/kubevirts/kubevirt"),
    ],
)
async def test_only_what_the_pages_need_is_passed_on(start: Start, method: str, path: str) -> None:
    kit = await start()
    headers = await kit.login()
    before = len(kit.cluster.requests)
    assert await kit.status(method, path, headers, json={} if method != "GET" else None) in (403, 404)
    assert len(kit.cluster.requests) == before


async def test_a_visitor_acts_as_who_they_are(start: Start) -> None:
    kit = await start("tokens")
    alice = await kit.login("alices")
    vm = {"metadata": {"name": "a", "namespace": "team"}}
    assert await kit.status("POST", f"{VM}?dryRun=All", alice, json=vm) in (200, 201)
    assert kit.cluster.headers[-1]["Authorization"] == "Bearer alices"
    assert "Cookie" not in kit.cluster.headers[-1] and SECRET not in kit.cluster.headers[-1]
    async with kit.browser.post(f"{kit.url}/api/login", json={"token": "nobodys"}, headers=kit.own) as refused:
        assert refused.status == 401
    assert await kit.status("GET", "/api/me", alice) == 200, "a failed login changes nothing"


async def test_one_visitors_secret_is_of_no_use_with_anothers_cookie(start: Start) -> None:
    kit = await start("tokens")
    alice = await kit.login("alices")
    await kit.login("bobs")  # the browser's cookie is Bob's now
    assert await kit.status("GET", "/api/me", alice) == 403


async def test_headers_of_a_proxy_count_only_where_one_is_trusted(start: Start) -> None:
    proxied = {"X-Forwarded-Access-Token": "alices", "Authorization": "Bearer alices"}
    plain = await start("tokens")
    async with plain.browser.post(f"{plain.url}/api/login", json={}, headers={**plain.own, **proxied}) as answer:
        assert answer.status == 401
    trusting = await start("header")
    headers = await trusting.login("", **proxied)
    async with trusting.browser.get(f"{trusting.url}/api/me", headers=headers) as answer:
        assert (await answer.json())["user"] == "alice"
    other = {**headers, "X-Forwarded-Access-Token": "bobs"}
    assert await trusting.status("GET", "/api/me", other) == 401, "Bob's page has to begin anew"
    assert await trusting.status("GET", "/api/me", {**headers, SECRET: ""}) == 403, "a proxy's login is ambient, too"


async def test_a_logout_ends_what_goes_on(start: Start) -> None:
    kit = await start()
    headers = await kit.login()
    socket = await kit.browser.ws_connect(f"{kit.url}/api/follow?secret={headers[SECRET]}", headers=kit.own)
    await socket.send_json({"id": 1, "kind": "vms"})
    assert (await socket.receive_json())["rows"] == []
    assert await kit.status("POST", "/api/logout", headers, json={}) == 200
    async with asyncio.timeout(10):
        while (await socket.receive()).type is aiohttp.WSMsgType.TEXT:
            pass
    assert await kit.status("GET", "/api/me", headers) == 401


CONSOLE = "/k8s/apis/subresources.kubevirt.io/v1/namespaces/team/virtualmachineinstances/a/console"


async def _echo(request: web.Request) -> web.StreamResponse:
    socket = web.WebSocketResponse(protocols=("plain.kubevirt.io",))
    await socket.prepare(request)
    async for message in socket:
        await socket.send_bytes(message.data[::-1])
    return socket


async def test_a_console_is_a_stream_with_the_visitors_rights_that_ends_with_them(start: Start) -> None:
    kit = await start("tokens")
    headers = await kit.login("alices")
    kit.cluster.next("GET", "/console", _echo)
    url = f"{kit.url}{CONSOLE}?secret={headers[SECRET]}"
    with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
        await kit.browser.ws_connect(url, headers={"Origin": "http://evil.example"})
    assert refused.value.status == 403
    socket = await kit.browser.ws_connect(url, headers=kit.own, protocols=("plain.kubevirt.io",))
    await socket.send_bytes(b"abc")
    assert await socket.receive_bytes() == b"cba"
    assert socket.protocol == "plain.kubevirt.io"
    heard = kit.cluster.headers[-1]
    assert heard["Authorization"] == "Bearer alices"
    assert not {"Cookie", "Origin", SECRET} & set(heard)
    assert headers[SECRET] not in kit.cluster.requests[-1][1]
    assert await kit.status("POST", "/api/logout", headers, json={}) == 200
    async with asyncio.timeout(10):
        assert (await socket.receive()).type in (
            aiohttp.WSMsgType.CLOSED,
            aiohttp.WSMsgType.CLOSE,
            aiohttp.WSMsgType.ERROR,
        )


async def test_why_a_console_is_refused_is_passed_on(start: Start) -> None:
    kit = await start()
    headers = await kit.login()
    kit.cluster.next("GET", "/console", status_answer(ApiError("Forbidden", "not yours")))
    with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
        await kit.browser.ws_connect(f"{kit.url}{CONSOLE}?secret={headers[SECRET]}", headers=kit.own)
    assert refused.value.status == 403


async def test_who_was_idle_for_long_has_to_log_in_again(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    kit = await start()
    headers = await kit.login()
    monkeypatch.setattr(visitors_module, "IDLE", -1.0)
    assert await kit.status("GET", "/api/me", headers) == 401


async def test_a_list_is_followed_as_it_changes(start: Start) -> None:
    kit = await start()
    headers = await kit.login()
    kit.cluster.put(VMS, _vm("a"))
    async with kit.browser.ws_connect(f"{kit.url}/api/follow?secret={headers[SECRET]}", headers=kit.own) as socket:
        await socket.send_json({"id": 7, "kind": "vms"})
        assert [row["name"] for row in (await socket.receive_json())["rows"]] == ["a"]
        assert (await socket.receive_json())["synced"]
        kit.cluster.put(VMS, _vm("b"))
        said = await socket.receive_json()
        assert (said["id"], [row["name"] for row in said["rows"]], said["gone"]) == (7, ["b"], [])
        kit.cluster.remove(VMS, "a", "team")
        assert (await socket.receive_json())["gone"] == ["uid-a"]


@pytest.mark.parametrize("wish", [{"id": 1, "kind": "secrets"}, {"id": 1, "kind": "vms", "namespace": "../x"}], ids=str)
async def test_what_pages_do_not_show_is_not_followed(start: Start, wish: dict[str, Any]) -> None:
    kit = await start()
    headers = await kit.login()
    before = len(kit.cluster.requests)
    async with kit.browser.ws_connect(f"{kit.url}/api/follow?secret={headers[SECRET]}", headers=kit.own) as socket:
        await socket.send_json(wish)
        assert (await socket.receive_json())["final"]
    assert len(kit.cluster.requests) == before


async def test_more_than_an_object_is_not_read(start: Start) -> None:
    kit = await start()
    headers = await kit.login()
    assert await kit.status("POST", VM, headers, json={"x": "y" * (3 << 20)}) == 413
    assert await kit.status("POST", VM, headers, data=b"a=b") == 415


def test_figures_are_those_of_one_vm() -> None:
    page = "\n".join(
        f'kubevirt_vmi_network_receive_bytes_total{{interface="{i}",name="{n}",namespace="team",node="x"}} {v}'
        for i, n, v in (("a", "web", 1.5), ("b", "web", 2), ("a", "web2", 100))
    )
    assert of_vm(page, "team", "web") == {"received": 3.5}


def _vm(name: str) -> dict[str, Any]:
    return {
        "apiVersion": "kubevirt.io/v1",
        "kind": "VirtualMachine",
        "metadata": {"name": name, "namespace": "team", "uid": f"uid-{name}"},
        "spec": {"runStrategy": "Always", "template": {"spec": {"domain": {}}}},
    }
