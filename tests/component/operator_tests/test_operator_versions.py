"""From the version before to this one and back: the operators of both, on what the other one left.

The operator of the version before is its own code in a process of its own, with the rights of its own manifest. Nodes
pretend; `tests/vm/test_upgrade.py` has the same story with guests.
"""

from __future__ import annotations

import asyncio
import sys
import sysconfig
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import orjson
import pytest
import yaml
from aiohttp import web
from hollow import ACCOUNT, MANIFEST, NAMESPACE, Hollow, hollow

import virtfleet
from versions import before
from virtfleet.kube.errors import ApiError
from virtfleet.kube.resource import CRDS, NODES, PODS, SECRETS, VMIS, VMS, Obj
from virtfleet.local.apiserver.rights.access import User
from virtfleet.local.apiserver.serving.http import Server
from virtfleet.operator import manifest, standin

pytestmark = [before.NEEDED, pytest.mark.timeout(600)]

_OPERATE = """
import asyncio, pathlib, sys
from virtfleet.kube import config
from virtfleet.kube.client import Client
from virtfleet.operator.__main__ import lead

async def main():
    async with Client(config.load(pathlib.Path(sys.argv[1]))) as api:
        await lead(api, sys.argv[2])

asyncio.run(main())
"""
PATIENCE = 120.0


@asynccontextmanager
async def served(cluster: Hollow, directory: Path) -> AsyncIterator[Path]:
    """The kubeconfig by which a process reaches the cluster as the operator's service account."""

    async def authenticate(_: web.Request) -> User:
        return ACCOUNT

    api = cluster.operators_api
    server = Server(api.operations, api.operations.kinds, authenticate, api.authorizer)
    [port] = await server.start([("127.0.0.1", 0)])
    file = directory / "kubeconfig"
    file.write_bytes(
        orjson.dumps(
            {
                "current-context": "c",
                "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
                "clusters": [{"name": "c", "cluster": {"server": f"http://127.0.0.1:{port}"}}],
                "users": [{"name": "u", "user": {}}],
            }
        )
    )
    try:
        yield file
    finally:
        await server.stop()


@asynccontextmanager
async def operator_before(cluster: Hollow, kubeconfig: Path, package: Path) -> AsyncIterator[None]:
    """Its manifest is applied, and it runs."""
    await applied(cluster, yaml.safe_load_all(before.manifest()))
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", _OPERATE, str(kubeconfig), NAMESPACE),
        env={"PYTHONPATH": f"{package.parent}:{sysconfig.get_path('purelib')}", "PATH": "/usr/bin:/usr/sbin"},
    )
    try:
        yield
        assert process.returncode is None, "it works until it is told to end"
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def applied(cluster: Hollow, objects: Iterable[Obj]) -> None:
    """As `kubectl apply` does: what is there is as the manifest says afterwards."""
    for obj in objects:
        if not obj or obj["kind"] not in MANIFEST:
            continue
        resource, meta = MANIFEST[obj["kind"]], obj["metadata"]
        try:
            there = await cluster.api.get(resource, meta["name"], meta.get("namespace"))
        except ApiError:
            await cluster.api.create(resource, obj)
            continue
        kept = {k: v for k, v in there.items() if k in ("status",)}
        version = {"resourceVersion": there["metadata"]["resourceVersion"]}
        await cluster.api.replace(resource, {**kept, **obj, "metadata": {**meta, **version}})


async def at(cluster: Hollow, version: str) -> None:
    """Return when everything is of the version: components, handlers, and what the KubeVirt object says of it."""

    async def check() -> bool:
        kubevirt = await cluster.kubevirt()
        status = kubevirt.get("status") or {}
        told = {c["type"]: c["status"] for c in status.get("conditions") or ()}
        assert (status["operatorVersion"], status["observedKubeVirtVersion"]) == (version, version), status
        assert (told["Available"], told["Progressing"], told["Degraded"]) == ("True", "False", "False"), status[
            "conditions"
        ]
        assert set((await handlers(cluster)).values()) == {version}
        for name in ("virt-api", "virt-controller"):
            spec = (await cluster.deployment(name))["spec"]["template"]["spec"]
            assert spec["containers"][0]["image"].endswith(f":{version}")
        return True

    await cluster.until(check, PATIENCE)
    assert not cluster.tower.doubles


async def relieved(cluster: Hollow) -> None:
    """As handlers do that stand in: they end when an operator of another version has come."""

    async def come() -> bool:
        return bool((await cluster.kubevirt())["status"]["operatorVersion"] == before.VERSION)

    await cluster.until(come, PATIENCE)
    for pod in await cluster.api.list(PODS, NAMESPACE):
        if pod["metadata"]["name"].startswith(standin.PREFIX):
            ended = {"status": {"phase": "Succeeded", "conditions": []}}
            await cluster.api.patch(PODS, pod["metadata"]["name"], ended, NAMESPACE, subresource="status")


async def handlers(cluster: Hollow) -> dict[str, str]:
    """node -> version of its handler"""
    pods = {node: await cluster.handler(node) for node in cluster.tower.handlers()}
    return {node: pod["spec"]["containers"][0]["image"].rpartition(":")[2] for node, pod in pods.items()}


async def kept(cluster: Hollow) -> Any:
    """What no version may touch: VMs and VMIs, and the authority that all certificates are signed by."""
    objects = [await cluster.api.get(resource, "vm", "default") for resource in (VMS, VMIS)]
    authorities = {
        s["metadata"]["name"]: s["data"]
        for s in await cluster.api.list(SECRETS, NAMESPACE)
        if "ca" in s["metadata"]["name"]
    }
    assert authorities
    return [(o["metadata"]["uid"], o["spec"], o.get("status")) for o in objects], authorities


async def test_an_installation_goes_to_this_version_and_back_also_from_halfway(tmp_path: Path) -> None:
    package, now = before.sources(tmp_path), virtfleet.__version__
    async with hollow(tmp_path) as cluster, served(cluster, tmp_path) as kubeconfig:
        await cluster.kill_operator()
        async with operator_before(cluster, kubeconfig, package):
            await cluster.install()
            await at(cluster, before.VERSION)
            machine: Obj = {"domain": {"devices": {}}}
            for resource, spec in ((VMS, {"running": False, "template": {"spec": machine}}), (VMIS, machine)):
                obj = {"metadata": {"name": "vm"}, "spec": spec}
                await cluster.api.create(resource, obj, "default")
            left = await kept(cluster)

        # Up.
        await applied(cluster, manifest.objects())
        cluster.start_operator()
        await at(cluster, now)
        await cluster.settled()
        assert await kept(cluster) == left
        assert not cluster.tower.unproven
        served_kinds = {d["metadata"]["name"] for d in await cluster.api.list(CRDS)}
        assert "migrationpolicies.migrations.kubevirt.io" in served_kinds

        # Down.
        await cluster.kill_operator()
        async with operator_before(cluster, kubeconfig, package):
            await at(cluster, before.VERSION)
        assert await kept(cluster) == left

        # Up again, and down before it is done.
        await applied(cluster, manifest.objects())
        cluster.start_operator()
        await cluster.until(lambda: _begun(cluster, now), PATIENCE)
        await cluster.kill_operator()
        async with operator_before(cluster, kubeconfig, package):
            await relieved(cluster)
            await at(cluster, before.VERSION)
        assert await kept(cluster) == left

        # And up once more: whoever stood in when the operator went is cleared away.
        await applied(cluster, manifest.objects())
        cluster.start_operator()
        await at(cluster, now)
        await cluster.until(lambda: _nobody_stands_in(cluster), PATIENCE)
        assert await kept(cluster) == left
        assert {n["metadata"]["name"] for n in await cluster.api.list(NODES)} == set(cluster.tower.handlers())


async def _begun(cluster: Hollow, version: str) -> bool:
    return version in (await handlers(cluster)).values()


async def _nobody_stands_in(cluster: Hollow) -> bool:
    return not any(p["metadata"]["name"].startswith(standin.PREFIX) for p in await cluster.api.list(PODS, NAMESPACE))
