"""The API server's own way to Services: webhooks and aggregated servers are called by the names of their Services.

The API server is not a pod and has no cluster DNS, so `NAME.NAMESPACE.svc` is resolved here, from Service and
EndpointSlice objects straight to the address of a ready pod. Doing it in the resolver of an HTTP client keeps the name
for TLS and for the Host header.
"""

from __future__ import annotations

import base64
import random
import socket
import ssl
from collections.abc import Iterator
from functools import lru_cache

import aiohttp
from aiohttp.abc import AbstractResolver, ResolveResult

from virtfleet.kube import certificates
from virtfleet.kube.certificates import Credential
from virtfleet.kube.resource import Obj
from virtfleet.local.apiserver.objects.store import Store

SUFFIX = ".svc"


class Unreachable(OSError):
    """A Service that leads nowhere. `reason` is what an APIService's condition calls it."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


def endpoints(store: Store, namespace: str, name: str, port: int) -> list[tuple[str, int]]:
    """Address and port of every ready endpoint behind a port of a Service."""
    service = store.read("/services", namespace, name)
    if service is None:
        raise Unreachable("ServiceNotFound", f'service/{name} in "{namespace}" is not present')
    ports = service["spec"].get("ports", ())
    served = next((p.get("name", "") for p in ports if p["port"] == port), None)
    if served is None:
        raise Unreachable("ServicePortError", f'service/{name} in "{namespace}" is not listening on port {port}')
    everything = store.objects("discovery.k8s.io/endpointslices", namespace)
    slices = [s for s in everything if s["metadata"].get("labels", {}).get("kubernetes.io/service-name") == name]
    if not slices:
        raise Unreachable("EndpointsNotFound", f'cannot find endpointslices for service/{name} in "{namespace}"')
    addresses = [each for piece in slices for each in ready(piece, served)]
    if not addresses:
        missing = f'endpointslices for service/{name} in "{namespace}" have no addresses with port name "{served}"'
        raise Unreachable("MissingEndpoints", missing)
    return addresses


def ready(piece: Obj, port_name: str) -> Iterator[tuple[str, int]]:
    """Address and port of the ready endpoints of an EndpointSlice behind one of its ports."""
    number = next((p.get("port") for p in piece.get("ports") or () if (p.get("name") or "") == port_name), None)
    if number is None:
        return
    for endpoint in piece.get("endpoints") or ():
        if (endpoint.get("conditions") or {}).get("ready") is not False and endpoint.get("addresses"):
            yield endpoint["addresses"][0], number


def host(namespace: str, name: str) -> str:
    """The name of a Service as a host."""
    return f"{name}.{namespace}{SUFFIX}"


class ClusterResolver(AbstractResolver):
    """Resolves the names of Services; any other name as the machine does."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._others = aiohttp.ThreadedResolver()

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        """The addresses of the ready pods behind a Service."""
        if not host.endswith(SUFFIX):
            return await self._others.resolve(host, port, family)
        name, _, namespace = host.removesuffix(SUFFIX).partition(".")
        addresses = endpoints(self._store, namespace, name, port)
        random.shuffle(addresses)  # the load is spread, and a pod that is gone is not tried first every time
        return [
            ResolveResult(
                hostname=host,
                host=address,
                port=there,
                family=socket.AF_INET6 if ":" in address else socket.AF_INET,
                proto=socket.IPPROTO_TCP,
                flags=socket.AI_NUMERICHOST,
            )
            for address, there in addresses
        ]

    async def close(self) -> None:
        """Give up what resolves other names."""
        await self._others.close()


@lru_cache(maxsize=256)
def trusting(ca_bundle: str, credential: Credential | None = None, *, insecure: bool = False) -> ssl.SSLContext:
    """For calls to a server with this CA bundle, in base64. One context for each, so that connections are kept."""
    return certificates.client_context(base64.b64decode(ca_bundle), credential, insecure=insecure)


def session(store: Store) -> aiohttp.ClientSession:
    """An HTTP client for servers inside the cluster, with kept connections. Bodies pass through as they come."""
    connector = aiohttp.TCPConnector(resolver=ClusterResolver(store), use_dns_cache=False, limit=0)
    return aiohttp.ClientSession(
        connector=connector,
        auto_decompress=False,
        skip_auto_headers=("Accept-Encoding", "User-Agent"),
        cookie_jar=aiohttp.DummyCookieJar(),
    )
