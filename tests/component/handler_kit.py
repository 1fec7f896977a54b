"""A handler for VMs and the API server that it talks to, both in the test's own process."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from functools import cache
from pathlib import Path
from typing import Any

from component.defined import define
from virtfleet.api import names
from virtfleet.handler.migration.links import SERVER_NAME, Identity
from virtfleet.handler.migration.proxy import Proxy
from virtfleet.handler.network.networks import Networks
from virtfleet.handler.vms.reconcile import NodeVms
from virtfleet.handler.vms.records import VmRecords
from virtfleet.installation import Installation
from virtfleet.kube.authority import Authority, Lifespan, Profile
from virtfleet.kube.certificates import Credential
from virtfleet.kube.events import Recorder
from virtfleet.kube.resource import VMIS, Obj
from virtfleet.local.apiserver.kinds import builtin
from virtfleet.local.apiserver.kinds.crds import CustomKinds
from virtfleet.local.apiserver.kinds.registry import Kinds
from virtfleet.local.apiserver.objects.inprocess import InProcessApi
from virtfleet.local.apiserver.objects.operations import Operations
from virtfleet.local.apiserver.objects.store import Store

HANDLERS = "kubevirt:virt-handler"
_DAY = Lifespan(timedelta(days=1), timedelta(hours=1))


@cache
def authority() -> Authority:
    return Authority.create("test", _DAY)


@cache
def credential(name: str = HANDLERS) -> Credential:
    """A handler's certificate, or that of another component."""
    return authority().issue(Profile(name, _DAY, hosts=(SERVER_NAME,), client=True))


@asynccontextmanager
async def api_server(directory: Path) -> AsyncIterator[InProcessApi]:
    define(directory / "store")
    store, kinds = Store(directory / "store"), Kinds()
    builtin.register(kinds, store)
    operations = Operations(store, kinds)
    custom = CustomKinds(kinds, operations)
    custom.load()
    following = asyncio.create_task(custom.controller.run())
    api = InProcessApi(operations)
    try:
        yield api
    finally:
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)
        await store.close()


@asynccontextmanager
async def handler(
    api: InProcessApi, place: Path, kubevirt: Obj | None = None, *, node: str = "n1"
) -> AsyncIterator[NodeVms]:
    """What serves the VMs of a node, whose directories lie below `place`."""
    recorder = Recorder(api, "virt-handler", node)
    vms = NodeVms(
        api,
        recorder,
        node,
        pods=place / "pods",
        records=VmRecords(place / "records"),
        networks=Networks(place / "networks"),
        facts=place / "facts",
        cluster=lambda: Installation(kubevirt or {}),
        proxy=Proxy(Identity(credential, HANDLERS), "127.0.0.1"),
    )
    vms.begin()
    running = (recorder.run(), *(cache.run() for cache in vms.caches), vms.controller.run())
    tasks = [asyncio.create_task(t) for t in running]
    try:
        yield vms
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        await vms.close()


async def scheduled(api: InProcessApi, place: Path, name: str = "vm", **spec: Any) -> Obj:
    """A VMI that the controller has handed over, with the directory of its Pod."""
    obj = {
        "apiVersion": "kubevirt.io/v1",
        "kind": "VirtualMachineInstance",
        "metadata": {
            "name": name,
            "namespace": "default",
            "labels": {names.NODE_NAME: "n1"},
            "finalizers": [names.VMI_FINALIZER],
        },
        # Containers need neither devices nor user 107, so that nothing of the machine that runs the test is touched.
        "spec": {"hypervisor": "lxc", "domain": {"memory": {"guest": "64Mi"}, "devices": {}}, **spec},
        "status": {"phase": "Scheduled", "nodeName": "n1", "activePods": {f"pod-{name}": "n1"}},
    }
    (place / "pods" / f"pod-{name}").mkdir(parents=True)
    return await api.create(VMIS, obj)
