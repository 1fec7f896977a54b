"""The dashboard's routes, put together."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec
from aiohttp import web

from virtfleet.dashboard import answers, figures, pages
from virtfleet.dashboard.following import follow
from virtfleet.dashboard.guard import Guard
from virtfleet.dashboard.passing import PREFIX, body, pass_on
from virtfleet.dashboard.visitors import IDLE, Visitor
from virtfleet.kube.errors import ApiError


class Login(msgspec.Struct, forbid_unknown_fields=True):
    """What somebody hands in: a token, or the key of the link that was printed."""

    token: str = ""


@dataclass
class Dashboard:
    """The routes of one server."""

    _guard: Guard

    def routes(self) -> list[web.RouteDef]:
        guard = self._guard
        passed = guard.visited(pass_on)
        return [
            web.get("/", guard.open(pages.index)),
            web.get("/static/{name}", guard.open(pages.asset)),
            web.get("/api/way", guard.own_page(self._way)),
            web.post("/api/login", guard.own_page(self._login)),
            web.get("/api/me", guard.visited(self._me)),
            web.post("/api/logout", guard.visited(self._logout)),
            web.get("/api/follow", guard.visited(follow)),
            web.post("/api/validate", guard.visited(answers.validate)),
            web.post("/api/explain", guard.visited(answers.explain)),
            web.get("/api/figures", guard.visited(figures.figures)),
            *(web.route(method, PREFIX + "/{path:.*}", passed) for method in ("GET", "POST", "PUT", "DELETE")),
        ]

    async def _way(self, _: web.Request) -> web.StreamResponse:
        return web.json_response({"way": self._guard.visitors.way})

    async def _login(self, request: web.Request) -> web.StreamResponse:
        try:
            login = msgspec.json.decode(await body(request) or b"{}", type=Login)
        except msgspec.MsgspecError:
            raise ApiError("BadRequest", "a token is expected") from None
        cookie, visitor = await self._guard.visitors.enter(login.token, self._guard.header(request))
        response = web.json_response({"secret": visitor.secret, **_known(visitor)})
        if cookie:
            response.set_cookie(
                self._guard.cookie,
                cookie,
                path="/",
                httponly=True,
                samesite="Strict",
                secure=self._guard.https,
                max_age=int(IDLE) * 3,
            )
        return response

    async def _me(self, _: web.Request, visitor: Visitor) -> web.StreamResponse:
        return web.json_response(_known(visitor))

    async def _logout(self, _: web.Request, visitor: Visitor) -> web.StreamResponse:
        await self._guard.visitors.leave(visitor)
        response = web.json_response({})
        response.del_cookie(self._guard.cookie, path="/")
        return response


def _known(visitor: Visitor) -> dict[str, object]:
    return {
        "user": visitor.user.get("username", ""),
        "groups": visitor.user.get("groups") or [],
        "namespace": _home(visitor),
        "server": visitor.config.server,
    }


def _home(visitor: Visitor) -> str:
    """The namespace that somebody most likely means: that of a service account, else what the configuration names."""
    parts = str(visitor.user.get("username", "")).split(":")
    is_account = parts[:2] == ["system", "serviceaccount"] and len(parts) == 4
    return parts[2] if is_account else visitor.config.namespace
