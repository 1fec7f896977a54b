"""The HTTP face of the API server: authenticate, authorize, route, and answer as Kubernetes does.

Everything about objects is in operations.py; here are paths, headers, content types and streams. What other parts of
the server add hangs on `Server`: connectors (streams such as pods/exec), documents (discovery, OpenAPI), the
aggregator (API groups that other servers answer for).
"""

from __future__ import annotations

import asyncio
import logging
import platform
import ssl
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Protocol

import orjson
from aiohttp import web

from virtfleet import __version__
from virtfleet.api.names import ARCHITECTURES
from virtfleet.kube.api import Patch
from virtfleet.kube.errors import ApiError
from virtfleet.kube.proxy import break_off
from virtfleet.kube.resource import Obj
from virtfleet.local.apiserver.kinds import left_out
from virtfleet.local.apiserver.kinds.registry import Kinds
from virtfleet.local.apiserver.objects import causes, patching, refusals
from virtfleet.local.apiserver.objects.deletion import Outcome
from virtfleet.local.apiserver.objects.listing import Paging
from virtfleet.local.apiserver.objects.operations import Call, Operations
from virtfleet.local.apiserver.rights.access import ANONYMOUS, Attributes, User
from virtfleet.local.apiserver.serving import requestinfo
from virtfleet.local.apiserver.serving.asked import Asked
from virtfleet.local.apiserver.serving.discovery import Document
from virtfleet.local.apiserver.serving.streams import HEADERS, send_pieces, send_watch, send_watch_error

log = logging.getLogger(__name__)

BODY_LIMIT = 3 * 1024 * 1024
_WARNINGS_LIMIT = 4096  # characters in all; clients limit the headers that they accept
# Kinds whose objects, and not only a word about them, are the answer to their deletion.
_SHOWN_LAST = ("/pods", "/services", "/serviceaccounts", "/persistentvolumes", "/persistentvolumeclaims")
_ACTING = ("attach", "exec", "portforward")  # of pods; a websocket is asked for by GET, and yet does more than read
_TOO_DEEP = "Recursion limit reached"  # what orjson says of an object that it has read and cannot write
_HEALTH = ("/livez", "/readyz", "/healthz")
_OPEN_PATHS = (*_HEALTH, "/version")
_KUBERNETES_MINOR = 36  # whose behaviour this server follows

Authenticate = Callable[[web.Request], Awaitable[User]]
Authorize = Callable[[Attributes], bool]
Aggregator = Callable[[web.Request, str, str, User], Awaitable[web.StreamResponse | None]]


class Connector(Protocol):
    """Answers requests to a subresource by itself, usually with a stream."""

    async def __call__(self, request: web.Request, *, namespace: str, name: str) -> web.StreamResponse: ...


class Server:
    """`start` listens; `stop` lets requests end, and ends watches."""

    def __init__(self, operations: Operations, kinds: Kinds, authenticate: Authenticate, authorize: Authorize) -> None:
        self.operations, self.kinds = operations, kinds
        self.authenticate, self.authorize = authenticate, authorize
        self.connectors: dict[tuple[str, str, str], Connector] = {}  # (group, plural, subresource)
        self.documents: Callable[[str], Document | None] = lambda path: None
        self.aggregator: Aggregator | None = None
        self.ready: dict[str, Callable[[], Awaitable[str]]] = {}  # what /readyz asks: what is wrong, if anything
        self._runner: web.ServerRunner | None = None

    # Life

    async def start(self, addresses: Sequence[tuple[str, int]], context: ssl.SSLContext | None = None) -> list[int]:
        """Listen on host and port pairs (port 0: any); returns the ports."""
        # No aiohttp application: its router would only look at every path before ours does.
        factory = partial(web.Request, loop=asyncio.get_running_loop(), client_max_size=BODY_LIMIT)
        listener = web.Server(self._handle, request_factory=factory, access_log=None)
        self._runner = web.ServerRunner(listener, shutdown_timeout=5.0)
        await self._runner.setup()
        for host, port in addresses:
            await web.TCPSite(self._runner, host, port, ssl_context=context, backlog=1024).start()
        return [address[1] for address in self._runner.addresses]

    async def stop(self) -> None:
        """End all watches, and let other requests end."""
        if self._runner is not None:
            self.operations.watchers.end()
            await self._runner.cleanup()
            self._runner = None

    # One request

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        assert isinstance(request, web.Request)
        try:
            watch, fields = request.query.get("watch", ""), request.query.get("fieldSelector", "")
            info = requestinfo.read(request.method, request.rel_url.raw_path, watch, fields)
            info = replace(info, user=await self.authenticate(request))
            self._admit(info)
            return await self._route(request, info)
        except ApiError as error:
            return _failure(error)
        except web.HTTPRequestEntityTooLarge:
            return _failure(refusals.too_large(f"limit is {BODY_LIMIT}"))
        except web.HTTPException as error:
            return _failure(ApiError("Unknown", error.reason, code=error.status))
        except ConnectionError:
            # The client is gone, or a stream that is passed on broke off, which must not look like its end.
            break_off(request)
            return web.Response(status=499)
        except Exception as error:
            if isinstance(error, RecursionError) or str(error) == _TOO_DEEP:
                return _failure(refusals.bad_request("the object is nested too deeply"))
            log.exception("%s %s failed", request.method, request.path)
            return _failure(ApiError("InternalError", f"Internal error occurred: {error}"))

    def _admit(self, info: Attributes) -> None:
        if info.user is ANONYMOUS and info.path.rstrip("/") not in _OPEN_PATHS:
            raise ApiError("Unauthorized", "Unauthorized")
        acting = info.verb == "get" and (info.group, info.resource) == ("", "pods") and info.subresource in _ACTING
        for asked in (info, replace(info, verb="create")) if acting else (info,):
            if not self.authorize(asked):
                raise refusals.forbidden(asked)

    async def _route(self, request: web.Request, info: Attributes) -> web.StreamResponse:
        if not info.resource:
            return await self._route_path(request, info)
        kind = self.kinds.find(info.group, info.version, info.resource)
        missing = left_out.refusal(info.group, info.resource, info.subresource)
        if kind is None and (none := left_out.empty(info.group, info.version, info.resource, info.verb)):
            return _answer(orjson.dumps(none))
        if kind is None:
            return await self._aggregated(request, info.group, info.version, info.user, missing)
        if missing:
            raise missing
        namespace = info.namespace if kind.resource.namespaced else ""
        if kind.resource.namespaced:
            if not namespace and info.name and info.verb not in ("list", "watch"):
                raise refusals.no_such_path()
        elif info.namespace and info.resource != "namespaces":
            # Authorized for a namespace, which says nothing about an object outside of all of them.
            raise refusals.no_such_path()
        if info.subpath:
            raise refusals.no_such_path()
        key = (info.group, info.resource, info.subresource)
        if connector := self.connectors.get(key):
            return await connector(request, namespace=namespace, name=info.name)
        asked = Asked(request, info, kind, namespace)
        if info.verb == "create" and key in self.operations.posts:
            return await self._post(asked)
        allowed = kind.subresources.get(info.subresource) if info.subresource else kind.verbs
        if allowed is None:
            raise refusals.no_such_path()
        handler = self._HANDLERS.get(info.verb)
        needs_namespace = kind.resource.namespaced and info.verb in ("create", "deletecollection")
        of_collection = info.verb == "create" and not info.subresource
        misplaced = info.verb in ("create", "update", "patch") and bool(info.name) == of_collection
        if handler is None or info.verb not in allowed or (needs_namespace and not namespace) or misplaced:
            raise refusals.method_not_allowed()
        return await handler(self, asked)

    # Objects

    async def _get(self, asked: Asked) -> web.StreamResponse:
        form = asked.form()
        data = self.operations.get(asked.kind, asked.namespace, asked.info.name, asked.info.subresource)
        return _answer(asked.shown(form, data))

    async def _list(self, asked: Asked) -> web.StreamResponse:
        query, form = asked.request.query, asked.form()
        if "sendInitialEvents" in query:
            fault = causes.forbidden("sendInitialEvents", "sendInitialEvents is forbidden for list")
            raise refusals.invalid_options("ListOptions", [fault])
        where = (query.get(field, "") for field in ("continue", "resourceVersion", "resourceVersionMatch"))
        paging = Paging(asked.number("limit") or 0, *where)
        return await send_pieces(asked.request, form.many(await self.operations.list(asked.selection(), paging)))

    async def _watch(self, asked: Asked) -> web.StreamResponse:
        request, query, form = asked.request, asked.request.query, asked.form()
        initial = asked.initial_events()
        selection = asked.selection()
        timeout = asked.number("timeoutSeconds")
        try:
            watcher = self.operations.watchers.open(selection, query.get("resourceVersion", ""), initial)
        except ApiError as error:
            if error.code == 410:
                return await send_watch_error(request, error)
            raise
        bookmarks = query.get("allowWatchBookmarks", "") in ("true", "1")
        return await send_watch(request, self.operations, watcher, form, timeout or None, bookmarks)

    async def _create(self, asked: Asked) -> web.StreamResponse:
        form = asked.form()
        obj, call = await asked.body("CreateOptions")
        data = await self.operations.create(asked.kind, asked.namespace, obj, call)
        return _answer(form.one(data), call, status=201)

    async def _post(self, asked: Asked) -> web.StreamResponse:
        info, (obj, call) = asked.info, await asked.body("CreateOptions")
        answer = await self.operations.post(asked.kind, asked.namespace, info.name, info.subresource, obj, call)
        return _answer(orjson.dumps(answer), call, status=201)

    async def _update(self, asked: Asked) -> web.StreamResponse:
        info, form = asked.info, asked.form()
        obj, call = await asked.body("UpdateOptions")
        data = await self.operations.update(asked.kind, asked.namespace, info.name, obj, call, info.subresource)
        return _answer(asked.shown(form, data), call)

    async def _patch(self, asked: Asked) -> web.StreamResponse:
        info, kind, form = asked.info, asked.kind, asked.form()
        how = patching.format_of(kind, asked.media_type())
        body = await asked.content()
        call = asked.call("PatchOptions", applies=how is Patch.APPLY)
        call.may_create = lambda: self._admit(replace(info, verb="create"))
        try:
            orjson.loads(body)
        except orjson.JSONDecodeError as error:
            raise refusals.bad_request(f"error decoding patch: {error}") from error
        data = await self.operations.patch(kind, asked.namespace, info.name, how, body, call, info.subresource)
        return _answer(asked.shown(form, data), call, status=201 if call.created else 200)

    async def _delete(self, asked: Asked) -> web.StreamResponse:
        form, resource, name = asked.form(), asked.kind.resource, asked.info.name
        options, call = await asked.delete_options()
        outcome, data = await self.operations.delete(asked.kind, asked.namespace, name, options, call)
        if outcome is not Outcome.REMOVED or asked.kind.storage in _SHOWN_LAST:
            return _answer(form.one(data), call)
        uid = orjson.loads(data)["metadata"]["uid"]
        details = {"name": name, "group": resource.group, "kind": resource.plural, "uid": uid}
        success = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success"}
        return _answer(orjson.dumps({**success, "details": {k: v for k, v in details.items() if v}}), call)

    async def _delete_collection(self, asked: Asked) -> web.StreamResponse:
        form = asked.form()
        options, call = await asked.delete_options()
        listing = await self.operations.delete_collection(asked.selection(), options, call)
        return await send_pieces(asked.request, form.many(listing))

    _HANDLERS: dict[str, Callable[..., Awaitable[web.StreamResponse]]] = {  # noqa: RUF012
        "get": _get,
        "list": _list,
        "watch": _watch,
        "create": _create,
        "update": _update,
        "patch": _patch,
        "delete": _delete,
        "deletecollection": _delete_collection,
    }

    # Paths that are not about objects

    async def _route_path(self, request: web.Request, info: Attributes) -> web.StreamResponse:
        path = request.path.rstrip("/") or "/"
        if document := self.documents(path):
            return await document(request)
        if path in _HEALTH:
            waited_for = {name: await check() for name, check in self.ready.items()} if path == "/readyz" else {}
            return _health(path[1:], {"ping": "", **waited_for}, "verbose" in request.query)
        if path == "/version":
            return _answer(orjson.dumps(_version()))
        parts = path.split("/")
        if len(parts) == 4 and parts[1] == "apis":
            return await self._aggregated(request, parts[2], parts[3], info.user)
        if parts[1] == "version":
            raise refusals.no_such_path()
        return _nothing_there()

    async def _aggregated(
        self, request: web.Request, group: str, version: str, user: User, missing: ApiError | None = None
    ) -> web.StreamResponse:
        """What another server answers; where there is none, that it is `missing`."""
        answer = await self.aggregator(request, group, version, user) if self.aggregator else None
        if answer is None and missing:
            raise missing
        if answer is None and any(kind.resource.group == group and not kind.custom for kind in self.kinds):
            raise refusals.no_such_path()
        return answer or _nothing_there()


def _answer(body: bytes, call: Call | None = None, status: int = 200) -> web.Response:
    response = web.Response(body=body, status=status, headers=HEADERS)
    room = _WARNINGS_LIMIT
    for warning in call.warnings if call else ():
        shown = "".join(c if c.isprintable() else "?" for c in " ".join(warning.split()))  # a header is one line
        text = shown.replace("\\", "\\\\").replace('"', '\\"')
        room -= len(text)
        if room < 0:
            break
        response.headers.add("Warning", f'299 - "{text}"')
    return response


def _health(name: str, troubles: Mapping[str, str], verbose: bool) -> web.Response:
    """`ok`, or check by check what is and what is not. A trouble that is empty is none."""
    passed = not any(troubles.values())
    if passed and not verbose:
        return web.Response(text="ok")
    lines = [f"[-]{check} failed: {why}" if why else f"[+]{check} ok" for check, why in troubles.items()]
    lines.append(f"{name} check {'passed' if passed else 'failed'}")
    return web.Response(text="\n".join(lines) + "\n", status=200 if passed else 500)


def _version() -> Obj:
    """The version of Kubernetes that this is, in a way."""
    machine = platform.machine()
    return {
        "major": "1",
        "minor": str(_KUBERNETES_MINOR),
        "gitVersion": f"v1.{_KUBERNETES_MINOR}.0+virtfleet-{__version__}",
        "gitTreeState": "clean",
        "platform": f"linux/{ARCHITECTURES.get(machine, machine)}",
    }


def _nothing_there() -> web.Response:
    """Beyond all APIs, Kubernetes answers as any web server does."""
    return web.Response(status=404, text="404 page not found\n")


def _failure(error: ApiError) -> web.Response:
    response = web.Response(body=orjson.dumps(error.status()), status=error.code, headers=HEADERS)
    if after := (error.details or {}).get("retryAfterSeconds"):
        response.headers["Retry-After"] = str(after)
    return response
