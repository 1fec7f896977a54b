"""Who sends a request: the user that the API server names, if it really is the API server that names one.

The API server authenticates people and passes their requests on with headers that say who they are. Anybody who reaches
virt-api can send such headers; they count only on a connection with the front proxy's certificate. Its authority, its
name and the names of the headers are published in a ConfigMap, which is followed, so that they may change at any time.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote

import msgspec
import orjson
from aiohttp import web

from virtfleet.kube import peers
from virtfleet.kube.api import KubeApi
from virtfleet.kube.cache import Cache
from virtfleet.kube.certificates import Credential
from virtfleet.kube.errors import ApiError
from virtfleet.kube.resource import CONFIG_MAPS

log = logging.getLogger(__name__)

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
NAMESPACE, NAME = "kube-system", "extension-apiserver-authentication"


@dataclass(frozen=True, slots=True)
class User:
    """Whom the API server has authenticated."""

    name: str
    groups: tuple[str, ...] = ()
    uid: str = ""
    extra: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Settings:
    """What the ConfigMap says. Without it nobody is trusted."""

    authorities: bytes = b""
    names: tuple[str, ...] = ()  # common names of the front proxy; none: any that its authority signed
    user_headers: tuple[str, ...] = ()
    group_headers: tuple[str, ...] = ()
    uid_headers: tuple[str, ...] = ()
    extra_prefixes: tuple[str, ...] = ()


def read_settings(config_map: bytes) -> Settings:
    """What the ConfigMap says."""
    data = orjson.loads(config_map).get("data") or {}

    def texts(key: str) -> tuple[str, ...]:
        return msgspec.json.decode(data.get(f"requestheader-{key}") or "[]", type=tuple[str, ...])

    return Settings(
        data.get("requestheader-client-ca-file", "").encode(),
        texts("allowed-names"),
        texts("username-headers"),
        texts("group-headers"),
        texts("uid-headers"),
        tuple(prefix.lower() for prefix in texts("extra-headers-prefix")),
    )


class FrontProxy:
    """Run `cache`."""

    def __init__(self, api: KubeApi) -> None:
        self.cache: Cache[Settings] = Cache(
            api, CONFIG_MAPS, namespace=NAMESPACE, fields=f"metadata.name={NAME}", decode=read_settings
        )

    @property
    def _settings(self) -> Settings:
        return self.cache.get(f"{NAMESPACE}/{NAME}") or Settings()

    def document(self, path: str, body: bytes) -> web.RouteDef:
        """A route to what is there for everybody whom the API server names."""

        async def serve(request: web.Request) -> web.StreamResponse:
            self.user(request)
            return web.Response(body=body, content_type="application/json")

        return web.get(path, telling(serve))

    def authorities(self, _: Credential) -> bytes:
        """Whose certificates the server takes at all."""
        return self._settings.authorities

    def user(self, request: web.Request) -> User:
        """Whom the front proxy names. Raises ApiError where somebody else speaks, or nobody is named."""
        settings = self._settings
        peer = peers.verified(request)
        if peer is None:
            raise _refused(request, "it comes without the certificate of the API server's front proxy")
        if settings.names and peer.name not in settings.names:
            raise _refused(request, f"it comes with the certificate of {peer.name!r}, which is no front proxy")
        name = next(iter(_values(request, settings.user_headers)), "")
        if not name:
            raise _refused(request, "the front proxy names no user")
        return User(
            name,
            _values(request, settings.group_headers),
            next(iter(_values(request, settings.uid_headers)), ""),
            _extra(request, settings.extra_prefixes),
        )


def answer(document: Any, status: int = 200) -> web.Response:
    """A document in JSON."""
    return web.Response(body=orjson.dumps(document), status=status, content_type="application/json")


def failure(error: ApiError) -> web.Response:
    """An error as the API server passes it on: a Status object."""
    return answer(error.status(), error.code)


def telling(serve: Handler) -> Handler:
    """A handler of requests that tells the client of an error."""

    async def told(request: web.Request) -> web.StreamResponse:
        try:
            return await serve(request)
        except ApiError as error:
            return failure(error)

    return told


def _values(request: web.Request, headers: tuple[str, ...]) -> tuple[str, ...]:
    """Those of the first header that is there."""
    return next((tuple(values) for header in headers if (values := request.headers.getall(header, []))), ())


def _extra(request: web.Request, prefixes: tuple[str, ...]) -> dict[str, tuple[str, ...]]:
    extra: dict[str, tuple[str, ...]] = {}
    for header, value in request.headers.items():
        for prefix in prefixes:
            if header.lower().startswith(prefix):
                key = unquote(header.lower().removeprefix(prefix))
                extra[key] = (*extra.get(key, ()), value)
    return extra


def _refused(request: web.Request, why: str) -> ApiError:
    log.warning("refused %s %s from %s: %s", request.method, request.path, request.remote, why)
    return ApiError("Unauthorized", f"Unauthorized: {why}; send requests to the API server")
