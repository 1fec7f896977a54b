"""Nobody reaches a VM without the right to: roles, tokens, certificates, forged headers, pretenders."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from component.access_plane import LIFESPAN, Answer
from component.gateway.gateway_kit import NAMESPACE, ROOT, Kit, listen
from virtfleet.api.subresources import TABLE, Role, Subresource
from virtfleet.kube import certificates
from virtfleet.kube.authority import Authority, Profile
from virtfleet.kube.certificates import Credential
from virtfleet.kube.resource import CONFIG_MAPS, ROLE_BINDINGS
from virtfleet.local.apiserver.rights.rbac import Authorizer

# role -> the rights that it includes
INCLUDES = {
    "": {Role.EVERYBODY},
    "view": {Role.EVERYBODY, Role.VIEW},
    "edit": {Role.EVERYBODY, Role.VIEW, Role.EDIT},
    "admin": {Role.EVERYBODY, Role.VIEW, Role.EDIT, Role.ADMIN},
    "kubevirt.io:migrate": {Role.EVERYBODY, Role.MIGRATE},
}
PAUSE = f"{ROOT}/namespaces/default/virtualmachineinstances/vm/pause"


def path_of(entry: Subresource, namespace: str = "default") -> str:
    path = next(entry.paths())
    return path.format(namespace=namespace, name="vm", port="22", protocol="tcp").removeprefix("/")


def headers_of(entry: Subresource) -> dict[str, str]:
    return {"Connection": "Upgrade", "Upgrade": "websocket"} if entry.websocket else {}


async def ask(kit: Kit, entry: Subresource, token: str, namespace: str = "default") -> Answer:
    """The answer to a request for something that is not there, so that whoever may ask gets another answer than 403."""
    return await kit.call(entry.method, path_of(entry, namespace), token=token, **headers_of(entry))


@pytest.mark.parametrize("role", INCLUDES)
async def test_a_role_can_do_just_what_it_says(kit: Kit, role: str) -> None:
    token = await kit.user("someone", role)
    allowed = {(e.rbac, e.verb) for e in TABLE if (await ask(kit, e, token)).status not in (401, 403)}
    assert allowed == {(e.rbac, e.verb) for e in TABLE if e.role in INCLUDES[role]}
    elsewhere = {e.rbac for e in TABLE if (await ask(kit, e, token, "kube-system")).status not in (401, 403)}
    assert elsewhere == {e.rbac for e in TABLE if e.role is Role.EVERYBODY}, "a role counts in its namespace only"


async def test_virt_api_itself_asks_for_every_subresource(kit: Kit, caplog: pytest.LogCaptureFixture) -> None:
    """Whatever the API server lets through is checked again, with the whole name of the subresource."""
    async with proxied(kit, "someone") as session:
        for entry in TABLE:
            caplog.clear()
            async with session.request(entry.method, f"{ROOT}/{path_of(entry)}", headers=headers_of(entry)) as answer:
                if entry.role is Role.EVERYBODY:
                    assert answer.status == 200, entry
                    continue
                assert answer.status == 403, entry
                message = (await answer.json())["message"]
            assert f'User "someone" cannot {entry.verb} resource "{entry.rbac}"' in message
            assert f'{entry.verb} resource "{entry.rbac}"' in caplog.text


async def test_a_right_that_is_taken_away_is_gone(kit: Kit) -> None:
    await kit.vmi()
    token = await kit.user("someone", "edit")
    assert (await kit.of_vmi("pause", {}, token=token)).status == 202
    await kit.server.api.delete(ROLE_BINDINGS, "someone", "default")
    assert (await kit.of_vmi("pause", {}, token=token)).status == 403
    async with proxied(kit, "system:serviceaccount:default:someone") as session, session.put(PAUSE) as answer:
        assert answer.status == 403, "virt-api remembers no rights"


async def test_requests_without_a_token_get_nowhere(kit: Kit) -> None:
    await kit.vmi()
    assert (await kit.of_vmi("pause", {}, anonymous=True)).status == 401
    assert (await kit.of_vmi("pause", {}, token="made-up")).status == 401
    with pytest.raises(aiohttp.WSServerHandshakeError) as refusal:
        async with kit.stream("virtualmachineinstances/vm/console", "made-up"):
            pass
    assert refusal.value.status == 401
    assert kit.handler.seen == []


# --- past the API server

FORGED = {"X-Remote-User": "root", "X-Remote-Group": "system:masters"}


@asynccontextmanager
async def proxied(kit: Kit, user: str, *groups: str) -> AsyncIterator[aiohttp.ClientSession]:
    """A session as the front proxy has, for a user."""
    async with kit.directly(kit.server.pki.front_proxy) as session:
        session.headers["X-Remote-User"] = user
        for group in groups:
            session.headers.add("X-Remote-Group", group)
        yield session


async def put(kit: Kit, credential: Credential | None, path: str = PAUSE, **headers: str) -> int | str:
    """The status of a direct request, or that there was no connection."""
    async with kit.directly(credential) as session:
        try:
            async with session.put(path, json={}, headers=headers) as answer:
                return answer.status
        except (aiohttp.ClientError, OSError):
            return "no connection"


async def test_the_front_proxy_speaks_for_users(kit: Kit) -> None:
    await kit.vmi()
    assert await put(kit, kit.server.pki.front_proxy, **FORGED) == 202
    async with proxied(kit, "someone", "friends", "system:masters") as session, session.put(PAUSE, json={}) as answer:
        assert answer.status == 202, "every group counts"


async def test_headers_without_the_front_proxys_certificate_mean_nothing(
    kit: Kit, caplog: pytest.LogCaptureFixture
) -> None:
    await kit.vmi()
    assert await put(kit, None, **FORGED) == 401
    assert "without the certificate of the API server's front proxy" in caplog.text
    for path in ("/apis", "/openapi/v3", ROOT, f"{ROOT}/version"):
        async with kit.directly() as session, session.get(path, headers=FORGED) as answer:
            assert answer.status == 401, path
    assert kit.handler.seen == []


async def test_forged_headers_do_not_pass_the_api_server(kit: Kit) -> None:
    await kit.vmi()
    token = await kit.user("someone")
    answer = await kit.of_vmi("pause", {}, token=token, **{k.replace("-", "_"): v for k, v in FORGED.items()})
    assert answer.status == 403
    assert "serviceaccount:default:someone" in answer.body["message"]


async def test_certificates_of_others_are_refused(kit: Kit, caplog: pytest.LogCaptureFixture) -> None:
    await kit.vmi()
    front = kit.server.pki.front_proxy_authority
    profile = Profile("front-proxy-client", LIFESPAN, client=True)
    past = datetime.now(UTC) - timedelta(days=2)
    refused = {
        "a user of the cluster": kit.server.pki.admin,
        "another component": kit.credentials["virt-handler"],
        "virt-api itself": kit.credentials["virt-api"],
        "an authority of the same name": Authority.create("front-proxy-ca", LIFESPAN).issue(profile),
        "expired": front.issue(profile, past),
    }
    for who, credential in refused.items():
        caplog.clear()
        assert await put(kit, credential, **FORGED) == "no connection", who
        assert "refused a client's certificate" in caplog.text, who
    other = front.issue(Profile("aggregator", LIFESPAN, client=True))
    assert await put(kit, other, **FORGED) == 401
    assert "certificate of 'aggregator', which is no front proxy" in caplog.text
    assert kit.handler.seen == []


async def test_the_front_proxy_has_to_name_somebody(kit: Kit) -> None:
    assert await put(kit, kit.server.pki.front_proxy) == 401


async def test_a_new_authority_of_the_front_proxy_is_followed(kit: Kit) -> None:
    await kit.vmi()
    new = Authority.create("front-proxy-ca", LIFESPAN)
    data = {
        "requestheader-client-ca-file": new.bundle.decode(),
        "requestheader-allowed-names": '["other-proxy"]',
        "requestheader-username-headers": '["X-User"]',
    }
    name = "extension-apiserver-authentication"
    await kit.server.api.patch(CONFIG_MAPS, name, {"data": data}, "kube-system")
    credential = new.issue(Profile("other-proxy", LIFESPAN, client=True))
    headers = {"X-User": "root", "X-Remote-Group": "system:masters"}
    async with asyncio.timeout(30):
        while await put(kit, credential, **headers) != 202:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
    assert await put(kit, kit.server.pki.front_proxy, **FORGED) == "no connection"


async def test_extra_of_a_user_reaches_the_decision(kit: Kit, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []
    decide = Authorizer.__call__

    def record(self: Authorizer, attributes: Any) -> Any:
        seen.append(attributes)
        return decide(self, attributes)

    monkeypatch.setattr(Authorizer, "__call__", record)
    async with proxied(kit, "someone", "friends") as session:
        extra = {"X-Remote-Extra-Example.com%2fScope": "blue", "X-Remote-Uid": "u1"}
        async with session.put(PAUSE, headers=extra) as answer:
            assert answer.status == 403
    [asked] = [a for a in seen if a.user.name == "someone"]
    assert (asked.verb, asked.group, asked.resource, asked.subresource, asked.namespace, asked.name) == (
        "update",
        "subresources.kubevirt.io",
        "virtualmachineinstances",
        "pause",
        "default",
        "vm",
    )
    assert asked.user.groups == ("friends",)
    assert (asked.user.uid, asked.user.extra) == ("u1", {"example.com/scope": ("blue",)})


# --- pretenders among handlers


async def test_who_pretends_to_be_a_handler_is_not_spoken_to(kit: Kit, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    stranger = Authority.create("kubevirt-ca", LIFESPAN)
    hosts = Profile(f"{NAMESPACE}:virt-handler", LIFESPAN, hosts=("virt-handler",), client=True)
    pretenders = {
        "other": (stranger.issue(hosts), "127.0.0.3"),
        "controller": (kit.credentials["controller"], "127.0.0.4"),
        "gateway": (kit.credentials["virt-api"], "127.0.0.5"),
    }
    for node, (credential, address) in pretenders.items():
        await kit.add_handler(node, address, credential)
        await kit.vmi(node, status={"nodeName": node})
        caplog.clear()
        answer = await kit.of_vmi("pause", {}, node)
        assert answer.status == 503, node
        assert "certificate" in answer.body["message"]
        assert "certificate verify failed" in caplog.text
        assert kit.handlers[node].seen == []


async def test_a_handler_without_tls_is_not_spoken_to(kit: Kit) -> None:
    seen: list[object] = []

    async def serve(request: web.Request) -> web.Response:
        seen.append(request)
        return web.Response()

    runner = await listen(serve, "127.0.0.6", kit.handler_port, None)
    await kit.add_handler_pod("plain", "127.0.0.6")
    await kit.vmi(status={"nodeName": "plain"})
    assert (await kit.of_vmi("pause", {})).status == 503
    assert seen == []
    await runner.cleanup()


@pytest.mark.slow
async def test_virt_api_takes_up_a_renewed_certificate_towards_handlers(kit: Kit, tmp_path: Any) -> None:
    """When the installation's authority changes, handlers of the new one are reached, and those of the old no more."""
    new = Authority.create("kubevirt-ca", LIFESPAN)

    def issue(component: str) -> Credential:
        return new.issue(Profile(f"{NAMESPACE}:{component}", LIFESPAN, hosts=(component,), client=True))

    await kit.vmi("old")
    await kit.vmi("new", status={"nodeName": "node02"})
    kit.credentials["virt-handler"] = issue("virt-handler")
    await kit.add_handler("node02", "127.0.0.3")
    assert (await kit.of_vmi("pause", {}, "new")).status == 503
    kit.credentials["virt-api"] = issue("virt-api")
    certificates.write(tmp_path / "virt-api", kit.credentials["virt-api"].files())
    path = PAUSE.replace("/vm/", "/new/")
    async with asyncio.timeout(60):
        while await put(kit, kit.server.pki.front_proxy, path, **FORGED) != 202:  # noqa: ASYNC110
            await asyncio.sleep(0.1)
    assert await put(kit, kit.server.pki.front_proxy, PAUSE.replace("/vm/", "/old/"), **FORGED) == 503
    assert kit.handlers["node02"].seen[-1].caller == f"{NAMESPACE}:virt-api"


def test_what_the_api_server_asks_for_grants_no_other_subresource() -> None:
    """The API server checks vnc for vnc/screenshot: who has the longer right must have the shorter one anyway."""
    order = [Role.EVERYBODY, Role.VIEW, Role.EDIT, Role.ADMIN]
    by_name = {(entry.rbac, entry.verb): entry for entry in TABLE}
    for entry in TABLE:
        short = by_name.get((entry.asked_as, entry.verb))
        if short and short is not entry:
            assert order.index(entry.role) >= order.index(short.role)
