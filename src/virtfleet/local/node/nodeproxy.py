"""What the API server asks of nodes' agents: streams of pods, logs among them, and for `kubectl top`, what they use.

Which node has a pod is found out here. Of metrics.k8s.io nothing is stored and nothing runs at rest: agents measure
when somebody wants to know. A node is what its pods use together: its agent and the machine are shared.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

import aiohttp
import orjson
from aiohttp import web

from virtfleet.kube.api import KubeApi
from virtfleet.kube.errors import ApiError
from virtfleet.kube.proxy import forward
from virtfleet.kube.resource import NODES, PODS, Obj, Resource
from virtfleet.local.apiserver.kinds.registry import Kind
from virtfleet.local.apiserver.objects import refusals
from virtfleet.local.apiserver.serving.http import Connector
from virtfleet.local.apiserver.serving.streams import HEADERS
from virtfleet.local.node.layout import Layout
from virtfleet.work.tasks import all_of

_MEASURING = aiohttp.ClientTimeout(10)
_DEFAULT_CONTAINER = "kubectl.kubernetes.io/default-container"
_METRICS, _READ = "metrics.k8s.io", frozenset({"get", "list"})
_POD_METRICS = Kind(Resource(_METRICS, "v1beta1", "pods", "PodMetrics"), "", "PodMetricsList", verbs=_READ)
_NODE_METRICS = Kind(Resource(_METRICS, "v1beta1", "nodes", "NodeMetrics", False), "", "NodeMetricsList", verbs=_READ)
KINDS = (_POD_METRICS, _NODE_METRICS)


class NodeProxy:
    """Connectors for the API server: `server.connectors |= proxy.connectors()`."""

    def __init__(self, api: KubeApi, data: Path, cluster: str) -> None:
        self._api, self._data, self._cluster = api, data, cluster
        self._sessions: dict[str, aiohttp.ClientSession] = {}

    def connectors(self) -> dict[tuple[str, str, str], Connector]:
        measured = {(_METRICS, "pods", ""): self._pods, (_METRICS, "nodes", ""): self._nodes}
        streams = ("attach", "exec", "log", "portforward")
        return {**measured, **{("", "pods", what): partial(self._pass_on, what) for what in streams}}

    async def close(self) -> None:
        for session in self._sessions.values():
            await session.close()

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

    async def _pods(self, request: web.Request, *, namespace: str, name: str) -> web.StreamResponse:
        pods = await self._asked(request, PODS, namespace, name)
        nodes = sorted({pod["spec"]["nodeName"] for pod in pods if pod["spec"].get("nodeName")})
        measured = dict(zip(nodes, await all_of(*map(self._usage, nodes)), strict=True))
        items = []
        for pod in pods:
            meta, used = pod["metadata"], measured.get(pod["spec"].get("nodeName", "")) or {}
            containers = used.get("pods", {}).get(f"{meta['namespace']}/{meta['name']}")
            if containers:
                listed = [{"name": each, "usage": _quantities(amounts)} for each, amounts in containers.items()]
                items.append({**_described(_POD_METRICS, pod, used), "containers": listed})
        return _answer(_POD_METRICS, name, items)

    async def _nodes(self, request: web.Request, *, namespace: str, name: str) -> web.StreamResponse:
        nodes = await self._asked(request, NODES, "", name)
        items = []
        for node, used in zip(nodes, await all_of(*(self._usage(n["metadata"]["name"]) for n in nodes)), strict=True):
            if used:
                amounts = used["node"].get("", {"cpu": 0, "memory": 0})  # without a pod there is no group
                items.append({**_described(_NODE_METRICS, node, used), "usage": _quantities(amounts)})
        return _answer(_NODE_METRICS, name, items)

    async def _asked(self, request: web.Request, res: Resource, namespace: str, name: str) -> list[Obj]:
        query = request.query
        if request.method != "GET" or query.get("watch") in ("true", "1"):
            raise refusals.method_not_allowed()
        fields = f"metadata.name={name}" if name else query.get("fieldSelector", "")
        pages = self._api.pages(res, namespace or None, labels=query.get("labelSelector", ""), fields=fields, limit=0)
        return [orjson.loads(item) async for page in pages for item in page.items]

    async def _usage(self, node: str) -> Obj | None:
        """What the node's containers use; None where it does not answer."""
        try:
            async with self._session(node).get(f"http://{quote(node)}/usage", timeout=_MEASURING) as answer:
                return orjson.loads(await answer.read()) if answer.status == 200 else None
        except (aiohttp.ClientError, TimeoutError, ValueError):
            return None

    def _session(self, node: str) -> aiohttp.ClientSession:
        if node not in self._sessions:
            agent = aiohttp.UnixConnector(str(Layout(self._data, self._cluster, node).socket), limit=0)
            self._sessions[node] = aiohttp.ClientSession(connector=agent, auto_decompress=False)
        return self._sessions[node]


def _default_container(pod: Obj) -> str:
    """The only container, or the one that the pod's annotation names; else the caller must say which."""
    names = [str(container["name"]) for container in pod["spec"]["containers"]]
    chosen = (pod["metadata"].get("annotations") or {}).get(_DEFAULT_CONTAINER)
    if len(names) == 1 or chosen in names:
        return names[0] if len(names) == 1 else str(chosen)
    asked = f"a container name must be specified for pod {pod['metadata']['name']}"
    raise ApiError("BadRequest", f"{asked}, choose one of: [{' '.join(names)}]")


def _described(kind: Kind, obj: Obj, used: Obj) -> Obj:
    kept = {key: obj["metadata"][key] for key in ("name", "namespace", "labels") if key in obj["metadata"]}
    moment = {"timestamp": used["timestamp"], "window": used["window"]}
    metadata = kept | {"creationTimestamp": used["timestamp"]}
    return {"kind": kind.resource.kind, "apiVersion": kind.resource.api_version, "metadata": metadata, **moment}


def _quantities(amounts: Obj) -> Obj:
    return {"cpu": f"{amounts['cpu']}n", "memory": f"{amounts['memory'] // 1024}Ki"}


def _answer(kind: Kind, name: str, items: list[Obj]) -> web.Response:
    if name and not items:
        raise refusals.not_found(kind.resource, name)
    version = kind.resource.api_version
    listed: Any = {"kind": kind.list_kind, "apiVersion": version, "metadata": {}, "items": items}
    return web.Response(body=orjson.dumps(items[0] if name else listed), headers=HEADERS)
