"""Instance types and preferences of VMs: kept when a VM takes them, used at every start, left when it names others."""

from __future__ import annotations

import copy
from typing import Any

from virt_plane import Plane, a_vm

from bench.simulator import NAMESPACE
from virtfleet.api import kinds
from virtfleet.api.kinds import OwnKind
from virtfleet.kube.resource import CONTROLLER_REVISIONS, KUBEVIRTS, VMIS, VMS, Obj, of_kind

TYPE, CLUSTER_TYPE = kinds.TYPES
PREFERENCE, CLUSTER_PREFERENCE = kinds.PREFERENCES


def a_type(name: str = "small", vcpus: int = 2, memory: str = "64Mi", *, kind: OwnKind = TYPE, **spec: Any) -> Obj:
    sizes = {"cpu": {"guest": vcpus}, "memory": {"guest": memory}}
    return {"apiVersion": kind.api_version, "kind": kind.kind, "metadata": {"name": name}, "spec": {**sizes, **spec}}


def a_preference(name: str = "cores", **spec: Any) -> Obj:
    spec = spec or {"cpu": {"preferredCPUTopology": "cores"}, "devices": {"preferredDiskBus": "sata"}}
    meta = {"name": name}
    return {"apiVersion": PREFERENCE.api_version, "kind": PREFERENCE.kind, "metadata": meta, "spec": spec}


def typed(strategy: str = "Always", instancetype: str = "small", preference: str = "cores", **matcher: Any) -> Obj:
    vm = a_vm(strategy)
    vm["spec"]["template"]["spec"] = {"domain": {"devices": {}}}
    if instancetype:
        vm["spec"]["instancetype"] = {"name": instancetype, "kind": TYPE.kind, **matcher}
    if preference:
        vm["spec"]["preference"] = {"name": preference, "kind": PREFERENCE.kind}
    return vm


async def make(virt: Plane, *objects: Obj) -> None:
    for obj in objects:
        kind = kinds.BY_NAME[obj["kind"]]
        await virt.api.create(of_kind(kind), obj, NAMESPACE if kind.namespaced else None)


async def refs(virt: Plane, name: str = "vm") -> tuple[str, str]:
    """Names of the revisions that the VM keeps."""

    async def told() -> tuple[str, str]:
        status = (await virt.vm(name))["status"]
        first, second = (
            status[f"{part}Ref"]["controllerRevisionRef"]["name"] for part in ("instancetype", "preference")
        )
        return first, second

    found: tuple[str, str] = await virt.until(told)
    return found


async def test_a_vm_takes_its_size_from_its_type_and_keeps_it(virt: Plane) -> None:
    await make(virt, a_type(annotations={"a": "b"}), a_preference())
    await virt.create(VMS, typed())
    vmi = await virt.phase("Running")
    cpu = vmi["spec"]["domain"]["cpu"]
    assert (cpu["cores"], cpu["sockets"], vmi["spec"]["domain"]["memory"]["guest"]) == (2, 1, "64Mi")
    notes = vmi["metadata"]["annotations"]
    assert (notes["kubevirt.io/instancetype-name"], notes["kubevirt.io/preference-name"]) == ("small", "cores")
    assert notes["a"] == "b"
    vm = await virt.vm()
    assert vm["spec"]["template"]["spec"]["domain"].get("cpu") is None  # what it says itself stays as it is
    first, second = await refs(virt)
    status = vm["status"]["instancetypeRef"]
    assert (status["name"], status["kind"]) == ("small", TYPE.kind)
    revision = await virt.api.get(CONTROLLER_REVISIONS, first, NAMESPACE)
    assert revision["data"]["spec"]["cpu"] == {"guest": 2}
    assert revision["metadata"]["ownerReferences"][0]["uid"] == vm["metadata"]["uid"]
    # The type grows, and the VM does not: not even when it is started again.
    await virt.api.patch(of_kind(TYPE), "small", {"spec": {"cpu": {"guest": 4}}}, NAMESPACE)
    await virt.api.delete(of_kind(PREFERENCE), "cores", NAMESPACE)
    await virt.api.delete(VMIS, "vm", NAMESPACE)

    async def anew() -> Obj | None:
        found = await virt.vmi()
        return found if found["metadata"]["uid"] != vmi["metadata"]["uid"] else None

    assert (await virt.until(anew))["spec"]["domain"]["cpu"]["cores"] == 2
    assert await refs(virt) == (first, second)


async def test_the_cluster_has_the_types_of_vms_that_say_no_kind(virt: Plane) -> None:
    await make(virt, a_type(kind=CLUSTER_TYPE))
    vm = typed(preference="")
    del vm["spec"]["instancetype"]["kind"]
    await virt.create(VMS, vm)
    vmi = await virt.phase("Running")
    assert vmi["metadata"]["annotations"]["kubevirt.io/cluster-instancetype-name"] == "small"
    assert vmi["spec"]["domain"]["cpu"]["sockets"] == 2


async def test_a_vm_waits_for_its_type_and_can_be_stopped_meanwhile(virt: Plane) -> None:
    await virt.create(VMS, typed(preference=""))
    failure = await virt.condition("Failure", of=VMS)
    assert failure["reason"] == "FailedFindInstancetype" and '"small" not found' in failure["message"]
    assert (await virt.vm())["status"]["printableStatus"] == "Stopped"
    await make(virt, a_type())
    await virt.phase("Running")

    async def cleared() -> bool:
        return all(c["type"] != "Failure" for c in (await virt.vm())["status"]["conditions"])

    await virt.until(cleared)
    await virt.create(VMS, {**typed(instancetype="", preference="none"), "metadata": {"name": "other"}})
    assert (await virt.condition("Failure", of=VMS, name="other"))["reason"] == "FailedFindPreference"


async def test_another_type_is_kept_beside_and_asks_for_a_restart(virt: Plane) -> None:
    await make(virt, a_type(), a_type("large", 4), a_preference())
    await virt.create(VMS, typed())
    await virt.phase("Running")
    before = await refs(virt)
    await virt.api.patch(VMS, "vm", {"spec": {"instancetype": {"name": "large"}}}, NAMESPACE)
    required = await virt.condition("RestartRequired", of=VMS)
    assert "domain.cpu.cores" in required["message"]
    now = await refs(virt)
    assert now[0] != before[0] and "-large-" in now[0] and now[1] == before[1]
    # Back to where it was: nothing has changed for the guest, and nothing is to be restarted.
    await virt.api.patch(VMS, "vm", {"spec": {"instancetype": {"name": "small"}}}, NAMESPACE)

    async def content() -> bool:
        return all(c["type"] != "RestartRequired" for c in (await virt.vm())["status"]["conditions"])

    await virt.until(content)
    assert await refs(virt) == before


async def test_a_revision_that_is_named_counts_whatever_the_type_says(virt: Plane) -> None:
    await make(virt, a_type(), a_preference())
    await virt.create(VMS, typed("Halted"))
    kept, _ = await refs(virt)
    await virt.api.patch(of_kind(TYPE), "small", {"spec": {"cpu": {"guest": 7}}}, NAMESPACE)
    other = {**typed(preference="", revisionName=kept), "metadata": {"name": "other"}}
    await virt.create(VMS, other)
    vmi = await virt.phase("Running", "other")
    assert vmi["spec"]["domain"]["cpu"]["sockets"] == 2
    assert (await virt.vm("other"))["status"]["instancetypeRef"]["controllerRevisionRef"]["name"] == kept


async def test_what_is_in_the_way_of_a_revision_is_told_and_not_used(virt: Plane) -> None:
    await make(virt, a_type())
    await virt.create(VMS, typed("Halted", preference="", instancetype="small"))

    async def kept() -> str:
        return str((await virt.vm())["status"]["instancetypeRef"]["controllerRevisionRef"]["name"])

    name = await virt.until(kept)
    revision = await virt.api.get(CONTROLLER_REVISIONS, name, NAMESPACE)
    await virt.api.delete(VMS, "vm", NAMESPACE)
    await virt.gone(VMS)
    await virt.api.delete(CONTROLLER_REVISIONS, name, NAMESPACE)
    changed = copy.deepcopy(revision)
    changed["metadata"] = {"name": name}
    changed["data"]["spec"]["memory"]["guest"] = "1Gi"
    await virt.create(CONTROLLER_REVISIONS, changed)
    await virt.create(VMS, typed(preference=""))
    failure = await virt.condition("Failure", of=VMS)
    assert "found existing ControllerRevision with unexpected data" in failure["message"]


async def test_what_somebody_else_put_into_a_revision_starts_nothing(virt: Plane) -> None:
    bad = {"apiVersion": TYPE.api_version, "kind": TYPE.kind, "metadata": {"name": "small"}, "spec": {"cpu": "all"}}
    await virt.create(CONTROLLER_REVISIONS, {"metadata": {"name": "bad"}, "data": bad, "revision": 1})
    await virt.create(VMS, typed(preference="", revisionName="bad"))
    failure = await virt.condition("Failure", of=VMS)
    assert (
        failure["reason"] == "FailedFindInstancetype" and "ControllerRevision bad cannot be used" in failure["message"]
    )
    assert await virt.api.list(VMIS, NAMESPACE) == []


async def test_revisions_of_early_versions_are_renewed(virt: Plane) -> None:
    await make(virt, a_type(), a_preference())
    await virt.create(VMS, typed("Halted"))
    first, second = await refs(virt)
    old = await virt.api.get(CONTROLLER_REVISIONS, second, NAMESPACE)
    labels = {key: value for key, value in old["metadata"]["labels"].items() if not key.endswith("-version")}
    early = {
        **old,
        "metadata": {"name": "early", "labels": labels, "ownerReferences": old["metadata"]["ownerReferences"]},
    }
    await virt.create(CONTROLLER_REVISIONS, early)
    reference = {"preferenceRef": {"controllerRevisionRef": {"name": "early"}}}
    await virt.api.patch(VMS, "vm", {"status": reference}, NAMESPACE, subresource="status")
    await virt.gone(CONTROLLER_REVISIONS, "early")
    assert await refs(virt) == (first, second)


async def test_a_vm_without_its_matchers_forgets_them(virt: Plane) -> None:
    await make(virt, a_type(), a_preference())
    await virt.create(VMS, typed("Halted"))
    await refs(virt)
    await virt.api.patch(VMS, "vm", {"spec": {"instancetype": None, "preference": None}}, NAMESPACE)

    async def forgotten() -> bool:
        return not {"instancetypeRef", "preferenceRef"} & (await virt.vm())["status"].keys()

    await virt.until(forgotten)


async def test_where_the_policy_says_so_vms_take_over_what_their_types_say(virt: Plane) -> None:
    await make(virt, a_type(), a_preference())
    await virt.create(VMS, typed("Halted"))
    kept = await refs(virt)
    [kubevirt] = await virt.api.list(KUBEVIRTS)
    meta = kubevirt["metadata"]

    async def policy(word: str) -> None:
        change = {"spec": {"configuration": {"instancetype": {"referencePolicy": word}}}}
        await virt.api.patch(KUBEVIRTS, meta["name"], change, meta["namespace"])

    async def alone(name: str) -> Obj | None:
        vm = await virt.vm(name)
        named = {"instancetype", "preference"} & vm["spec"].keys() or "instancetypeRef" in vm["status"]
        return None if named else vm

    await policy("expand")
    new = typed()
    new["metadata"] = {"name": "new"}
    new["spec"]["template"]["spec"]["volumes"] = [{"name": "root", "containerDisk": {"image": "a:b"}}]
    await virt.create(VMS, new)
    domain = (await virt.until(lambda: alone("new")))["spec"]["template"]["spec"]["domain"]
    assert (domain["cpu"]["cores"], domain["memory"]["guest"]) == (2, "64Mi")
    assert domain["devices"]["disks"] == [{"name": "root", "disk": {"bus": "sata"}}]
    await virt.phase("Running", "new")
    assert await refs(virt) == kept  # those of before are left alone
    await policy("expandAll")
    await virt.api.patch(VMS, "vm", {"metadata": {"labels": {"look": "again"}}}, NAMESPACE)
    assert (await virt.until(lambda: alone("vm")))["spec"]["template"]["spec"]["domain"]["cpu"]["cores"] == 2
    for name in kept:
        await virt.gone(CONTROLLER_REVISIONS, name)
