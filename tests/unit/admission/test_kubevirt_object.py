"""The KubeVirt object: pools above all, then the settings of the cluster."""

from __future__ import annotations

from typing import Any

import pytest

from virtfleet.admission.findings import Findings
from virtfleet.admission.kubevirt import check
from virtfleet.admission.kubevirt_pools import check_removal
from virtfleet.admission.review import review, review_update
from virtfleet.api import crds
from virtfleet.api.kubevirt import KubeVirt

from .machines import GONE, cluster, edited

GATES = ["VirtHandlerPools", "AdditionalVirtHandlers"]
KUBEVIRT: dict[str, Any] = {
    "apiVersion": "kubevirt.io/v1",
    "kind": "KubeVirt",
    "metadata": {"name": "kubevirt", "namespace": "kubevirt"},
    "spec": {
        "configuration": {"developerConfiguration": {"featureGates": GATES}},
        "virtHandlerPools": [
            {
                "name": "gpu",
                "virtLauncherImage": "launcher:v1-gpu",
                "nodeSelector": {"accelerator": "gpu"},
                "selector": {"deviceNames": ["x.io/gpu"], "vmLabels": {"matchLabels": {"team": "ai"}}},
            }
        ],
        "additionalVirtHandlers": [{"name": "arm", "nodeSelector": {"accelerator": "none"}}],
    },
}
PATCH = {"resourceName": "virt-api", "resourceType": "Deployment", "type": "json"}
POOL, OTHER = "spec.virtHandlerPools[0]", "spec.additionalVirtHandlers[0]"


def found(edits: dict[str, Any]) -> Findings:
    return review(edited(KUBEVIRT, edits), cluster())


def test_sound_pools_are_accepted_without_a_warning() -> None:
    assert found({}) == Findings()


@pytest.mark.parametrize(
    ("edits", "field", "reason", "words"),
    [
        (
            {"spec.configuration": {}},
            "spec.virtHandlerPools",
            "Invalid",
            "without enabling the VirtHandlerPools feature gate",
        ),
        ({"spec.configuration": {}}, "spec.additionalVirtHandlers", "Invalid", "AdditionalVirtHandlers feature gate"),
        ({f"{POOL}.name": ""}, f"{POOL}.name", "Required", "needs a name"),
        ({f"{POOL}.name": "GPU_1"}, f"{POOL}.name", "Invalid", "lower case"),
        ({f"{POOL}.name": "-gpu"}, f"{POOL}.name", "Invalid", "ends"),
        ({f"{POOL}.name": "gpu\n"}, f"{POOL}.name", "Invalid", "lower case"),
        ({f"{POOL}.name": "g" * 49}, f"{POOL}.name", "Invalid", "48"),
        ({f"{OTHER}.name": "gpu"}, f"{OTHER}.name", "Duplicate", "is duplicated"),
        ({f"{POOL}.nodeSelector": {}}, f"{POOL}.nodeSelector", "Required", "must have at least one entry"),
        ({f"{OTHER}.nodeSelector": GONE}, f"{OTHER}.nodeSelector", "Required", "missing"),
        ({f"{POOL}.nodeSelector": {"a b": "c"}}, f"{POOL}.nodeSelector[a b]", "Invalid", "not a label"),
        ({f"{POOL}.nodeSelector": {"a": "b c"}}, f"{POOL}.nodeSelector[a]", "Invalid", "not a label value"),
        (
            {f"{POOL}.nodeSelector": {"kubernetes.io/os": "windows"}},
            f"{POOL}.nodeSelector[kubernetes.io/os]",
            "Invalid",
            "no node can be in this pool",
        ),
        (
            {"spec.workloads": {"nodePlacement": {"nodeSelector": {"accelerator": "cpu"}}}},
            f"{POOL}.nodeSelector[accelerator]",
            "Invalid",
            "spec.workloads.nodePlacement",
        ),
        ({f"{POOL}.virtLauncherImage": ""}, POOL, "Required", "at least one of virtHandlerImage or virtLauncherImage"),
        ({f"{POOL}.selector": {}}, f"{POOL}.selector", "Required", "at least one of deviceNames or vmLabels"),
        ({f"{POOL}.selector.deviceNames": [""]}, f"{POOL}.selector.deviceNames[0]", "Invalid", "must not be empty"),
        (
            {f"{POOL}.selector.vmLabels": {}},
            f"{POOL}.selector.vmLabels.matchLabels",
            "Required",
            "matchLabels must have at least one entry when vmLabels is set",
        ),
        (
            {f"{POOL}.selector.vmLabels": {"matchLabels": {"a": "b c"}}},
            f"{POOL}.selector.vmLabels.matchLabels",
            "Invalid",
            "not a label value",
        ),
        (
            {f"{POOL}.selector.vmLabels": {"matchExpressions": [{"key": "a", "operator": "In"}]}},
            f"{POOL}.selector.vmLabels.matchExpressions[0].values",
            "Invalid",
            "needs at least one value",
        ),
        (
            {f"{POOL}.selector.vmLabels": {"matchExpressions": [{"key": "a", "operator": "Near"}]}},
            f"{POOL}.selector.vmLabels.matchExpressions[0].operator",
            "Invalid",
            "does not exist",
        ),
        ({f"{POOL}.hypervisor": "parallels"}, f"{POOL}.hypervisor", "NotSupported", "qemu-kvm"),
        ({f"{POOL}.exclusive": "yes"}, f"{POOL}.exclusive", "Invalid", "true or false"),
    ],
)
def test_wrong_pools_are_refused(edits: dict[str, Any], field: str, reason: str, words: str) -> None:
    causes = {cause.field: cause for cause in found(edits).causes}
    assert field in causes
    assert causes[field].reason == f"FieldValue{reason}"
    assert words in causes[field].message


def test_pools_that_cannot_be_told_apart_in_few_terms_are_refused_with_advice() -> None:
    pools = [
        {
            "name": f"p{i}",
            "virtHandlerImage": "h:v1",
            "nodeSelector": {f"a{i}": "1", f"b{i}": "1"},
            "selector": {"deviceNames": ["d"]},
        }
        for i in range(9)
    ]
    causes = found({"spec.virtHandlerPools": pools, "spec.additionalVirtHandlers": []}).causes
    assert "a label of their own" in causes[0].message


def test_doubtful_pools_are_warned_of() -> None:
    edits = {
        f"{POOL}.virtLauncherImage": "registry:5000/launcher",
        f"{OTHER}.nodeSelector": {"zone": "a"},
        "spec.configuration.developerConfiguration.featureGates": [*GATES, "Typo", "HotplugVolumes"],
    }
    warnings = found(edits).warnings
    assert [w for w in warnings if "has no tag" in w]
    assert [
        w for w in warnings if "gpu and arm overlap" in w and "accelerator=gpu, zone=a" in w and "first-match-wins" in w
    ]
    assert [w for w in warnings if "Typo is not known" in w]
    assert [w for w in warnings if "HotplugVolumes is deprecated" in w]


def test_a_pool_behind_a_wider_one_is_warned_of() -> None:
    assert [
        "gets no node" in w for w in found({f"{OTHER}.nodeSelector": {"accelerator": "gpu", "zone": "a"}}).warnings
    ] == [True]


def test_a_shared_device_is_warned_of() -> None:
    second = edited(KUBEVIRT["spec"]["virtHandlerPools"][0], {"name": "gpu2", "nodeSelector": {"accelerator": "gpu2"}})
    assert any("x.io/gpu" in w and "gpu2" in w for w in found({"spec.virtHandlerPools[1]": second}).warnings)


def vmi(number: int, phase: str = "Running", device: str = "x.io/gpu") -> dict[str, Any]:
    devices = {"gpus": [{"name": "g", "deviceName": device}]}
    return {
        "metadata": {"name": f"vm{number:02}", "namespace": "ns"},
        "spec": {"domain": {"devices": devices}},
        "status": {"phase": phase},
    }


def removal(vmis: list[dict[str, Any]], **annotations: str) -> Findings:
    left = edited(KUBEVIRT, {"spec.virtHandlerPools": [], "metadata.annotations": annotations})
    findings = Findings()
    check_removal(left, KUBEVIRT, vmis, findings)
    return findings


def test_a_pool_with_running_vmis_cannot_be_removed() -> None:
    (cause,) = removal([vmi(i) for i in range(12)]).causes
    assert cause.reason == "FieldValueForbidden"
    assert "cannot remove pool gpu: 12 VMIs" in cause.message
    assert "ns/vm00" in cause.message and "ns/vm09" in cause.message and "ns/vm10" not in cause.message


def test_an_unused_pool_can_be_removed() -> None:
    assert removal([vmi(1, phase="Succeeded"), vmi(2, device="x.io/other")]).allowed


def test_an_annotation_says_that_removal_is_meant() -> None:
    assert removal([vmi(1)], **{"virtfleet.io/force-pool-removal": "gpu"}).allowed
    assert not removal([vmi(1)], **{"virtfleet.io/force-pool-removal": "other"}).allowed


@pytest.mark.parametrize(
    ("edits", "field"),
    [
        (
            {"spec.configuration.developerConfiguration.disabledFeatureGates": ["VirtHandlerPools"]},
            "spec.configuration.developerConfiguration.featureGates",
        ),
        (
            {"spec.customizeComponents.patches": [{**PATCH, "patch": "not json"}]},
            "spec.customizeComponents.patches[0].patch",
        ),
        (
            {"spec.certificateRotateStrategy.selfSigned": {"ca": {"duration": "1h"}, "server": {"duration": "2h"}}},
            "spec.certificateRotateStrategy.selfSigned.server.duration",
        ),
        (
            {"spec.certificateRotateStrategy.selfSigned": {"ca": {"duration": "1h", "renewBefore": "90m"}}},
            "spec.certificateRotateStrategy.selfSigned.ca.renewBefore",
        ),
        (
            {"spec.certificateRotateStrategy.selfSigned": {"ca": {"duration": "soon"}}},
            "spec.certificateRotateStrategy.selfSigned.ca.duration",
        ),
        (
            {"spec.configuration.additionalGuestMemoryOverheadRatio": "0.5"},
            "spec.configuration.additionalGuestMemoryOverheadRatio",
        ),
        (
            {"spec.configuration.developerConfiguration.cpuAllocationRatio": -1},
            "spec.configuration.developerConfiguration.cpuAllocationRatio",
        ),
        (
            {"spec.configuration.network": {"defaultNetworkInterface": "slirp"}},
            "spec.configuration.network.defaultNetworkInterface",
        ),
        ({"spec.configuration.tlsConfiguration": {"ciphers": ["X"]}}, "spec.configuration.tlsConfiguration.ciphers"),
        ({"spec.configuration.hypervisors": [{"name": "parallels"}]}, "spec.configuration.hypervisors[0].name"),
        ({"spec.infra": {"replicas": 0}}, "spec.infra.replicas"),
        ({"spec.configuration.cpuRequest": "lots"}, "spec.configuration.cpuRequest"),
        (
            {"spec.infra": {"nodePlacement": {"tolerations": [{"key": "a", "operator": "Exists", "value": "b"}]}}},
            "spec.infra.nodePlacement.tolerations[0].value",
        ),
    ],
)
def test_wrong_settings_are_refused(edits: dict[str, Any], field: str) -> None:
    assert field in {cause.field for cause in found(edits).causes}


@pytest.mark.parametrize("component", ["infra", "workloads"])
def test_an_operator_of_a_toleration_that_does_not_exist_is_refused_in_kubevirts_words(component: str) -> None:
    wrong = {"nodePlacement": {"tolerations": [{"key": "a", "operator": "foo", "value": "b"}]}}
    (cause,) = found({f"spec.{component}": wrong}).causes
    assert cause.field == f"spec.{component}.nodePlacement.tolerations[0].operator"
    words = f"spec.{component}.nodePlacement.tolerations.operator in body should be one of [Equal Exists]"
    assert cause.message == f"{words}; 'foo' does not exist"
    schema = crds.schema(KubeVirt)["properties"]["spec"]["properties"][component]["properties"]["nodePlacement"]
    operator = schema["properties"]["tolerations"]["items"]["properties"]["operator"]
    assert "enum" not in operator, "or the API server refuses it first, in its own words"


def test_a_gate_can_be_switched_off_but_pools_cannot_change_without_it() -> None:
    off = edited(KUBEVIRT, {"spec.configuration": {}})
    switched_off = review_update(off, KUBEVIRT, cluster())
    assert switched_off.allowed
    assert len(switched_off.warnings) == 2
    assert not review_update(edited(off, {f"{POOL}.virtLauncherImage": "launcher:v2"}), off, cluster()).allowed


def test_downtime_is_tuned_behind_a_gate() -> None:
    changed = edited(KUBEVIRT, {"spec.configuration.migrations": {"maxDowntimeMs": 100}})
    refused = review_update(changed, KUBEVIRT, cluster())
    assert not refused.allowed
    assert "an administrator can add it" in refused.causes[0].message
    gates = [*GATES, "MigrationDowntimeTuning"]
    opened = edited(changed, {"spec.configuration.developerConfiguration.featureGates": gates})
    assert review_update(opened, KUBEVIRT, cluster()).allowed


def test_how_running_vms_are_updated_is_checked_for_the_installation_and_for_pools() -> None:
    pool = {
        "name": "gold",
        "nodeSelector": {"a": "b"},
        "virtLauncherImage": "registry/launcher:1",
        "selector": {"deviceNames": ["x.io/d"]},
        "workloadUpdateStrategy": {"batchEvictionInterval": "soon"},
    }
    findings = Findings()
    kubevirt = {
        "spec": {
            "configuration": {"developerConfiguration": {"featureGates": ["VirtHandlerPools"]}},
            "workloadUpdateStrategy": {"workloadUpdateMethods": ["Livemigrate"], "batchEvictionSize": -1},
            "virtHandlerPools": [pool],
        }
    }
    check(kubevirt, findings)
    assert {cause.field for cause in findings.causes} == {
        "spec.workloadUpdateStrategy.batchEvictionSize",
        "spec.virtHandlerPools[0].workloadUpdateStrategy.batchEvictionInterval",
    }
    [warning] = [text for text in findings.warnings if "no method" in text]
    assert warning.startswith("spec.workloadUpdateStrategy.workloadUpdateMethods[0]: 'Livemigrate'")
