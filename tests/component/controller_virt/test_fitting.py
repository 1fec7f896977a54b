"""VMs that outgrow their Pods or their nodes: in place where the node has room, else by a migration, and said so."""

from __future__ import annotations

from typing import Any

import pytest
from test_vm_types import a_type, make, typed
from virt_plane import Plane, a_vm

from bench.simulator import NAMESPACE
from virtfleet.api import conditions
from virtfleet.api.quantity import Quantity
from virtfleet.controller import fitting
from virtfleet.kube.api import Patch
from virtfleet.kube.errors import ApiError
from virtfleet.kube.resource import EVENTS, KUBEVIRTS, NODES, PODS, VMI_MIGRATIONS, VMIS, VMS, Obj

GI = 1024**3


async def started(virt: Plane, *, resizes: bool = True, **spec: Any) -> Obj:
    domain = {"cpu": {"sockets": 1, "cores": 1, "maxSockets": 4}, "memory": {"guest": "1Gi"}, "devices": {}}
    vm = a_vm(**spec)
    vm["spec"]["template"]["spec"]["domain"] = domain
    await virt.create(VMS, vm)
    vmi = await virt.phase("Running")
    if resizes:
        await node_says(virt)
    return vmi


async def pod(virt: Plane) -> Obj:
    """The VM's Pod, as soon as it has one alone."""

    async def alone() -> Obj | None:
        found = [p for p in await virt.pods() if not p["metadata"].get("deletionTimestamp")]
        return found[0] if len(found) == 1 else None

    found: Obj = await virt.until(alone)
    return found


def asked(of: Obj) -> Obj:
    resources: Obj = of["spec"]["containers"][0]["resources"]
    return resources


async def node_says(virt: Plane, *, has: Obj | None = None, pending: str = "") -> None:
    """What a kubelet reports: the resources that the container has, and why a resize waits."""
    of = await pod(virt)
    status: Obj = {"containerStatuses": [{"name": "compute", "resources": has or asked(of)}]}
    if pending:
        said = {"type": "PodResizePending", "status": "True", "reason": pending, "message": "no memory left"}
        status = {"conditions": [said]}
    patch = {"metadata": {"uid": of["metadata"]["uid"]}, "status": status}
    name = of["metadata"]["name"]
    await virt.api.patch(PODS, name, patch, NAMESPACE, how=Patch.STRATEGIC, subresource="status")


async def guest_grows(virt: Plane) -> None:
    """What a handler does: as far as there is room, the domain has what is asked for."""
    vmi = await virt.vmi()
    room = vmi["status"]["podRoom"]
    has = {
        "currentCPUTopology": {"sockets": room["sockets"], "cores": 1, "threads": 1},
        "memory": {"guestAtBoot": "1Gi", "guestCurrent": room["guest"], "guestRequested": room["guest"]},
    }
    await virt.api.patch(VMIS, "vm", {"status": has}, NAMESPACE)


async def edit(virt: Plane, **spec: Any) -> None:
    await virt.api.patch(VMS, "vm", {"spec": {"template": {"spec": spec}}}, NAMESPACE)


async def grow(virt: Plane, sockets: int = 2, guest: str = "2Gi") -> None:
    await edit(virt, domain={"cpu": {"sockets": sockets}, "memory": {"guest": guest}})


async def has_room(virt: Plane, sockets: int = 2) -> Obj:
    async def there() -> Obj | None:
        room = (await virt.vmi())["status"].get("podRoom") or {}
        return room if room.get("sockets") == sockets else None

    found: Obj = await virt.until(there)
    return found


async def asks_for(virt: Plane, memory: int) -> Obj:
    async def grown() -> Obj | None:
        of = await pod(virt)
        return of if Quantity.parse(asked(of)["requests"]["memory"]).value() > memory else None

    found: Obj = await virt.until(grown)
    return found


async def settled(virt: Plane) -> Obj:
    async def done() -> Obj | None:
        vmi = await virt.vmi()
        held = {c["type"] for c in vmi["status"]["conditions"]}
        return None if held & {"HotVCPUChange", "HotMemoryChange", "MigrationRequired"} else vmi

    found: Obj = await virt.until(done)
    return found


async def said(virt: Plane, reason: str) -> str:
    async def there() -> str:
        told = [event["message"] for event in await virt.api.list(EVENTS, NAMESPACE) if event["reason"] == reason]
        return told[-1] if told else ""

    message: str = await virt.until(there)
    return message


async def test_a_vm_grows_in_place_where_its_node_has_room(virt: Plane) -> None:
    vmi = await started(virt)
    before = await pod(virt)
    await grow(virt)
    after = await asks_for(virt, 2 * GI)
    assert after["metadata"]["uid"] == before["metadata"]["uid"]

    async def told() -> bool:
        return conditions.holds((await virt.vmi())["status"]["conditions"], "HotMemoryChange", reason="InPlace")

    await virt.until(told)
    assert "podRoom" not in (await virt.vmi())["status"], "nobody has said that there is room"
    await virt.stop()  # any controller goes on with it
    virt.start()
    await node_says(virt)
    room = await has_room(virt)
    assert room == {"podUID": before["metadata"]["uid"], "sockets": 2, "guest": "2Gi"}
    await guest_grows(virt)
    now = await settled(virt)
    assert now["metadata"]["uid"] == vmi["metadata"]["uid"]
    assert await said(virt, "Resized") == "The VM has 2 sockets and 2Gi of memory now, in place"
    assert await virt.api.list(VMI_MIGRATIONS, NAMESPACE) == []
    vm = await virt.vm()
    assert conditions.find(vm["status"]["conditions"], "RestartRequired") is None

    async def newest() -> bool:
        vm = await virt.vm()
        return bool(vm["status"]["observedGeneration"] == vm["metadata"]["generation"])

    await virt.until(newest)


async def test_limits_that_a_namespace_asked_for_grow_along(virt: Plane) -> None:
    create = virt.controller_api.create

    async def counted(res: Any, obj: Obj, namespace: str | None = None, **how: Any) -> Obj:
        if res is PODS and "memory" not in asked(obj).get("limits", {}):
            raise ApiError(
                "Forbidden", "failed quota: q: must specify limits.cpu for: compute; limits.memory for: compute"
            )
        return await create(res, obj, namespace, **how)

    virt.controller_api.create = counted  # type: ignore[method-assign]
    await started(virt)
    before = await pod(virt)
    await grow(virt)
    after = await asks_for(virt, 2 * GI)
    assert after["metadata"]["uid"] == before["metadata"]["uid"]
    assert asked(before)["limits"]["cpu"] == "1" and asked(after)["limits"]["cpu"] == "2"
    amounts = {kind: Quantity.parse(asked(after)[kind]["memory"]).value() for kind in ("requests", "limits")}
    assert amounts["limits"] == 2 * amounts["requests"]


@pytest.mark.parametrize("why", ["Deferred", "Infeasible", "silent", "old", "disabledFeatureGates"])
async def test_a_vm_migrates_where_its_node_has_no_room(virt: Plane, monkeypatch: pytest.MonkeyPatch, why: str) -> None:
    monkeypatch.setattr(fitting, "PATIENCE", 0.5 if why == "silent" else 30.0)
    if why == "disabledFeatureGates":
        off = {"developerConfiguration": {"disabledFeatureGates": ["InPlaceResize"]}}
        await virt.api.patch(KUBEVIRTS, "kubevirt", {"spec": {"configuration": off}}, NAMESPACE)
    vmi = await started(virt, resizes=why != "old")
    before = await pod(virt)
    has = asked(before)
    await grow(virt)
    if why in ("Deferred", "Infeasible"):
        await asks_for(virt, 2 * GI)
        await node_says(virt, has=has)
        await node_says(virt, pending=why)
    room = await has_room(virt)
    assert room["podUID"] != before["metadata"]["uid"]
    await guest_grows(virt)
    now = await settled(virt)
    assert now["status"]["nodeName"] != vmi["status"]["nodeName"]
    assert (await said(virt, "Resized")).endswith("by a migration")
    reason = await said(virt, "MigrationRequired")
    words = {"silent": "within", "old": "resizes no Pods"}.get(why, why)
    assert words in reason
    assert len(await virt.api.list(VMI_MIGRATIONS, NAMESPACE)) == 1


async def test_a_vm_that_can_neither_grow_nor_move_says_so(virt: Plane) -> None:
    vmi = await started(virt, resizes=False)
    fixed = conditions.put(vmi["status"]["conditions"], "LiveMigratable", "False", 0.0, message="it has a GPU")
    await virt.api.patch(VMIS, "vm", {"status": {"conditions": fixed}}, NAMESPACE)
    await grow(virt)
    told = await virt.condition("HotVCPUChange", "False")
    assert "resizes no Pods" in told["message"] and "cannot migrate: it has a GPU" in told["message"]
    assert await virt.api.list(VMI_MIGRATIONS, NAMESPACE) == []
    await grow(virt, 1, "1Gi")  # and it can be taken back
    await settled(virt)
    assert (await virt.vmi())["spec"]["domain"]["memory"]["guest"] == "1Gi"


async def test_what_cannot_change_while_a_vm_runs_is_named_with_the_reason(virt: Plane) -> None:
    await started(virt)
    await edit(virt, domain={"cpu": {"sockets": 9, "model": "EPYC"}}, hostname="other")
    told = await virt.condition("RestartRequired", of=VMS)
    for words in ("domain.cpu.sockets (the VM was started with room for 4 sockets)", "domain.cpu.model", "hostname"):
        assert words in told["message"]
    assert (await virt.vmi())["spec"]["domain"]["cpu"]["sockets"] == 1


async def test_a_vm_leaves_a_node_that_its_placement_excludes(virt: Plane) -> None:
    vmi = await started(virt)
    here = vmi["status"]["nodeName"]
    there = next(name for name in virt.cluster.nodes if name != here)
    await virt.api.patch(NODES, here, {"metadata": {"labels": {"zone": "a"}}})
    await virt.api.patch(NODES, there, {"metadata": {"labels": {"zone": "b"}}})
    virt.kubelets.place = lambda pod: there
    await edit(virt, nodeSelector={"zone": "a"})

    async def followed() -> bool:
        return (await virt.vmi())["spec"].get("nodeSelector") == {"zone": "a"}

    await virt.until(followed)
    await settled(virt)
    assert await virt.api.list(VMI_MIGRATIONS, NAMESPACE) == [], "its node fits"
    virt.handlers.lets_move = lambda vmi, step: step != "arrive"
    await edit(virt, nodeSelector={"zone": "b"})
    told = await virt.condition("MigrationRequired")
    assert told["reason"] == "AutoMigrationDueToLiveUpdate"
    assert "zone=b, which nodeSelector asks for" in told["message"]
    virt.handlers.lets_move = lambda vmi, step: True
    virt.handlers.look_again()
    now = await settled(virt)
    assert now["status"]["nodeName"] == there
    target = await pod(virt)
    assert target["spec"]["nodeSelector"]["zone"] == "b"
    assert conditions.find((await virt.vm())["status"]["conditions"], "RestartRequired") is None


async def test_another_instance_type_comes_while_the_vm_runs(virt: Plane) -> None:
    await make(virt, a_type("small", 1, "1Gi"), a_type("large", 2, "2Gi"))
    await virt.create(VMS, typed(preference=""))
    vmi = await virt.phase("Running")
    assert vmi["spec"]["domain"]["cpu"]["sockets"] == 1
    await node_says(virt)
    await virt.api.patch(VMS, "vm", {"spec": {"instancetype": {"name": "large"}}}, NAMESPACE)
    await asks_for(virt, 2 * GI)
    await node_says(virt)
    assert (await has_room(virt))["guest"] == "2Gi"
    await guest_grows(virt)
    now = await settled(virt)
    assert now["metadata"]["uid"] == vmi["metadata"]["uid"]
    assert now["spec"]["domain"]["memory"]["guest"] == "2Gi"
    assert conditions.find((await virt.vm())["status"]["conditions"], "RestartRequired") is None
