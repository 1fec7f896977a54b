"""Streams of pods at the API server, logs among them: found out which node has the pod, and passed on to its agent."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from urllib.parse import quote, urlencode

import aiohttp
import orjson
from aiohttp import web

from virtfleet.kube.api import KubeApi
from virtfleet.kube.errors import ApiError
from virtfleet.kube.proxy import forward
from virtfleet.kube.resource import PODS, Obj
from virtfleet.local.apiserver.serving.http import Connector
from virtfleet.local.node.layout import Layout

_MEASURING = aiohttp.ClientTimeout(10)
_DEFAULT_CONTAINER = "kubectl.kubernetes.io/default-container"


class NodeProxy:
    """Connectors for the API server: `server.connectors |= proxy.connectors()`."""

    def __init__(self, api: KubeApi, data: Path, cluster: str) -> None:
        self._api, self._data, self._cluster = api, data, cluster
        self._sessions: dict[str, aiohttp.ClientSession] = {}

    def connectors(self) -> dict[tuple[str, str, str], Connector]:
        return {("", "pods", what): partial(self._pass_on, what) for what in ("attach", "exec", "log", "portforward")}

    async def close(self) -> None:
        for session in self._sessions.values():
            await session.close()

    async def usage(self, node: str) -> Obj | None:
        """What the node's containers use; None where it does not answer."""
        try:
            async with self._session(node).get(f"http://{quote(node)}/usage", timeout=_MEASURING) as answer:
                return orjson.loads(await answer.read()) if answer.status == 200 else None
        except (aiohttp.ClientError, TimeoutError, ValueError):
            return None

    async def _pass_on(self, what: str, request: web.Request, *, namespace: str, name: str) -> web.StreamResponse:
        pod = await self._api.get(PODS, name, namespace)
        of = [what, namespace, name]
        if what != "portforward":
            of.append(request.query.get("container") or _default_container(pod))
        node = pod["spec"].get("nodeName")
        if not node:
            if what == "log":
                return web.Response(status=204)  # nothing was ever written
            raise ApiError("BadRequest", f"pod {name} does not have a host assigned")
        query = urlencode([(key, value) for key, value in request.query.items() if key != "container"])
        url = f"http://{quote(node)}/{'/'.join(map(quote, of))}?{query}"
        kept = {key: value for key, value in request.headers.items() if key.lower().startswith("sec-websocket-")}
        return await forward(request, self._session(node), url, ssl=None, headers=kept)

    def _session(self, node: str) -> aiohttp.ClientSession:
        if node not in self._sessions:
            path = Layout(self._data, self._cluster, node).socket
            self._sessions[node] = aiohttp.ClientSession(
                connector=aiohttp.UnixConnector(str(path), limit=0), auto_decompress=False
            )
        return self._sessions[node]


def _default_container(pod: Obj) -> str:
    """The only container, or the one that the pod's annotation names; else the caller must say which."""
    names = [container["name"] for container in pod["spec"]["containers"]]
    chosen = (pod["metadata"].get("annotations") or {}).get(_DEFAULT_CONTAINER, "")
    if chosen in names:
        return str(chosen)
    if len(names) == 1:
        return str(names[0])
    choices = " ".join(names)
    raise ApiError(
        "BadRequest",
        f"a container name must be specified for pod {pod['metadata']['name']}, choose one of: [{choices}]",
    )
