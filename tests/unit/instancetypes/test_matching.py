"""What a VM may say of its types, what of its preference is settled at once, and how types are kept."""

from __future__ import annotations

from typing import Any

import pytest

from virtfleet.admission.findings import Findings
from virtfleet.admission.review import review
from virtfleet.api import kinds
from virtfleet.api.kinds import OwnKind
from virtfleet.installation import Installation
from virtfleet.instancetypes import matching, revisions
from virtfleet.instancetypes.matching import INSTANCETYPE, PREFERENCE, marks
from virtfleet.kube.errors import ApiError
from virtfleet.operator import commontypes

CLUSTER = Installation({"metadata": {"namespace": "kubevirt", "name": "kubevirt"}})


def vm(**spec: Any) -> dict[str, Any]:
    return {"metadata": {"name": "vm", "namespace": "default", "uid": "u"}, "spec": {"template": {}, **spec}}


@pytest.mark.parametrize(
    ("matcher", "field", "words"),
    [
        ({}, "spec.instancetype", "Either Name or InferFromVolume should be provided within the InstancetypeMatcher"),
        ({"name": "a", "kind": "Pod"}, "spec.instancetype.kind", "got unexpected kind in InstancetypeMatcher: Pod"),
        ({"name": "a", "inferFromVolume": "v"}, "spec.instancetype.name", "Name already set"),
        ({"kind": "virtualmachineinstancetype", "inferFromVolume": "v"}, "spec.instancetype.kind", "Kind already set"),
        (
            {"inferFromVolume": "v", "inferFromVolumeFailurePolicy": "Wait"},
            "spec.instancetype.inferFromVolumeFailurePolicy",
            "Invalid value 'Wait' for InferFromVolumeFailurePolicy; use Reject or Ignore",
        ),
    ],
)
def test_a_matcher_that_says_too_little_or_too_much_is_refused(matcher: dict[str, Any], field: str, words: str) -> None:
    findings = Findings()
    matching.check(vm(instancetype=matcher), {}, findings)
    [cause] = findings.causes
    assert (cause.field, cause.message.startswith(words)) == (field, True)


def test_another_name_with_the_old_revision_is_refused() -> None:
    old, new = ({"name": name, "revisionName": "r"} for name in ("a", "b"))
    for part in ("instancetype", "preference"):
        findings = Findings()
        matching.check(vm(**{part: new}), vm(**{part: old}), findings)
        [cause] = findings.causes
        assert cause.field == f"spec.{part}.revisionName" and "without updating the RevisionName" in cause.message
        matching.check(vm(**{part: {**new, "revisionName": "s"}}), vm(**{part: old}), fine := Findings())
        matching.check(vm(**{part: {"name": "b"}}), vm(**{part: old}), fine)
        assert fine.allowed


@pytest.mark.parametrize(
    ("kind", "found"),
    [
        ("", kinds.TYPES[1]),
        ("VirtualMachineClusterInstancetype", kinds.TYPES[1]),
        ("virtualmachineinstancetypes", kinds.TYPES[0]),
        ("VirtualMachineInstancetype", kinds.TYPES[0]),
        ("VirtualMachinePreference", None),
    ],
)
def test_a_kind_may_be_spelled_in_several_ways(kind: str, found: OwnKind | None) -> None:
    assert INSTANCETYPE.kind({"kind": kind}) is found


def test_instances_say_what_they_were_made_of() -> None:
    named = {"instancetype": {"name": "small"}, "preference": {"kind": "VirtualMachinePreference", "name": "mine"}}
    assert marks(vm(**named)) == {
        "kubevirt.io/cluster-instancetype-name": "small",
        "kubevirt.io/preference-name": "mine",
    }


def test_what_must_not_change_from_start_to_start_is_settled_at_once_and_where_the_vm_is_silent() -> None:
    preference = {
        "preferredArchitecture": "arm64",
        "machine": {"preferredMachineType": "virt"},
        "volumes": {"preferredStorageClassName": "fast"},
    }
    templates = [{"spec": {"pvc": {}}}, {"spec": {"storage": {"storageClassName": "slow"}}}]
    made = matching.settled(vm(dataVolumeTemplates=templates), preference)["spec"]
    assert made["template"] == {"spec": {"architecture": "arm64", "domain": {"machine": {"type": "virt"}}}}
    [first, second] = made["dataVolumeTemplates"]
    assert first["spec"]["pvc"] == {"storageClassName": "fast"}
    assert second["spec"]["storage"] == {"storageClassName": "slow"}
    said = {"architecture": "amd64", "domain": {"machine": {"type": "q35"}}}
    assert matching.settled(vm(template={"spec": said}), preference)["spec"]["template"] == {"spec": said}


# --- revisions


def instancetype(kind: OwnKind = kinds.TYPES[0], **spec: Any) -> dict[str, Any]:
    whole = {"cpu": {"guest": 1}, "memory": {"guest": "1Gi"}, **spec}
    meta = {"name": "small", "namespace": "default", "uid": "123", "generation": 2, "labels": {"a": "b"}}
    return {"apiVersion": kind.api_version, "kind": kind.kind, "metadata": meta, "spec": whole}


def test_a_type_is_kept_under_kubevirts_name_and_labels_and_goes_with_the_vm() -> None:
    kept = revisions.revision(vm(), instancetype())
    meta = kept["metadata"]
    assert (meta["name"], meta["namespace"]) == ("vm-small-v1beta1-123-2", "default")
    assert {key.removeprefix("instancetype.kubevirt.io/object-"): value for key, value in meta["labels"].items()} == {
        "generation": "2",
        "kind": "VirtualMachineInstancetype",
        "name": "small",
        "uid": "123",
        "version": "v1beta1",
    }
    assert [(o["kind"], o["uid"], o["controller"]) for o in meta["ownerReferences"]] == [("VirtualMachine", "u", True)]
    assert kept["data"]["spec"] == instancetype()["spec"]
    assert "labels" not in kept["data"]["metadata"]
    assert revisions.is_of(kept, "small") and revisions.is_current(kept) and not revisions.is_foreign(kept, vm())
    assert revisions.spec_of(kept, INSTANCETYPE) == instancetype()["spec"]


@pytest.mark.parametrize(
    "data",
    [
        None,
        {},
        {"spec": {"template": {}}},
        instancetype(cpu="many"),
        instancetype(cpu={"guest": [1]}),
        instancetype(memory={"guest": "a lot"}),
        instancetype(annotations={"a": 1}),
        instancetype(gpus={"a": "b"}),
        instancetype(kind=kinds.VM),
        {**instancetype(), "metadata": {}},
    ],
)
def test_what_somebody_put_into_a_revision_is_not_used_unless_it_is_a_type(data: Any) -> None:
    kept = {"kind": "ControllerRevision", "metadata": {"name": "r"}, "data": data}
    with pytest.raises(ApiError, match="ControllerRevision r cannot be used"):
        revisions.spec_of(kept, INSTANCETYPE)


def test_a_preference_is_no_instance_type() -> None:
    with pytest.raises(ApiError, match="unexpected type"):
        revisions.spec_of(instancetype(), PREFERENCE)


# --- types by themselves


@pytest.mark.parametrize(
    ("kind", "spec", "field", "words"),
    [
        ("t", {}, "spec.cpu", "missing"),
        ("t", {"cpu": {}, "memory": {"guest": "1Gi"}}, "spec.cpu.guest", "missing"),
        ("t", {"cpu": {"guest": -1}, "memory": {"guest": "1Gi"}}, "spec.cpu.guest", "negative"),
        ("t", {"cpu": {"guest": 1}, "memory": {"guest": "lots"}}, "spec.memory.guest", "not a quantity"),
        (
            "t",
            {"cpu": {"guest": 1}, "memory": {"guest": "2Gi", "maxGuest": "1Gi"}},
            "spec.memory.maxGuest",
            "less than",
        ),
        (
            "t",
            {"cpu": {"guest": 1}, "memory": {"guest": "1Gi", "overcommitPercent": 101}},
            "spec.memory.overcommitPercent",
            "must be in range between 0 and 100",
        ),
        (
            "t",
            {"cpu": {"guest": 1}, "memory": {"guest": "1Gi", "overcommitPercent": 1, "hugepages": {}}},
            "spec.memory.overcommitPercent",
            "should not be requested together",
        ),
        (
            "t",
            {
                "cpu": {"guest": 1},
                "memory": {"guest": "1Gi"},
                "annotations": {"virtfleet.io/hypervisor": "x", "a b": "c"},
            },
            "spec.annotations",
            "cannot be the name",
        ),
        (
            "p",
            {"cpu": {"preferredCPUTopology": "rings"}},
            "spec.cpu.preferredCPUTopology",
            "unknown preferredCPUTopology rings",
        ),
        (
            "p",
            {"cpu": {"preferredCPUTopology": "spread", "spreadOptions": {"across": "x"}}},
            "spec.cpu.spreadOptions.across",
            "across x is not supported",
        ),
        (
            "p",
            {"cpu": {"preferredCPUTopology": "spread", "spreadOptions": {"across": "CoresThreads", "ratio": 3}}},
            "spec.cpu.spreadOptions.ratio",
            "only a ratio of 2",
        ),
        (
            "p",
            {"cpu": {"preferredCPUTopology": "spread", "spreadOptions": {"ratio": -1}}},
            "spec.cpu.spreadOptions.ratio",
            "spreads nothing",
        ),
        ("p", {"requirements": {"cpu": {}}}, "spec.requirements.cpu.guest", "missing"),
    ],
)
def test_types_that_cannot_be_are_refused_at_their_field(
    kind: str, spec: dict[str, Any], field: str, words: str
) -> None:
    for each in kinds.TYPES if kind == "t" else kinds.PREFERENCES:
        found = review({**instancetype(each), "spec": spec}, CLUSTER)
        assert field in [cause.field for cause in found.causes]
        assert any(words in cause.message for cause in found.causes)


def test_what_is_deprecated_is_told() -> None:
    said = review(instancetype(launchSecurity={"sev": {}}), CLUSTER)
    assert said.allowed and "launchSecurity is deprecated" in said.warnings[0]
    old = {**instancetype(kinds.PREFERENCES[0]), "spec": {"cpu": {"preferredCPUTopology": "preferCores"}}}
    assert review(old, CLUSTER).warnings == [
        "PreferredCPUTopology preferCores is deprecated for removal in a future release, please use cores instead"
    ]


def test_the_types_that_come_with_an_installation_are_sound_and_can_be_switched_off() -> None:
    objects = commontypes.render(CLUSTER)
    named = {(obj["kind"], obj["metadata"]["name"]): obj["spec"] for obj in objects}
    assert len(named) == len(objects)
    for obj in objects:
        found = review(obj, CLUSTER)
        assert (found.causes, found.warnings) == ([], []), obj["metadata"]["name"]
        assert obj["metadata"]["annotations"]["instancetype.kubevirt.io/description"].endswith(".")
    large = named["VirtualMachineClusterInstancetype", "u1.large"]
    assert large == {"cpu": {"guest": 2}, "memory": {"guest": "8Gi"}}
    assert named["VirtualMachineClusterInstancetype", "o1.nano"]["memory"]["overcommitPercent"] == 50
    assert named["VirtualMachineClusterPreference", "windows.11"]["requirements"]["cpu"] == {"guest": 2}
    off = {"configuration": {"commonInstancetypesDeployment": {"enabled": False}}}
    assert commontypes.render(Installation({"metadata": {"namespace": "kubevirt"}, "spec": off})) == []
