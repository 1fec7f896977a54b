"""Nodes for tests: the real API server's operations, real agents, real containers, in a network namespace of their own.

`machine` gives every test a network that is not this machine's and checks that nothing is left behind afterwards:
mounts, namespaces, control groups, processes, interfaces and nft tables are counted before and after.
"""

from __future__ import annotations

import asyncio
import ctypes
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from virtfleet.kube.errors import ApiError, is_not_found
from virtfleet.kube.resource import EVENTS, NAMESPACES, PODS, Obj
from virtfleet.local import directory
from virtfleet.local.apiserver.kinds import builtin
from virtfleet.local.apiserver.kinds.registry import Kinds
from virtfleet.local.apiserver.objects.inprocess import InProcessApi
from virtfleet.local.apiserver.objects.namespace_defaults import NamespaceDefaults
from virtfleet.local.apiserver.objects.operations import Operations
from virtfleet.local.apiserver.objects.store import Store
from virtfleet.local.apiserver.rights.access import MASTER, User
from virtfleet.local.apiserver.rights.tokens import ServiceAccountTokens, SigningKey
from virtfleet.local.apiserver.serving.discovery import Discovery
from virtfleet.local.apiserver.serving.http import Server
from virtfleet.local.directory import Settings
from virtfleet.local.node import mounts, nodeproxy, server
from virtfleet.local.node.agent import Agent
from virtfleet.local.node.layout import Layout
from virtfleet.local.node.network import ClusterNetwork
from virtfleet.local.node.teardown import tear_down
from virtfleet.local.nodesfile import NodeSpec

CLONE_NEWNET = 0x40000000
DEADLINE = 30.0
needs_root = pytest.mark.skipif(
    os.geteuid() != 0 or not shutil.which("runc") or not shutil.which("conmon"), reason="needs root, runc and conmon"
)


@contextmanager
def own_network() -> Iterator[None]:
    """Move this thread, and all that it starts, into a new network namespace."""
    libc = ctypes.CDLL(None, use_errno=True)
    before = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
    try:
        if libc.unshare(CLONE_NEWNET):
            pytest.skip("cannot make network namespaces here")
        subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
        yield
    finally:
        libc.setns(before, CLONE_NEWNET)
        os.close(before)


def leftovers(place: Path) -> dict[str, list[str]]:
    """What of a cluster's is on this machine, by kind."""

    def listed(*command: str) -> list[str]:
        return sorted(subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines())

    mine = str(place)
    processes = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            text = path.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if mine in text and str(os.getpid()) != path.parent.name and "pytest" not in text:
            processes.append(text)
    loops = [line for line in listed("losetup", "--list", "--noheadings", "--output", "BACK-FILE") if mine in line]
    return {
        "mounts": mounts.below(place),
        "cgroups": sorted(str(p) for p in Path("/sys/fs/cgroup").glob(f"*/virtfleet/{cluster_name(place)}")),
        "processes": processes,
        "links": [line.split()[0] for line in listed("ip", "-br", "link")],
        "tables": listed("nft", "list", "tables"),
        "loops": loops,
    }


def cluster_name(place: Path) -> str:
    return place.name


class NodeCluster:
    """An API without a control plane, and the agents that tests start; pods are bound by naming their node."""

    def __init__(self, place: Path, api: InProcessApi, operations: Operations, kinds: Kinds) -> None:
        self.directory, self.api, self.operations, self.kinds = place, api, operations, kinds
        self.network = ClusterNetwork(cluster_name(place))
        self._agents: dict[str, asyncio.Task[None]] = {}
        self.agents: dict[str, Agent] = {}
        self.processes: list[subprocess.Popen[bytes]] = []
        self._server: Server | None = None
        self._proxy: nodeproxy.NodeProxy | None = None

    def layout(self, node: str = "n1") -> Layout:
        return Layout(self.directory, self.network.cluster, node)

    async def start(self, node: str = "n1", number: int = 1, **spec: Any) -> Agent:
        agent = Agent(
            self.layout(node), self.api, self.network, self.network.node_range(number), NodeSpec(node, **spec)
        )
        task = self._agents[node] = asyncio.create_task(agent.run())
        ready = asyncio.create_task(agent.ready.wait())
        await asyncio.wait([ready, task], return_when=asyncio.FIRST_COMPLETED)
        ready.cancel()
        if task.done():
            task.result()
        self.agents[node] = agent
        return agent

    async def stop(self, node: str = "n1") -> None:
        """End the agent as a signal does; its containers go on."""
        task = self._agents.pop(node)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        del self.agents[node]

    async def serve(self) -> None:
        """Answer over HTTP too, for agents that are processes of their own."""
        nodes = [NodeSpec("n1"), NodeSpec("n2")]
        self._server = Server(self.operations, self.kinds, _everyone, lambda _: True)
        self._server.documents = Discovery(self.kinds).handler
        self._proxy = nodeproxy.NodeProxy(self.api, self.directory, self.network.cluster)
        self._server.connectors |= self._proxy.connectors()
        for kind in nodeproxy.KINDS:
            self.kinds.add(kind)
        (port,) = await self._server.start([("127.0.0.1", 0)])
        settings = Settings(self.network.cluster, port, str(self.network.pods), str(self.network.services), nodes)
        directory.save(self.directory, settings)
        config = {
            "clusters": [{"name": "c", "cluster": {"server": f"http://127.0.0.1:{port}"}}],
            "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
            "users": [{"name": "u", "user": {}}],
            "current-context": "c",
        }
        (self.directory / "kubeconfig").write_text(json.dumps(config))

    async def kubectl(self, *arguments: str, feed: bytes | None = None) -> asyncio.subprocess.Process:
        """The real one, started; its output is in pipes."""
        kubectl = Path(sys.executable).with_name("kubectl")
        process = await asyncio.create_subprocess_exec(
            str(kubectl),
            f"--kubeconfig={self.directory / 'kubeconfig'}",
            f"--cache-dir={self.directory / 'cache'}",
            *arguments,
            stdin=asyncio.subprocess.PIPE if feed is not None else asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        if feed is not None and process.stdin is not None:
            process.stdin.write(feed)
            process.stdin.close()
        return process

    async def says(self, *arguments: str, feed: bytes | None = None) -> tuple[int, str, str]:
        """How the real kubectl ends, and all that it says."""
        process = await self.kubectl(*arguments, feed=feed)
        assert process.stdout and process.stderr
        out, err = await asyncio.wait_for(process.stdout.read(), 30), await process.stderr.read()
        return await process.wait(), out.decode(), err.decode()

    def spawn(self, node: str = "n1") -> subprocess.Popen[bytes]:
        """An agent that can be killed."""
        command = [sys.executable, "-m", "virtfleet.local.node", "--data", str(self.directory)]
        with open(self.directory / f"{node}.log", "ab") as log:
            process = subprocess.Popen(
                [*command, "--node", json.dumps({"name": node}), "--kubeconfig", str(self.directory / "kubeconfig")],
                stdout=log,
                stderr=log,
            )
        self.processes.append(process)
        return process

    async def close(self) -> None:
        if self._server is not None:
            await self._server.stop()
        if self._proxy is not None:
            await self._proxy.close()

    def kill_agents(self) -> None:
        for process in self.processes:
            process.kill()
            process.wait()
        self.processes.clear()

    async def create(self, name: str, node: str = "n1", **spec: Any) -> Obj:
        metadata = {"name": name, "namespace": "default", **spec.pop("metadata", {})}
        return await self.api.create(PODS, {"metadata": metadata, "spec": {"nodeName": node, **spec}})

    async def run(self, name: str, script: str, node: str = "n1", **more: Any) -> Obj:
        """A pod of one container `c` with a shell script; `container` adds to the container, the rest to the spec."""
        container = {"name": "c", "image": "host", "command": ["sh", "-c", script], **more.pop("container", {})}
        spec = {"restartPolicy": "Never", "terminationGracePeriodSeconds": 2, "containers": [container], **more}
        return await self.create(name, node, **spec)

    async def pod(self, name: str) -> Obj:
        return await self.api.get(PODS, name, "default")

    async def until(self, name: str, condition: Callable[[Obj], Any], deadline: float = DEADLINE) -> Obj:
        """The pod as it was when the condition first held."""

        async def look() -> Obj | None:
            pod = await self.pod(name)
            return pod if condition(pod) else None

        try:
            return await self.eventually(look, deadline)
        except AssertionError:
            events = [f"{e['reason']}: {e['message']}" for e in await self.api.list(EVENTS, "default")]
            logs = [line for path in self.directory.glob("n*.log") for line in path.read_text().splitlines()[-20:]]
            raise AssertionError("\n".join([str((await self.pod(name))["status"]), *events, *logs])) from None

    async def phase(self, name: str, *phases: str) -> Obj:
        return await self.until(name, lambda pod: (pod.get("status") or {}).get("phase") in phases)

    async def ready(self, name: str) -> Obj:
        return await self.until(name, is_ready)

    async def gone(self, name: str) -> None:
        async def look() -> bool:
            try:
                await self.pod(name)
            except ApiError as error:
                return is_not_found(error)
            return False

        await self.eventually(look)

    async def delete(self, name: str) -> None:
        """Delete a pod and wait until its node has nothing of it any more."""
        uid = (await self.pod(name))["metadata"]["uid"]
        await self.api.delete(PODS, name, "default")
        await self.gone(name)

        async def forgotten() -> bool:
            return all(uid not in agent.workers for agent in self.agents.values())

        await self.eventually(forgotten)

    async def eventually(self, condition: Callable[[], Awaitable[Any]], deadline: float = DEADLINE) -> Any:
        end = time.monotonic() + deadline
        while time.monotonic() < end:
            if value := await condition():
                return value
            await asyncio.sleep(0.02)
        raise AssertionError(f"did not come true within {deadline} s")

    def log(self, name: str, container: str = "c", attempt: int = 0, node: str = "n1") -> str:
        """What a container has written, without times."""
        found = list(self.layout(node).logs.glob(f"default_{name}_*/{container}/{attempt}.log"))
        entries = [server.parse(raw) for raw in found[0].read_bytes().splitlines()] if found else []
        return b"".join(entry.render(False) for entry in entries if entry).decode().rstrip("\n")

    async def output(self, name: str, script: str, **more: Any) -> str:
        """What a pod with this script writes; the pod must succeed."""
        await self.run(name, script, **more)
        pod = await self.phase(name, "Succeeded", "Failed")
        text = self.log(name, node=more.get("node", "n1"))
        assert pod["status"]["phase"] == "Succeeded", (text, pod["status"])
        return text


async def _everyone(_: web.Request) -> User:
    return MASTER


def is_ready(pod: Obj) -> bool:
    conditions = (pod.get("status") or {}).get("conditions") or ()
    return any(c["type"] == "Ready" and c["status"] == "True" for c in conditions)


def state(pod: Obj, container: str = "c") -> Obj:
    """A container's state, empty before there is one."""
    statuses = (pod.get("status") or {}).get("containerStatuses") or ()
    return next((s["state"] for s in statuses if s["name"] == container), {})


def restarts(pod: Obj) -> int:
    statuses = (pod.get("status") or {}).get("containerStatuses") or ({"restartCount": 0},)
    return int(statuses[0]["restartCount"])


@asynccontextmanager
async def node_cluster() -> AsyncIterator[NodeCluster]:
    """A cluster in a directory with a short name (unix sockets have long ones below it), torn down and checked."""
    place = Path(tempfile.mkdtemp(prefix="vf"))
    with own_network():
        before = leftovers(place)
        store, kinds = Store(place / "store"), Kinds()
        builtin.register(kinds, store)
        operations = Operations(store, kinds)
        tokens = ServiceAccountTokens(store, SigningKey())
        operations.posts["", "serviceaccounts", "token"] = tokens.request
        api = InProcessApi(operations)
        for namespace in ("default", "kube-node-lease"):
            await api.create(NAMESPACES, {"metadata": {"name": namespace}})
        defaults = asyncio.create_task(NamespaceDefaults(store, api, "no certificate").controller.run())
        cluster = NodeCluster(place, api, operations, kinds)
        try:
            yield cluster
        finally:
            cluster.kill_agents()
            for node in list(cluster.agents):
                await cluster.stop(node)
            await cluster.close()
            defaults.cancel()
            await asyncio.gather(defaults, return_exceptions=True)
            await store.close()
            await tear_down(place, cluster.network)
            after = leftovers(place)
            shutil.rmtree(place)
        assert after == before
