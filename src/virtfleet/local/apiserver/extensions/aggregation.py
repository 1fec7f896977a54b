"""API groups that other servers answer for: APIService objects, their availability, and the way to them.

A request that passed authentication and authorization here is passed on with the front proxy's certificate, and headers
say who sent it. An aggregated server trusts those headers because only this server has that certificate; for the same
reason no such header of a client ever gets through.
"""

from __future__ import annotations

import ssl
import time
from collections.abc import Callable
from urllib.parse import quote, unquote

import aiohttp
import orjson
from aiohttp import web
from multidict import CIMultiDict

from virtfleet.api import conditions
from virtfleet.kube import proxy
from virtfleet.kube.api import KubeApi
from virtfleet.kube.certificates import Credential
from virtfleet.kube.controller import Controller
from virtfleet.kube.errors import ApiError
from virtfleet.kube.resource import API_SERVICES, ENDPOINT_SLICES, Obj
from virtfleet.local.apiserver.extensions import services
from virtfleet.local.apiserver.objects import refusals
from virtfleet.local.apiserver.objects.store import Change, Store
from virtfleet.local.apiserver.rights.access import User
from virtfleet.local.apiserver.serving.discovery import aggregated_version

_CHECK_TIMEOUT = aiohttp.ClientTimeout(total=5)
# Seconds until the next look at a server that works, and at one that does not.
_AGAIN, _SOON = 30.0, 2.0

# The check asks as a superuser, so that no aggregated server can refuse it for want of rights.
_CHECKER = User("system:kube-aggregator", ("system:masters",))
# What no client may say for itself, and what speaks to this server alone.
_OURS = ("x-remote-", "authorization", "cookie", "impersonate-")


class ApiService:
    """An APIService object that names a Service; `available` is what its condition says."""

    def __init__(self, obj: Obj) -> None:
        spec = obj["spec"]
        self.name: str = obj["metadata"]["name"]
        self.group, self.version = str(spec["group"]), str(spec["version"])
        self.namespace, self.service = str(spec["service"]["namespace"]), str(spec["service"]["name"])
        self.port: int = spec["service"].get("port") or 443
        self.url = f"https://{services.host(self.namespace, self.service)}:{self.port}"
        self.root = f"{self.url}/apis/{self.group}/{self.version}"  # below which the server answers
        self.ca_bundle: str = spec.get("caBundle") or ""
        self.insecure = bool(spec.get("insecureSkipTLSVerify"))
        self.available = conditions.holds(_conditions(obj), "Available")


def _conditions(obj: Obj) -> list[Obj]:
    return (obj.get("status") or {}).get("conditions") or []


class Aggregation:
    """Run `controller`; call this with requests to groups that are not this server's own.

    `credential` gives the front proxy's certificate as it is now.
    """

    def __init__(
        self, store: Store, api: KubeApi, session: aiohttp.ClientSession, credential: Callable[[], Credential]
    ) -> None:
        self._store, self._api, self._session, self._credential = store, api, session, credential
        self._services: dict[str, ApiService] = {}
        self._discovered: dict[str, list[Obj]] = {}  # APIService name -> entries of its APIResourceList
        self.controller = Controller("apiservices", self.reconcile, workers=4)
        store.follow(API_SERVICES.storage, self._changed)
        store.listen("/services", self._surroundings_changed)
        store.listen(ENDPOINT_SLICES.storage, self._surroundings_changed)

    def _changed(self, change: Change) -> None:
        name, obj = change.record.name, orjson.loads(change.record.data)
        self._services.pop(name, None)
        # Older clusters have some of this server's own groups without a Service.
        if change.type != "DELETED" and obj["spec"].get("service"):
            self._services[name] = ApiService(obj)
        self.controller.queue.add(name)

    def _surroundings_changed(self, change: Change) -> None:
        for service in self._services.values():
            if service.namespace == change.record.namespace:
                self.controller.queue.add(service.name)

    # --- requests ----------------------------------------------------------------------------------------------------

    async def __call__(self, request: web.Request, group: str, version: str, user: User) -> web.StreamResponse | None:
        """The answer of the server that serves this group and version; None where nobody does."""
        service = self._services.get(f"{version}.{group}")
        if service is None:
            return None
        if not service.available:
            raise ApiError("ServiceUnavailable", "service unavailable")
        if any(unquote(segment) in (".", "..") for segment in request.rel_url.raw_path.split("/")):
            # The server behind might read another path than the one that was authorized.
            raise refusals.bad_request('invalid path: it may not contain the segments "." and ".."')
        headers = CIMultiDict(pair for pair in request.headers.items() if not pair[0].lower().startswith(_OURS))
        headers.extend(_identity_headers(user))
        return await proxy.forward(
            request, self._session, service.url + request.raw_path, ssl=self._context(service), headers=headers
        )

    def _context(self, service: ApiService) -> ssl.SSLContext:
        return services.trusting(service.ca_bundle, self._credential(), insecure=service.insecure)

    # --- discovery ---------------------------------------------------------------------------------------------------

    def extra_groups(self) -> list[Obj]:
        """The groups of aggregated servers, as APIGroupDiscovery objects."""
        groups = []
        for each in self._services.values():
            listed = self._discovered.get(each.name, [])
            version = aggregated_version(each.group, each.version, listed, stale=not each.available)
            groups.append({"metadata": {"name": each.group}, "versions": [version]})
        return groups

    # --- availability ------------------------------------------------------------------------------------------------

    async def reconcile(self, name: str) -> float | None:
        """Look whether a server answers, and say so in the status of its APIService."""
        obj, service = self._store.read(API_SERVICES.storage, "", name), self._services.get(name)
        if obj is None or service is None:
            self._discovered.pop(name, None)
            return None
        try:
            services.endpoints(self._store, service.namespace, service.service, service.port)
            self._discovered[name] = await self._resources_of(service)
        except services.Unreachable as error:
            await self._report(obj, False, error.reason, str(error))
            return None  # until Service or endpoints change
        except (aiohttp.ClientError, OSError, TimeoutError, ValueError) as error:
            why = f"failing or missing response from {service.root}: {proxy.explain(error)}"
            await self._report(obj, False, "FailedDiscoveryCheck", why)
            return _SOON
        await self._report(obj, True, "Passed", "all checks passed")
        return _AGAIN

    async def _resources_of(self, service: ApiService) -> list[Obj]:
        """Ask for what every aggregated server has to serve."""
        async with self._session.get(
            service.root,
            headers={**dict(_identity_headers(_CHECKER)), "Accept": "application/json"},
            ssl=self._context(service),
            timeout=_CHECK_TIMEOUT,
            allow_redirects=False,
            raise_for_status=True,
        ) as answer:
            return orjson.loads(await answer.read()).get("resources") or []

    async def _report(self, obj: Obj, available: bool, reason: str, message: str) -> None:
        listed, status = _conditions(obj), "True" if available else "False"
        wanted = conditions.put(listed, "Available", status, time.time(), reason=reason, message=message)
        if wanted is not listed:
            patch = {"status": {"conditions": wanted}}
            await self._api.patch(API_SERVICES, obj["metadata"]["name"], patch, subresource="status")


def _identity_headers(user: User) -> list[tuple[str, str]]:
    """How an aggregated server is told who asks."""
    headers = [("X-Remote-User", user.name), *(("X-Remote-Group", group) for group in user.groups)]
    headers += [("X-Remote-Uid", user.uid)] if user.uid else []
    for key, values in user.extra.items():
        headers += [(f"X-Remote-Extra-{quote(key, safe='')}", value) for value in values]
    return headers
