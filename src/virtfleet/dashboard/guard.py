"""What every request has to pass, and what every answer says to the browser.

`Host` has to be a name of ours, so that no other name can be made to lead here; what a page sends has to come from our
own page (`Origin`, `Sec-Fetch-Site`), from a visitor, with the secret of that visitor's page.
"""

from __future__ import annotations

import hmac
import logging
from collections.abc import Awaitable, Callable
from urllib.parse import urlsplit

from aiohttp import web

from virtfleet.dashboard.visitors import Visitor, Visitors
from virtfleet.kube.errors import ApiError

log = logging.getLogger(__name__)

SECRET = "X-Virtfleet-Secret"
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self' 'nonce-{nonce}'; img-src 'self' data: blob:; "
    "font-src 'self'; connect-src 'self'; manifest-src 'self'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'"
)
HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
}
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
Visited = Callable[[web.Request, Visitor], Awaitable[web.StreamResponse]]


class Guard:
    """Lets requests through to routes. `hosts` are our names; with a port where only that one will do."""

    def __init__(self, visitors: Visitors, hosts: frozenset[str], cookie: str, *, https: bool) -> None:
        self.visitors = visitors
        self.https = https
        self.cookie = cookie
        self._hosts = frozenset(host.lower() for host in hosts)

    def open(self, handler: Handler) -> Handler:
        """A route for everybody who knows our name."""

        async def checked(request: web.Request) -> web.StreamResponse:
            try:
                self._check_host(request)
                return self._marked(await handler(request))
            except ApiError as error:
                return self._marked(web.json_response(error.status(), status=error.code))

        return checked

    def own_page(self, handler: Handler) -> Handler:
        """A route for our own page, before anybody has logged in."""

        async def checked(request: web.Request) -> web.StreamResponse:
            self._check_origin(request)
            return await handler(request)

        return self.open(checked)

    def visited(self, handler: Visited) -> Handler:
        """A route for visitors."""

        async def checked(request: web.Request) -> web.StreamResponse:
            visitor = await self.visitors.find(request.cookies.get(self.cookie, ""), self.header(request))
            if visitor is None:
                raise ApiError("Unauthorized", "log in first")
            said = request.headers.get(SECRET) or request.query.get("secret", "")
            if not hmac.compare_digest(said.encode(), visitor.secret.encode()):
                raise ApiError("Forbidden", f"{SECRET} is not that of your page; load it again")
            return await handler(request, visitor)

        return self.own_page(checked)

    def header(self, request: web.Request) -> str | None:
        """What a proxy in front says of the visitor, where one is trusted."""
        return request.headers.get(self.visitors.header) if self.visitors.header else None

    def _check_host(self, request: web.Request) -> None:
        host = request.headers.get("Host", "").lower()
        if host not in self._hosts and _without_port(host) not in self._hosts:
            raise ApiError("Forbidden", f"{host[:100]!r} is no name of this dashboard; add it to its hosts", code=421)

    def _check_origin(self, request: web.Request) -> None:
        origin, site = request.headers.get("Origin"), request.headers.get("Sec-Fetch-Site")
        if site is not None and site != "same-origin":
            raise ApiError("Forbidden", "another site's page may not ask for this")
        if origin is not None and urlsplit(origin).netloc.lower() != request.headers.get("Host", "").lower():
            raise ApiError("Forbidden", "a page of another origin may not ask for this")
        changing = request.method != "GET" or "Upgrade" in request.headers
        if changing and origin is None and site is None:
            raise ApiError("Forbidden", "the request does not say which page it comes from (Origin)")

    def _marked(self, response: web.StreamResponse) -> web.StreamResponse:
        if not response.prepared:
            for name, value in HEADERS.items():
                response.headers.setdefault(name, value)
            response.headers.setdefault("Content-Security-Policy", "default-src 'none'; frame-ancestors 'none'")
            response.headers.setdefault("Cache-Control", "no-store")
        return response


def _without_port(host: str) -> str:
    name, colon, port = host.rpartition(":")
    return name if colon and port.isdigit() else host
