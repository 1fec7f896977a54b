"""Sets of VMIs keep their size, through scaling, failures and two controllers at once."""

from __future__ import annotations

import asyncio
from typing import Any

import orjson
from virt_plane import Plane, a_vmi

from bench.simulator import NAMESPACE
from virtfleet.controller.assembly import VirtController
from virtfleet.controller.records.instance import decode_instance
from virtfleet.kube.resource import VMI_REPLICA_SETS, VMIS, Obj


def a_set(replicas: int = 3, **spec: Any) -> Obj:
    template = {"metadata": {"labels": {"app": "web"}}, "spec": a_vmi()["spec"]}
    return {
        "apiVersion": VMI_REPLICA_SETS.api_version,
        "kind": VMI_REPLICA_SETS.kind,
        "metadata": {"name": "web"},
        "spec": {"replicas": replicas, "selector": {"matchLabels": {"app": "web"}}, "template": template, **spec},
    }


async def active(virt: Plane) -> list[Obj]:
    vmis = await virt.api.list(VMIS, NAMESPACE)
    return [v for v in vmis if not v["metadata"].get("deletionTimestamp") and v["status"]["phase"] != "Failed"]


async def settled(virt: Plane, replicas: int) -> Obj:
    """The set, once it has so many instances, all of them ready, and says so."""

    async def done() -> Obj | None:
        found = await virt.api.get(VMI_REPLICA_SETS, "web", NAMESPACE)
        status = found["status"]
        counted = (status["replicas"], status["readyReplicas"], len(await virt.api.list(VMIS, NAMESPACE)))
        return found if counted == (replicas,) * 3 else None

    found: Obj = await virt.until(done)
    return found


async def test_a_set_reaches_its_size_and_says_so(virt: Plane) -> None:
    await virt.create(VMI_REPLICA_SETS, a_set())
    found = await settled(virt, 3)
    assert found["status"]["labelSelector"] == "app=web"
    owners = {v["metadata"]["ownerReferences"][0]["uid"] for v in await active(virt)}
    assert owners == {found["metadata"]["uid"]}


async def test_a_set_is_scaled_through_its_subresource(virt: Plane) -> None:
    await virt.create(VMI_REPLICA_SETS, a_set(1))
    await settled(virt, 1)
    for replicas in (4, 2, 0):
        scale = {"spec": {"replicas": replicas}}
        await virt.api.patch(VMI_REPLICA_SETS, "web", scale, NAMESPACE, subresource="scale")
        await settled(virt, replicas)
    scale = await virt.api.get(VMI_REPLICA_SETS, "web", NAMESPACE, subresource="scale")
    assert scale["status"].get("selector") == "app=web"


async def test_instances_that_ended_are_replaced(virt: Plane) -> None:
    await virt.create(VMI_REPLICA_SETS, a_set())
    await settled(virt, 3)
    before = {v["metadata"]["uid"] for v in await active(virt)}
    first, second, _ = await active(virt)
    await virt.handlers.end(decode_instance(orjson.dumps(first)), "Failed")
    await virt.api.delete(VMIS, second["metadata"]["name"], NAMESPACE)

    async def replaced() -> bool:
        return len({v["metadata"]["uid"] for v in await active(virt)} - before) == 2

    await virt.until(replaced)
    await settled(virt, 3)


async def test_a_paused_set_changes_nothing(virt: Plane) -> None:
    await virt.create(VMI_REPLICA_SETS, a_set(2))
    await settled(virt, 2)
    await virt.api.patch(VMI_REPLICA_SETS, "web", {"spec": {"paused": True, "replicas": 5}}, NAMESPACE)
    await virt.condition("ReplicaPaused", of=VMI_REPLICA_SETS, name="web")
    [victim, _] = await active(virt)
    await virt.api.delete(VMIS, victim["metadata"]["name"], NAMESPACE)
    await virt.gone(VMIS, victim["metadata"]["name"])
    await settled(virt, 1)
    await virt.api.patch(VMI_REPLICA_SETS, "web", {"spec": {"paused": False}}, NAMESPACE)
    await settled(virt, 5)


async def test_a_set_adopts_what_fits_and_releases_what_does_not(virt: Plane) -> None:
    orphan = await virt.create(VMIS, a_vmi("orphan", labels={"app": "web"}))
    await virt.create(VMI_REPLICA_SETS, a_set(2))
    await settled(virt, 2)
    assert orphan["metadata"]["uid"] in {v["metadata"]["uid"] for v in await active(virt)}
    await virt.api.patch(VMIS, "orphan", {"metadata": {"labels": {"app": "mine"}}}, NAMESPACE)

    async def released() -> bool:
        vmis = await active(virt)
        own = [v for v in vmis if v["metadata"]["labels"]["app"] == "web"]
        loose = next(v for v in vmis if v["metadata"]["name"] == "orphan")
        return len(own) == 2 and not loose["metadata"].get("ownerReferences")

    await virt.until(released)


async def test_two_controllers_at_once_make_no_instance_too_many(virt: Plane) -> None:
    other = asyncio.create_task(VirtController(virt.cluster.controller_api()).run())
    most = 0
    try:
        await virt.create(VMI_REPLICA_SETS, a_set(20))

        async def done() -> bool:
            nonlocal most
            vmis = await active(virt)
            most = max(most, len(vmis))
            return len(vmis) == 20 and all(v["status"]["phase"] == "Running" for v in vmis)

        await virt.until(done)
        await settled(virt, 20)
    finally:
        other.cancel()
        await asyncio.gather(other, return_exceptions=True)
    assert most == 20
