"""Who is there: visitors, what proves who they are to the API server, and how a browser proves to be theirs.

A browser has a cookie that scripts cannot read, and a second secret that it was told at login and keeps for the page's
own origin. Every request carries both. A cookie alone is worth nothing: browsers show those of 127.0.0.1 to whatever
listens on another port of the machine, and send them along with what other sites ask for.

Three ways in, which the administrator chooses by how the server is started:
  owner    the server runs with somebody's kubeconfig, and whoever has the one-time key that it printed is that person;
  tokens   a visitor hands in a bearer token, and is who the API server says;
  header   a proxy in front has done the login, and puts the visitor's token into a header of every request.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import orjson

from virtfleet import __version__
from virtfleet.kube.client import Client
from virtfleet.kube.config import Config
from virtfleet.kube.errors import ApiError
from virtfleet.work.tasks import Owned

MOST_VISITORS = 500
IDLE = 8 * 3600.0
"""Seconds after which a visitor who asked for nothing has to log in again."""
LONGEST_TOKEN = 16 << 10
_WHO = "/apis/authentication.k8s.io/v1/selfsubjectreviews"
_AGENT = f"virt-dashboard/{__version__}"


@dataclass(slots=True)
class Visitor:
    """Somebody who logged in, and the way to the API server with their rights."""

    config: Config
    api: Client
    user: dict[str, Any]
    secret: str
    """What the page has to say beside the cookie."""
    seen: float = 0.0
    streams: Owned = field(default_factory=Owned)
    """What goes on for them, and ends with them."""


@dataclass(eq=False, repr=False)
class Visitors:
    """All who are logged in. They are known to this process alone, and gone with it.

    `config` is that of a visitor with a token, or of the owner where the server has one: then `key` is set. `used` is
    told the next key when one was used.
    """

    config: Callable[[str], Config]
    key: str = ""
    header: str = ""
    used: Callable[[str], object] = id
    _salt: bytes = field(default_factory=lambda: secrets.token_bytes(32), init=False)
    _known: dict[str, Visitor] = field(default_factory=dict, init=False)

    @property
    def way(self) -> str:
        """How people get in."""
        return "owner" if self.key else "header" if self.header else "tokens"

    async def enter(self, given: str, header: str | None) -> tuple[str, Visitor]:
        """Let somebody in. The answer is what their cookie says, which is nothing where a proxy speaks for them."""
        if self.way == "owner":
            if not hmac.compare_digest(given.encode(), self.key.encode()):
                raise ApiError(
                    "Unauthorized", "this link was used before, or is another one's; use the latest that was printed"
                )
            self.key = secrets.token_urlsafe(32)
            visitor = await self._visitor("")
            self.used(self.key)
        else:
            token = _token(header or "") if self.way == "header" else given.strip()
            if not token or len(token) > LONGEST_TOKEN or not token.isascii() or not token.isprintable():
                raise ApiError("Unauthorized", "there is no token, or none that can be one")
            if self.way == "header":
                return "", await self._of_header(token)
            visitor = await self._visitor(token)
        cookie = secrets.token_urlsafe(32)
        await self._remember(cookie, visitor)
        return cookie, visitor

    async def find(self, cookie: str, header: str | None) -> Visitor | None:
        """Who makes a request."""
        proof = _token(header or "") if self.way == "header" else cookie
        return self._alive(proof) if proof else None

    async def leave(self, visitor: Visitor) -> None:
        """Log somebody out, with all that goes on for them."""
        self._known = {mark: other for mark, other in self._known.items() if other is not visitor}
        await visitor.streams.end()
        await visitor.api.__aexit__()

    async def close(self) -> None:
        for visitor in list(self._known.values()):
            await self.leave(visitor)

    # -- how it is kept

    def _mark(self, text: str) -> str:
        """What is kept of a secret: nobody finds out by time how much of a guess was right."""
        return hmac.new(self._salt, text.encode(errors="replace"), hashlib.sha256).hexdigest()

    def _alive(self, proof: str) -> Visitor | None:
        visitor = self._known.get(self._mark(proof))
        now = time.monotonic()
        if visitor is None or (now - visitor.seen > IDLE and not len(visitor.streams)):
            return None
        visitor.seen = now
        return visitor

    async def _of_header(self, token: str) -> Visitor:
        known = self._alive(token)
        if known is None:
            known = await self._visitor(token)
            await self._remember(token, known)
        return known

    async def _remember(self, proof: str, visitor: Visitor) -> None:
        visitor.seen = time.monotonic()
        self._known[self._mark(proof)] = visitor
        by_age = sorted(self._known.values(), key=lambda v: v.seen)
        idle = [v for v in by_age if visitor.seen - v.seen > IDLE and not len(v.streams)]
        for other in idle or by_age[: max(0, len(by_age) - MOST_VISITORS)]:
            await self.leave(other)

    async def _visitor(self, token: str) -> Visitor:
        """Somebody whom the API server knows."""
        config = self.config(token)
        api = await Client(config, user_agent=_AGENT).__aenter__()
        try:
            review = {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}
            answer = orjson.loads(await api.request("POST", _WHO, body=orjson.dumps(review)))
        except ApiError as error:
            await api.__aexit__()
            if error.code == 401:
                raise ApiError("Unauthorized", "the cluster does not know this token, or it has expired") from error
            raise
        user = (answer.get("status") or {}).get("userInfo") or {}
        if user.get("username", "system:anonymous") == "system:anonymous":
            await api.__aexit__()
            raise ApiError("Unauthorized", "the cluster does not know who you are")
        return Visitor(config, api, user, secrets.token_urlsafe(32))


def _token(header: str) -> str:
    """The token in a header, which may say what it is first."""
    scheme, _, rest = header.strip().partition(" ")
    return rest.strip() if scheme.lower() == "bearer" else header.strip()
