"""Whether the local cluster is ready: one answer for `virtfleet up`, which waits for it, and for `virtfleet status`.

Ready means that what people do next works: the disk can be written to, the API server and every node's agent answer,
and VirtFleet's components run and admit VMs. What the API server still has from before a `down` counts for nothing: a
node counts when the agent that runs now has looked at all its pods, and only then do their states.
"""

from __future__ import annotations

import json
import os
import ssl
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from virtfleet.cli.reach import is_true
from virtfleet.kube.resource import KUBEVIRTS, VMIS
from virtfleet.local.directory import Settings
from virtfleet.local.nodesfile import AGENT, DESCRIBED
from virtfleet.local.processes import CONTROL_PLANE

_LEAST_SPACE = 1 << 20
_API_TIME = 5.0
Obj = dict[str, Any]


def why_unready(data: Path, settings: Settings, children: Sequence[Mapping[str, Any]]) -> str | None:
    """The first thing that is missing; None when the cluster is ready. `children` are what the supervisor runs."""
    running = {child["name"]: child for child in children}
    api = Api(data, settings)
    try:
        return (
            why_unwritable(data)
            or _why_down(running, [CONTROL_PLANE])
            or _with_history(api.why_unready(), running[CONTROL_PLANE])
            or _why_down(running, [node.name for node in settings.nodes])
            or why_nodes_unready(api, settings, running)
            or why_not_installed(api, settings)
        )
    except urllib.error.HTTPError as error:
        return f"the API server refuses {error.url}: {error}"
    except OSError as error:
        return f"the API server does not answer: {getattr(error, 'reason', error)}"


def _with_history(trouble: str | None, child: Mapping[str, Any]) -> str | None:
    """What is wrong now, and how the process ended that answered before."""
    return f"{trouble}. {CONTROL_PLANE} {child['reason']}" if trouble and child["reason"] else trouble


class Api:
    """The API server, asked as an administrator."""

    def __init__(self, data: Path, settings: Settings) -> None:
        self._pki, self._server = data / "pki", f"https://127.0.0.1:{settings.port}"
        self._context: ssl.SSLContext | None = None

    def why_unready(self) -> str | None:
        try:
            self._open("/readyz", "GET", None)
        except urllib.error.HTTPError as error:
            failed = [line for line in error.read().decode(errors="replace").splitlines() if line.startswith("[-]")]
            return f"the API server is not ready: {'; '.join(line[3:] for line in failed) or error}"
        except OSError as error:
            return f"the API server does not answer: {getattr(error, 'reason', error)}"
        return None

    def ask(self, path: str, method: str = "GET", body: Obj | None = None) -> Obj:
        obj: Obj = json.loads(self._open(path, method, body))
        return obj

    def items(self, path: str) -> list[Obj]:
        items: list[Obj] = self.ask(path)["items"]
        return items

    def _open(self, path: str, method: str, body: Obj | None) -> bytes:
        if self._context is None:
            context = ssl.create_default_context(cafile=str(self._pki / "ca" / "ca.crt"))
            context.load_cert_chain(self._pki / "admin" / "tls.crt", self._pki / "admin" / "tls.key")
            self._context = context
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self._server + path, data, {"Content-Type": "application/json"}, method=method)
        with urllib.request.urlopen(request, context=self._context, timeout=_API_TIME) as answer:
            content: bytes = answer.read()
        return content


def why_unwritable(data: Path) -> str | None:
    """What is wrong with the disk, and what to do."""
    disk = os.statvfs(data)
    if disk.f_flag & os.ST_RDONLY:
        return f"the disk that holds {data} is read-only: repair it and mount it anew"
    free = disk.f_frsize * (disk.f_bfree if os.geteuid() == 0 else disk.f_bavail)
    if free < _LEAST_SPACE:
        return f"the disk that holds {data} is full. Make room there; what runs goes on"
    return None


def _why_down(running: Mapping[str, Mapping[str, Any]], names: Sequence[str]) -> str | None:
    for name in names:
        child = running.get(name)
        if child is None or not child["running"] or child["ending"]:
            why = f": it {child['reason']}" if child and child["reason"] else ""
            return f"{name} does not run{why}"
    return None


def why_nodes_unready(api: Api, settings: Settings, running: Mapping[str, Mapping[str, Any]]) -> str | None:
    waiting = [node.name for node in settings.nodes if node.name not in ready_nodes(api, settings, running)]
    return f"not ready yet: {', '.join(waiting)}" if waiting else None


def ready_nodes(api: Api, settings: Settings, running: Mapping[str, Mapping[str, Any]]) -> set[str]:
    """Nodes that are ready and as the nodes file has them, said by the agents that run now."""
    if not settings.nodes:
        return set()
    nodes = {node["metadata"]["name"]: node for node in api.items("/api/v1/nodes")}
    return {
        spec.name
        for spec in settings.nodes
        if (node := nodes.get(spec.name)) is not None
        and is_true(node, "Ready")
        and _notes(node).get(DESCRIBED) == msgspec.json.encode(spec).decode()
        and _notes(node).get(AGENT) == str(running.get(spec.name, {}).get("pid"))
    }


def why_not_installed(api: Api, settings: Settings) -> str | None:
    """Why VirtFleet cannot be used, where it should be there."""
    if settings.bare or not settings.nodes:
        return None
    if not settings.code:
        return "VirtFleet is not installed"
    from virtfleet.cli.installing import why_components_unready, why_unavailable
    from virtfleet.operator.manifest import NAMESPACE

    pods = api.items(f"/api/v1/namespaces/{NAMESPACE}/pods")
    kubevirts = api.items(KUBEVIRTS.path())
    return (
        why_components_unready(pods)
        or (why_unavailable(kubevirts[0]) if kubevirts else "there is no KubeVirt object: nothing is installed")
        or _why_not_admitting(api)
        or why_stale(api.items(VMIS.path()), api.items("/api/v1/pods"))
    )


def _why_not_admitting(api: Api) -> str | None:
    """Whether a VMI would be admitted, by asking for one without making it."""
    from virtfleet.cli.installing import TRIAL

    path = f"{VMIS.path('default')}?dryRun=All"
    try:
        api.ask(path, "POST", TRIAL)
    except urllib.error.HTTPError as error:
        message = str(json.loads(error.read() or b"{}").get("message", error))
        # A refusal is an answer too: this cluster may have its own policies.
        return f"VMs are not admitted yet: {message}" if error.code >= 500 else None
    return None


def why_stale(vmis: Sequence[Obj], pods: Sequence[Obj]) -> str | None:
    """VMIs that are said to run without a Pod that does: those of before a `down`, until somebody has looked."""
    alive = {
        owner["uid"]
        for pod in pods
        if pod.get("status", {}).get("phase") == "Running"
        for owner in pod["metadata"].get("ownerReferences") or ()
    }
    stale = [
        f"{vmi['metadata']['namespace']}/{vmi['metadata']['name']}"
        for vmi in vmis
        if (vmi.get("status") or {}).get("phase") in ("Scheduled", "Running") and vmi["metadata"]["uid"] not in alive
    ]
    return f"not looked at yet: VMI {', '.join(stale)}" if stale else None


def _notes(obj: Obj) -> Mapping[str, str]:
    notes: Mapping[str, str] = obj["metadata"].get("annotations") or {}
    return notes
