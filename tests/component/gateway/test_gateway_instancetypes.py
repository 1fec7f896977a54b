"""What virt-api makes of VMs that name an instance type or a preference, with the rights that it has."""

from __future__ import annotations

from typing import Any

import pytest

from component.access_plane import Answer
from component.gateway.gateway_kit import Kit
from virtfleet.admission.updates import RESERVED_ANNOTATIONS
from virtfleet.api import crds, kinds
from virtfleet.api.kinds import OwnKind
from virtfleet.kube.resource import (
    DATA_SOURCES,
    NAMESPACES,
    PERSISTENT_VOLUME_CLAIMS,
    VMS,
    Obj,
    Resource,
    of_kind,
)

LABELS = "instancetype.kubevirt.io/default-"


def a_type(name: str = "small", *, kind: OwnKind = kinds.TYPES[1], **spec: Any) -> Obj:
    sizes = {"cpu": {"guest": 2}, "memory": {"guest": "1Gi"}}
    return {"apiVersion": kind.api_version, "kind": kind.kind, "metadata": {"name": name}, "spec": {**sizes, **spec}}


def a_preference(name: str = "cores", *, kind: OwnKind = kinds.PREFERENCES[1], **spec: Any) -> Obj:
    return {"apiVersion": kind.api_version, "kind": kind.kind, "metadata": {"name": name}, "spec": spec}


def a_vm(domain: Obj | None = None, *, name: str = "vm", volumes: Any = (), **spec: Any) -> Obj:
    template = {"spec": {"domain": {"devices": {}, **(domain or {})}, "volumes": list(volumes)}}
    return {
        "apiVersion": "kubevirt.io/v1",
        "kind": "VirtualMachine",
        "metadata": {"name": name},
        "spec": {"runStrategy": "Halted", "template": template, **spec},
    }


async def create(kit: Kit, obj: Obj, token: str = "") -> Answer:
    kind = kinds.BY_NAME[obj["kind"]]
    return await kit.call("POST", of_kind(kind).path("default"), obj, **({"token": token} if token else {}))


async def made(kit: Kit, *objects: Obj) -> Obj:
    for obj in objects:
        answer = await create(kit, obj)
        assert answer.status == 201, answer.body
    body: Obj = answer.body
    return body


async def test_conflicts_are_refused_in_kubevirts_words(kit: Kit) -> None:
    await kit.guard()
    await made(kit, a_type())
    answer = await create(kit, a_vm({"memory": {"guest": "512Mi"}}, instancetype={"name": "small"}))
    assert answer.status == 422
    assert answer.body["message"] == (
        'admission webhook "virtualmachine-validator.kubevirt.io" denied the request: VM field(s) '
        "spec.template.spec.domain.memory.guest conflicts with selected instance type"
    )
    [cause] = answer.body["details"]["causes"]
    assert cause["field"] == "spec.template.spec.domain.memory.guest"


async def test_requirements_of_a_preference_hold_for_types_and_for_vms(kit: Kit) -> None:
    await kit.guard()
    await made(kit, a_type(), a_preference(requirements={"memory": {"guest": "2Gi"}}))
    named = {"preference": {"name": "cores"}}
    answer = await create(kit, a_vm(instancetype={"name": "small"}, **named))
    words = "failure checking preference requirements: insufficient Memory resources of 1Gi provided by instance type"
    assert answer.status == 422 and words in answer.body["message"]
    alone = await create(kit, a_vm({"resources": {"requests": {"memory": "512Mi"}}}, **named))
    assert "of 512Mi provided by VirtualMachine, preference requires 2Gi" in alone.body["message"]
    await made(kit, a_vm({"memory": {"guest": "2Gi"}}, **named))


async def test_types_that_come_later_do_not_hinder_a_vm(kit: Kit) -> None:
    await kit.guard()
    await made(kit, a_vm(instancetype={"name": "later"}, preference={"name": "later"}))
    nameless = await create(kit, a_vm(name="b", instancetype={"kind": "VirtualMachineInstancetype"}))
    assert "Either Name or InferFromVolume should be provided" in nameless.body["message"]
    assert nameless.body["details"]["causes"][0]["field"] == "spec.instancetype"


async def test_the_expanded_vm_is_what_is_checked(kit: Kit) -> None:
    """A type cannot bring in what a VM may not say itself."""
    await kit.guard()
    token = await kit.user("ann", "edit")
    own = kinds.TYPES[0]
    answer = await create(kit, a_type(kind=own, cpu={"guest": 2, "isolateEmulatorThread": True}), token)
    assert answer.status == 201
    vm = a_vm(instancetype={"name": "small", "kind": own.kind})
    answer = await create(kit, vm, token)
    assert (answer.status, "isolateEmulatorThread" in answer.body["message"]) == (422, True)
    reserved = a_type("b", kind=own, annotations=dict.fromkeys(RESERVED_ANNOTATIONS, "lxc"))
    assert "is set by VirtFleet itself" in (await create(kit, reserved, token)).body["message"]


async def test_people_read_cluster_types_and_write_their_own(kit: Kit) -> None:
    await kit.guard()
    token = await kit.user("ann", "edit")
    for mine, common in (kinds.TYPES, kinds.PREFERENCES):
        build = a_type if common in kinds.TYPES else a_preference
        assert (await create(kit, build(kind=mine), token)).status == 201
        assert (await create(kit, build(kind=common), token)).status == 403
        await made(kit, build(kind=common))
        assert (await kit.call("GET", of_kind(common).path(), token=token)).status == 200
    stranger = await kit.user("bob")
    assert (await kit.call("GET", of_kind(kinds.TYPES[1]).path(), token=stranger)).status == 200
    assert (await kit.call("GET", of_kind(kinds.TYPES[0]).path("default"), token=stranger)).status == 403


async def test_what_of_a_preference_is_settled_comes_into_the_vm(kit: Kit) -> None:
    await kit.guard()
    await made(kit, a_preference(machine={"preferredMachineType": "pc-q35-9.0"}))
    vm = await made(kit, a_vm({"memory": {"guest": "1Gi"}}, preference={"name": "cores"}))
    assert vm["spec"]["template"]["spec"]["domain"]["machine"] == {"type": "pc-q35-9.0"}


# --- inference


def claim(name: str, labels: dict[str, str], namespace: str = "default") -> Obj:
    spec = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
    return {"metadata": {"name": name, "namespace": namespace, "labels": labels}, "spec": spec}


def inferred(volumes: Any = None, policy: str = "", **spec: Any) -> Obj:
    volumes = volumes or [{"name": "root", "persistentVolumeClaim": {"claimName": "disk"}}]
    matcher = {"inferFromVolume": "root", **({"inferFromVolumeFailurePolicy": policy} if policy else {})}
    return a_vm(spec.pop("domain", None), volumes=volumes, instancetype=matcher, preference=dict(matcher), **spec)


MARKED = {
    f"{LABELS}instancetype": "small",
    f"{LABELS}instancetype-kind": "virtualmachineinstancetype",
    f"{LABELS}preference": "cores",
}


async def test_a_volume_names_the_type_of_vms_that_boot_from_it(kit: Kit) -> None:
    await kit.guard()
    await made(kit, a_type(kind=kinds.TYPES[0]), a_preference())
    await kit.make(PERSISTENT_VOLUME_CLAIMS, claim("disk", MARKED), "default")
    vm = await made(kit, inferred(policy="Reject"))
    assert vm["spec"]["instancetype"] == {"name": "small", "kind": "virtualmachineinstancetype"}
    assert vm["spec"]["preference"] == {"name": "cores"}
    # Without CDI a data volume is the claim of its name.
    of_data_volume = [{"name": "root", "dataVolume": {"name": "disk"}}]
    vm = await made(kit, {**inferred(of_data_volume), "metadata": {"name": "b"}})
    assert vm["spec"]["instancetype"]["name"] == "small"
    # What a VM says for the case that nothing is found goes where something is.
    fallback = {**inferred(policy="Ignore", domain={"memory": {"guest": "512Mi"}}), "metadata": {"name": "c"}}
    vm = await made(kit, fallback)
    assert "memory" not in vm["spec"]["template"]["spec"]["domain"]
    refused = await create(kit, {**inferred(domain={"memory": {"guest": "512Mi"}}), "metadata": {"name": "d"}})
    assert "VM field(s) spec.template.spec.domain.memory.guest conflicts" in refused.body["message"]


@pytest.mark.parametrize(
    ("volumes", "words"),
    [
        ([{"name": "root", "persistentVolumeClaim": {"claimName": "plain"}}], f"required {LABELS}instancetype label"),
        ([{"name": "root", "containerDisk": {"image": "a:b"}}], "defaults from volume root as type is not supported"),
        ([{"name": "other", "containerDisk": {"image": "a:b"}}], "unable to find volume root to infer defaults"),
        ([{"name": "root", "persistentVolumeClaim": {"claimName": "none"}}], '"none" not found'),
    ],
)
async def test_what_cannot_be_inferred_is_refused_or_ignored(kit: Kit, volumes: Any, words: str) -> None:
    await kit.guard()
    await kit.make(PERSISTENT_VOLUME_CLAIMS, claim("plain", {}), "default")
    answer = await create(kit, inferred(volumes))
    assert (answer.status, words in answer.body["message"]) == (422, True), answer.body
    answer = await create(kit, inferred(volumes, "Ignore", domain={"memory": {"guest": "512Mi"}}))
    if "find volume" in words or "not found" in words:  # which is no answer of the volume's
        assert answer.status == 422
    else:
        assert not {"instancetype", "preference"} & answer.body["spec"].keys()
        assert answer.body["spec"]["template"]["spec"]["domain"]["memory"] == {"guest": "512Mi"}


async def test_sources_are_followed_and_nobody_learns_what_is_in_other_namespaces(kit: Kit) -> None:
    await kit.guard()
    await kit.make(NAMESPACES, {"metadata": {"name": "images"}})
    await made(kit, a_type(kind=kinds.TYPES[0]), a_preference())
    await kit.make(PERSISTENT_VOLUME_CLAIMS, claim("golden", MARKED, "images"), "images")
    await kit.make(PERSISTENT_VOLUME_CLAIMS, claim("secret", {}, "images"), "images")
    source = {"source": {"pvc": {"name": "golden", "namespace": "images"}}}
    await kit.make(DATA_SOURCES, {"metadata": {"name": "fedora"}, "spec": source}, "images")

    def templated(name: str, spec: Obj) -> Obj:
        whole = {"metadata": {"name": "root"}, "spec": {"storage": {}, **spec}}
        vm = inferred([{"name": "root", "dataVolume": {"name": "root"}}], dataVolumeTemplates=[whole])
        return {**vm, "metadata": {"name": name}}

    ref = {"sourceRef": {"kind": DATA_SOURCES.kind, "namespace": "images", "name": "fedora"}}
    for name, spec in (("a", source), ("b", ref)):
        assert (await made(kit, templated(name, spec)))["spec"]["instancetype"]["name"] == "small"
    said = []
    for name in ("secret", "none"):
        there = {"source": {"pvc": {"name": name, "namespace": "images"}}}
        said.append((await create(kit, templated("c", there))).body["message"])
    assert said[0] == said[1] and "unable to find required" in said[0]
    blank = await create(kit, templated("d", {"source": {"blank": {}}}))
    assert "DataVolumeSource is not supported" in blank.body["message"]


def crd(resource: Resource) -> Obj:
    [like] = [d for d in crds.definitions() if d["spec"]["names"]["kind"] == "VirtualMachineClone"]
    names = {"plural": resource.plural, "singular": resource.kind.lower(), "kind": resource.kind}
    version = {**like["spec"]["versions"][0], "name": resource.version, "storage": True, "subresources": {}}
    spec = {"group": resource.group, "scope": "Namespaced", "names": names, "versions": [version]}
    return {**like, "metadata": {"name": str(resource)}, "spec": spec}


# --- expansion


async def test_a_vm_is_expanded_where_it_is_and_where_it_is_sent(kit: Kit) -> None:
    await kit.guard()
    await made(kit, a_type(), a_preference(cpu={"preferredCPUTopology": "cores"}))
    vm = a_vm(instancetype={"name": "small"}, preference={"name": "cores"})
    await made(kit, vm)
    for answer in (
        await kit.of_vm("expand-spec", method="GET"),
        await kit.call("PUT", "namespaces/default/expand-vm-spec", {**vm, "metadata": {"name": "b"}}),
    ):
        assert answer.status == 200, answer.body
        spec = answer.body["spec"]
        assert not {"instancetype", "preference"} & spec.keys()
        domain = spec["template"]["spec"]["domain"]
        assert (domain["cpu"]["cores"], domain["memory"]["guest"]) == (2, "1Gi")
    stored = await kit.get(VMS)
    assert "cpu" not in stored["spec"]["template"]["spec"]["domain"]


async def test_what_cannot_be_expanded_is_refused_with_its_field(kit: Kit) -> None:
    await kit.vm("typed", instancetype={"name": "large"})
    refused = await kit.of_vm("expand-spec", name="typed", method="GET")
    assert (refused.status, '"large" not found' in refused.body["message"]) == (500, True)
    sent = await kit.call("PUT", "namespaces/default/expand-vm-spec", a_vm(instancetype={"name": "large"}))
    assert (sent.status, '"large" not found' in sent.body["message"]) == (400, True)
    await made(kit, a_type())
    vm = a_vm({"cpu": {"sockets": 1}}, instancetype={"name": "small"})
    conflict = await kit.call("PUT", "namespaces/default/expand-vm-spec", vm)
    assert (conflict.status, "domain.cpu.sockets conflicts" in conflict.body["message"]) == (400, True)


async def test_the_graph_of_a_vm_has_its_types_and_what_it_keeps_of_them(kit: Kit) -> None:
    named = {"instancetype": {"name": "small"}, "preference": {"name": "mine", "kind": "VirtualMachinePreference"}}
    await kit.vm(**named, status={"instancetypeRef": {"controllerRevisionRef": {"name": "kept"}}})
    graph = (await kit.of_vm("objectgraph", {}, method="GET")).body
    found = [(n["objectReference"]["kind"], n["objectReference"]["name"], n.get("optional")) for n in graph["children"]]
    assert found == [
        ("VirtualMachineClusterInstancetype", "small", True),
        ("ControllerRevision", "kept", None),
        ("VirtualMachinePreference", "mine", True),
    ]
    assert [n["objectReference"]["namespace"] for n in graph["children"]] == ["", "default", "default"]
