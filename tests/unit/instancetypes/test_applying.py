"""An instance type applied to a VM: what it gives, where it contradicts, and how preferences shape it."""

from __future__ import annotations

from typing import Any

import pytest

from virtfleet.admission.findings import Findings
from virtfleet.admission.updates import RESERVED_ANNOTATIONS
from virtfleet.installation import Installation
from virtfleet.instancetypes import requirements
from virtfleet.instancetypes.applying import Conflict, applied, expanded, standing_alone
from virtfleet.instancetypes.matching import Types

CLUSTER = Installation({"metadata": {"namespace": "kubevirt", "name": "kubevirt"}})
SPEC = "spec.template.spec"


def template(domain: dict[str, Any] | None = None, **spec: Any) -> dict[str, Any]:
    return {"spec": {"domain": {"devices": {}, **(domain or {})}, **spec}}


def instancetype(vcpus: int = 4, memory: str = "2Gi", **more: Any) -> dict[str, Any]:
    return {"cpu": {"guest": vcpus}, "memory": {"guest": memory}, **more}


def cpu_of(vcpus: int, preference: dict[str, Any]) -> tuple[int, int, int]:
    cpu = applied(template(), Types(instancetype(vcpus), preference))["spec"]["domain"]["cpu"]
    return cpu["sockets"], cpu["cores"], cpu["threads"]


def test_an_instance_type_says_how_large_a_vm_is() -> None:
    given = instancetype(
        gpus=[{"name": "g", "deviceName": "vendor.com/gpu"}],
        hostDevices=[{"name": "h", "deviceName": "vendor.com/card"}],
        ioThreadsPolicy="auto",
        ioThreads={"supplementalPoolThreadCount": 2},
        launchSecurity={"sev": {}},
        nodeSelector={"disk": "fast"},
        schedulerName="mine",
        annotations={"a": "b"},
    )
    given["cpu"] |= {"model": "Skylake", "dedicatedCPUPlacement": True, "isolateEmulatorThread": True, "maxSockets": 8}
    given["cpu"] |= {"numa": {"guestMappingPassthrough": {}}, "realtime": {"mask": "0-1"}}
    given["memory"] |= {"hugepages": {"pageSize": "2Mi"}, "maxGuest": "8Gi"}
    before = template()
    made = applied(before, Types(given))
    assert made == {
        "metadata": {"annotations": {"a": "b"}},
        "spec": {
            "nodeSelector": {"disk": "fast"},
            "schedulerName": "mine",
            "domain": {
                "cpu": {
                    "sockets": 4,
                    "cores": 1,
                    "threads": 1,
                    "model": "Skylake",
                    "dedicatedCpuPlacement": True,
                    "isolateEmulatorThread": True,
                    "maxSockets": 8,
                    "numa": {"guestMappingPassthrough": {}},
                    "realtime": {"mask": "0-1"},
                },
                "memory": {"guest": "2Gi", "hugepages": {"pageSize": "2Mi"}, "maxGuest": "8Gi"},
                "ioThreadsPolicy": "auto",
                "ioThreads": {"supplementalPoolThreadCount": 2},
                "launchSecurity": {"sev": {}},
                "devices": {"gpus": given["gpus"], "hostDevices": given["hostDevices"]},
            },
        },
    }
    assert before == template()


@pytest.mark.parametrize(
    ("preference", "vcpus", "shown"),
    [
        ({}, 4, (4, 1, 1)),
        ({"cpu": {"preferredCPUTopology": "sockets"}}, 4, (4, 1, 1)),
        ({"cpu": {"preferredCPUTopology": "preferCores"}}, 4, (1, 4, 1)),
        ({"cpu": {"preferredCPUTopology": "threads"}}, 4, (1, 1, 4)),
        ({"cpu": {"preferredCPUTopology": "any"}}, 4, (4, 1, 1)),
        ({"cpu": {"preferredCPUTopology": "spread"}}, 4, (2, 2, 1)),
        ({"cpu": {"preferredCPUTopology": "preferSpread"}, "preferSpreadSocketToCoreRatio": 4}, 8, (2, 4, 1)),
        ({"cpu": {"preferredCPUTopology": "spread", "spreadOptions": {"across": "CoresThreads"}}}, 6, (1, 3, 2)),
        (
            {"cpu": {"preferredCPUTopology": "spread", "spreadOptions": {"across": "SocketsCoresThreads", "ratio": 2}}},
            8,
            (2, 2, 2),
        ),
        ({"cpu": {"preferredCPUTopology": "cores"}}, 1, (1, 1, 1)),
    ],
)
def test_a_preference_says_what_cpus_are_shown_as(
    preference: dict[str, Any], vcpus: int, shown: tuple[int, int, int]
) -> None:
    assert cpu_of(vcpus, preference) == shown


@pytest.mark.parametrize(
    ("options", "vcpus", "words"),
    [
        ({}, 3, "3 vCPUs provided by the instance type are not divisible by the Spec.PreferSpreadSocketToCoreRatio"),
        ({"across": "CoresThreads"}, 5, "not divisible by the number of threads per core 2"),
        ({"across": "SocketsCoresThreads", "ratio": 2}, 6, "number of threads per core 2 and Spec.PreferSpread"),
    ],
)
def test_cpus_that_cannot_be_spread_evenly_are_a_conflict(options: dict[str, Any], vcpus: int, words: str) -> None:
    with pytest.raises(Conflict, match=words):
        cpu_of(vcpus, {"cpu": {"preferredCPUTopology": "spread", "spreadOptions": options}})


@pytest.mark.parametrize(
    ("vm", "field"),
    [
        (template({"cpu": {"sockets": 1}}), "domain.cpu.sockets"),
        (template({"cpu": {"cores": 2}}), "domain.cpu.cores"),
        (template({"cpu": {"threads": 2}}), "domain.cpu.threads"),
        (template({"cpu": {"model": "host-model"}}), "domain.cpu.model"),
        (template({"cpu": {"dedicatedCpuPlacement": True}}), "domain.cpu.dedicatedCPUPlacement"),
        (template({"cpu": {"realtime": {}}}), "domain.cpu.realtime"),
        (template({"memory": {"guest": "1Gi"}}), "domain.memory.guest"),
        (template({"memory": {"hugepages": {"pageSize": "1Gi"}}}), "domain.memory.hugepages"),
        (template({"memory": {"maxGuest": "4Gi"}}), "domain.memory.maxGuest"),
        (template({"resources": {"requests": {"memory": "1Gi"}}}), "domain.resources.requests.memory"),
        (template({"resources": {"limits": {"cpu": 1}}}), "domain.resources.limits.cpu"),
        (template({"ioThreadsPolicy": "shared"}), "domain.ioThreadsPolicy"),
        (template({"devices": {"gpus": [{"name": "a"}]}}), "domain.devices.gpus"),
        (template(nodeSelector={"a": "b"}), "nodeSelector"),
        (template(schedulerName="other"), "schedulerName"),
    ],
)
def test_what_both_say_is_a_conflict_at_the_vms_field(vm: dict[str, Any], field: str) -> None:
    given = instancetype(
        gpus=[{"name": "g"}], ioThreadsPolicy="auto", nodeSelector={"disk": "fast"}, schedulerName="mine"
    )
    given["cpu"] |= {"model": "Skylake", "dedicatedCPUPlacement": True, "realtime": {}}
    given["memory"] |= {"hugepages": {"pageSize": "2Mi"}, "maxGuest": "8Gi"}
    with pytest.raises(Conflict) as raised:
        applied(vm, Types(given))
    findings = Findings()
    raised.value.tell(findings)
    message = f"VM field(s) {SPEC}.{field} conflicts with selected instance type"
    assert [(cause.field, cause.message) for cause in findings.causes] == [(f"{SPEC}.{field}", message)]
    assert str(raised.value) == message


def test_annotations_must_agree_and_none_of_ours_comes_with_a_type() -> None:
    vm = {"metadata": {"annotations": {"a": "1", "b": "2"}}, **template()}
    assert applied(vm, Types(instancetype(annotations={"a": "1"})))["metadata"]["annotations"] == {"a": "1", "b": "2"}
    with pytest.raises(Conflict) as raised:
        applied(vm, Types(instancetype(annotations={"a": "other"})))
    assert raised.value.fields == ["annotations.a"]
    smuggled = {"annotations": dict.fromkeys(RESERVED_ANNOTATIONS, "lxc")}
    for types in (Types(instancetype(**smuggled)), Types(None, smuggled)):
        with pytest.raises(Conflict) as raised:
            applied(template(), types)
        assert raised.value.fields == [f"annotations.{name}" for name in RESERVED_ANNOTATIONS]


@pytest.mark.parametrize(
    ("guest", "percent", "request_"), [("128Mi", 15, "114085072"), ("2Gi", 50, "1Gi"), ("1Gi", 0, None)]
)
def test_overcommitted_memory_is_requested_as_kubevirt_computes_it(
    guest: str, percent: int, request_: str | None
) -> None:
    given = instancetype(1, guest)
    given["memory"]["overcommitPercent"] = percent
    domain = applied(template(), Types(given))["spec"]["domain"]
    assert domain["memory"]["guest"] == guest
    assert domain.get("resources", {}).get("requests", {}).get("memory") == request_


def test_preferences_hold_for_the_devices_that_every_vm_gets() -> None:
    vm = template(volumes=[{"name": "root", "containerDisk": {"image": "a:b"}}])
    devices = {"preferredDiskBus": "sata", "preferredInterfaceModel": "e1000e", "preferredInputBus": "virtio"}
    preference = {"devices": {**devices, "preferredAutoattachInputDevice": True}}
    made = expanded(vm, Types(None, preference), CLUSTER)["spec"]["domain"]["devices"]
    assert made["disks"] == [{"name": "root", "disk": {"bus": "sata"}}]
    assert made["interfaces"] == [{"name": "default", "bridge": {}, "model": "e1000e"}]
    assert made["inputs"] == [{"name": "default-0", "bus": "virtio"}]
    alone = expanded(vm, Types(None, {"devices": {"preferredAutoattachPodInterface": False}}), CLUSTER)
    assert "interfaces" not in alone["spec"]["domain"]["devices"]


def test_a_vm_that_stands_alone_names_no_type_and_has_all_that_it_said() -> None:
    vm = {
        "metadata": {"name": "vm", "namespace": "default"},
        "spec": {"template": template(), "instancetype": {"name": "a"}, "preference": {"name": "b"}},
        "status": {"instancetypeRef": {"name": "a"}, "preferenceRef": {"name": "b"}, "created": True},
    }
    made = standing_alone(vm, Types(instancetype(2), {"cpu": {"preferredCPUTopology": "cores"}}), CLUSTER)
    assert (made["spec"].keys(), made["status"]) == ({"template"}, {"created": True})
    domain = made["spec"]["template"]["spec"]["domain"]
    assert (domain["cpu"]["cores"], domain["memory"], domain["machine"]["type"]) == (2, {"guest": "2Gi"}, "q35")


@pytest.mark.parametrize(
    ("types", "spec", "field", "words"),
    [
        (
            Types(instancetype(1), {"requirements": {"cpu": {"guest": 2}}}),
            {},
            "spec.instancetype",
            "of 1 vCPU provided by instance type, preference requires 2 vCPU",
        ),
        (
            Types(None, {"requirements": {"cpu": {"guest": 2}}}),
            {"cpu": {"sockets": 1}},
            f"{SPEC}.domain.cpu.sockets",
            "provided as sockets",
        ),
        (
            Types(None, {"requirements": {"cpu": {"guest": 9}}, "cpu": {"preferredCPUTopology": "any"}}),
            {"cpu": {"sockets": 2, "cores": 2, "threads": 2}},
            f"{SPEC}.domain.cpu.cores, {SPEC}.domain.cpu.sockets, {SPEC}.domain.cpu.threads",
            "of 8 vCPU provided by VirtualMachine",
        ),
        (
            Types(None, {"requirements": {"cpu": {"guest": 8}}, "cpu": {"preferredCPUTopology": "spread"}}),
            {"cpu": {"sockets": 2, "cores": 2, "threads": 2}},
            f"{SPEC}.domain.cpu.sockets, {SPEC}.domain.cpu.cores",
            "provided as SocketsCores",
        ),
        (
            Types(instancetype(1, "512Mi"), {"requirements": {"memory": {"guest": "1Gi"}}}),
            {"memory": {"guest": "512Mi"}},
            "spec.instancetype",
            "insufficient Memory resources of 512Mi provided by instance type, preference requires 1Gi",
        ),
        (
            Types(None, {"requirements": {"memory": {"guest": "1Gi"}}}),
            {},
            f"{SPEC}.domain.memory",
            "insufficient Memory resources of 0 provided by VirtualMachine",
        ),
        (
            Types(None, {"requirements": {"architecture": "arm64"}}),
            {},
            f"{SPEC}.architecture",
            "preference requires architecture arm64 but amd64 is being requested",
        ),
    ],
)
def test_what_a_preference_requires_and_is_not_there_is_told(
    types: Types, spec: dict[str, Any], field: str, words: str
) -> None:
    findings = Findings()
    requirements.check(types, {"domain": spec, "architecture": "amd64"}, findings)
    [cause] = findings.causes
    assert cause.field == field
    assert cause.message.startswith("failure checking preference requirements: ") and words in cause.message


def test_what_is_required_and_there_is_fine() -> None:
    preference = {"requirements": {"cpu": {"guest": 2}, "memory": {"guest": "1Gi"}, "architecture": "amd64"}}
    findings = Findings()
    domain = {"memory": {"guest": "1024Mi"}, "cpu": {"sockets": 2, "cores": 1, "threads": 1}}
    for types in (Types(instancetype(2, "1Gi"), preference), Types(None, preference)):
        requirements.check(types, {"architecture": "amd64", "domain": domain}, findings)
    assert findings.causes == []
