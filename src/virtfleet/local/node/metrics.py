"""metrics.k8s.io for `kubectl top`: what pods and nodes use, asked of the nodes' agents when somebody wants to know.

Nothing is stored and nothing runs at rest. A node is what its pods use together: its agent and the machine are shared.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

import orjson
from aiohttp import web

from virtfleet.kube.api import KubeApi
from virtfleet.kube.resource import NODES, PODS, Obj, Resource
from virtfleet.local.apiserver.kinds.registry import Kind
from virtfleet.local.apiserver.objects import refusals
from virtfleet.local.apiserver.serving.http import Connector
from virtfleet.local.apiserver.serving.streams import HEADERS
from virtfleet.work.tasks import all_of

_READ = frozenset({"get", "list"})
POD_METRICS = Kind(Resource("metrics.k8s.io", "v1beta1", "pods", "PodMetrics"), "", "PodMetricsList", verbs=_READ)
NODE_METRICS = Kind(
    Resource("metrics.k8s.io", "v1beta1", "nodes", "NodeMetrics", False), "", "NodeMetricsList", verbs=_READ
)


class Metrics:
    """`usage` asks a node's agent."""

    def __init__(self, api: KubeApi, usage: Callable[[str], Coroutine[Any, Any, Obj | None]]) -> None:
        self._api, self._usage = api, usage

    def connectors(self) -> dict[tuple[str, str, str], Connector]:
        """What answers requests for the two kinds."""
        return {("metrics.k8s.io", "pods", ""): self._pods, ("metrics.k8s.io", "nodes", ""): self._nodes}

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
                items.append({**_described(POD_METRICS, pod, used), "containers": listed})
        return _answer(POD_METRICS, name, items)

    async def _nodes(self, request: web.Request, *, namespace: str, name: str) -> web.StreamResponse:
        nodes = await self._asked(request, NODES, "", name)
        items = []
        for node, used in zip(nodes, await all_of(*(self._usage(n["metadata"]["name"]) for n in nodes)), strict=True):
            if used:
                amounts = used["node"].get("", {"cpu": 0, "memory": 0})  # without a pod there is no group
                items.append({**_described(NODE_METRICS, node, used), "usage": _quantities(amounts)})
        return _answer(NODE_METRICS, name, items)

    async def _asked(self, request: web.Request, res: Resource, namespace: str, name: str) -> list[Obj]:
        query = request.query
        if request.method != "GET" or query.get("watch") in ("true", "1"):
            raise refusals.method_not_allowed()
        fields = f"metadata.name={name}" if name else query.get("fieldSelector", "")
        pages = self._api.pages(res, namespace or None, labels=query.get("labelSelector", ""), fields=fields, limit=0)
        return [orjson.loads(item) async for page in pages for item in page.items]


def _described(kind: Kind, obj: Obj, used: Obj) -> Obj:
    kept = {key: obj["metadata"][key] for key in ("name", "namespace", "labels") if key in obj["metadata"]}
    metadata, measured = kept | {"creationTimestamp": used["timestamp"]}, ("timestamp", "window")
    described = {"kind": kind.resource.kind, "apiVersion": kind.resource.api_version, "metadata": metadata}
    return described | {key: used[key] for key in measured}


def _quantities(amounts: Obj) -> Obj:
    return {"cpu": f"{amounts['cpu']}n", "memory": f"{amounts['memory'] // 1024}Ki"}


def _answer(kind: Kind, name: str, items: list[Obj]) -> web.Response:
    if name and not items:
        raise refusals.not_found(kind.resource, name)
    version = kind.resource.api_version
    listed: Any = {"kind": kind.list_kind, "apiVersion": version, "metadata": {}, "items": items}
    return web.Response(body=orjson.dumps(items[0] if name else listed), headers=HEADERS)
