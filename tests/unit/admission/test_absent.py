"""What VirtFleet does not do yet is said when it is asked for, and only then."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from virtfleet.admission.findings import Findings
from virtfleet.admission.review import complete, review
from virtfleet.api import names
from virtfleet.api.feature_gates import STATES
from virtfleet.api.view import read
from virtfleet.api.vmi import VirtualMachineInstance
from virtfleet.domain.context import Context
from virtfleet.domain.errors import DomainError
from virtfleet.handler.devices import host as hostdevices
from virtfleet.hypervisors import notyet, registry
from virtfleet.hypervisors.features import BY_KEY, FEATURES, Feature, support
from virtfleet.hypervisors.notyet import AbsentField
from virtfleet.installation import Installation
from virtfleet.pods import resources

from .machines import BASE, cluster, edited, verdict, vmi
from .test_templates import REPLICA_SET, VM

EXAMPLES = Path(__file__).parents[3] / "examples"
LONGEST = 256  # of a warning, before API servers cut it
DEVICES = "domain.devices"
GATES = (
    "DownwardMetrics", "WorkloadEncryptionTDX", "HostDisk", "HostDevices", "NetworkDevicesWithDRA", "Sidecar",
    "PersistentReservation",
)  # fmt: skip
WHERE = cluster(*GATES)
EFI = {"efi": {"secureBoot": False}}
KUBEVIRT: dict[str, Any] = {
    "apiVersion": "kubevirt.io/v1",
    "kind": "KubeVirt",
    "metadata": {"name": "kubevirt", "namespace": "kubevirt"},
    "spec": {"configuration": {"developerConfiguration": {"useEmulation": True}}},
}


def shown(name: str, source: dict[str, Any], target: dict[str, Any] | None = None) -> dict[str, Any]:
    """Edits: one more volume, shown as a disk."""
    disk = {"name": name, **(target or {"disk": {"bus": "virtio"}})}
    return {"volumes[1]": {"name": name, **source}, f"{DEVICES}.disks[1]": disk}


def connected(binding: dict[str, Any], network: dict[str, Any]) -> dict[str, Any]:
    """Edits: the VM's only interface is this one."""
    return {"networks": [{"name": "net", **network}], f"{DEVICES}.interfaces": [{"name": "net", **binding}]}


def claimed(kind: str) -> dict[str, Any]:
    return {
        "resourceClaims": [{"name": "claim", "resourceClaimName": "devices"}],
        f"{DEVICES}.{kind}": [{"name": "device", "claimName": "claim", "requestName": "one"}],
    }


CLAIM = {"persistentVolumeClaim": {"claimName": "data"}}
SPECS: dict[str, dict[str, Any]] = {
    "net-sriov": connected({"sriov": {}}, {"multus": {"networkName": "fast"}}),
    "net-plugin": connected({"binding": {"name": "plugin"}}, {"pod": {}}),
    "net-passt": connected({"passtBinding": {}}, {"pod": {}}),
    "net-claim": {
        **connected({"sriov": {}}, {"resourceClaim": {"claimName": "claim", "requestName": "one"}}),
        "resourceClaims": [{"name": "claim", "resourceClaimName": "devices"}],
    },
    "gpu-claim": claimed("gpus"),
    "host-device-claim": claimed("hostDevices"),
    "lun-reservation": shown("data", CLAIM, {"lun": {"bus": "scsi", "reservation": True}}),
    "block-size-of-volume": {f"{DEVICES}.disks[0].blockSize": {"matchVolume": {}}},
    "changed-block-tracking": {f"{DEVICES}.disks[0].changedBlockTracking": True},
    "device-tags": {f"{DEVICES}.interfaces[0].tag": "blue"},
    "memory-dump": {"volumes[1]": {"name": "dump", "memoryDump": {"claimName": "dump"}}},
    "data-volume": shown("data", {"dataVolume": {"name": "data"}}),
    "tdx": {"domain.launchSecurity": {"tdx": {}}, "domain.firmware.bootloader": EFI},
    "sev-attestation": {
        "domain.launchSecurity": {"sev": {"attestation": {}}},
        "domain.firmware.bootloader": EFI,
        "startStrategy": "Paused",
    },
    "istio": {"metadata.annotations": {"sidecar.istio.io/inject": "true"}},
}
VMS: dict[str, dict[str, Any]] = {
    "dataVolumeTemplates": {
        "spec.dataVolumeTemplates": [{"metadata": {"name": "data"}, "spec": {"storage": {}, "source": {"blank": {}}}}],
        "spec.template.spec.volumes[1]": {"name": "data", "dataVolume": {"name": "data"}},
    },
    "runStrategy": {"spec.runStrategy": "WaitAsReceiver"},
}
# Fields of the KubeVirt object for which `{"a": "b"}`, any content at all, does not do.
VALUES: dict[str, Any] = {
    "configuration.migrations.network": "fast",
    "configuration.migrations.matchSELinuxLevelOnMigration": True,
    "configuration.migrations.utilityVolumesTimeout": 5,
    "configuration.mediatedDevicesConfiguration": {"mediatedDeviceTypes": ["nvidia-222"]},
    "configuration.network.binding": {"plugin": {"sidecarImage": "plugin:v1"}},
    "configuration.ksmConfiguration": {"nodeLabelSelector": {}},
    "configuration.supportContainerResources": [{"type": "sidecar", "resources": {}}],
    "configuration.confidentialCompute": {"tdx": {"attestation": {"enforced": True}}},
    "configuration.changedBlockTrackingLabelSelectors": {"namespaceLabelSelector": {}},
    "configuration.supportedGuestAgentVersions": ["4.*"],
    "configuration.developerConfiguration.diskVerification": {"memoryLimit": "2G"},
    "configuration.developerConfiguration.logVerbosity.nodeVerbosity": {"node1": 9},
    **{
        f"configuration.{name}Configuration": {"restClient": {}} for name in ("api", "controller", "handler", "webhook")
    },
    **dict.fromkeys(
        (
            "configuration.persistentReservationConfiguration.enabled",
            "configuration.virtTemplateDeployment.enabled",
            "configuration.developerConfiguration.clusterProfiler",
        ),
        True,
    ),
    **dict.fromkeys(
        (
            "configuration.developerConfiguration.minimumClusterTSCFrequency",
            "configuration.developerConfiguration.minimumReservePVCBytes",
            "configuration.developerConfiguration.pvcTolerateLessSpaceUpToPercent",
            "configuration.developerConfiguration.logVerbosity.virtOperator",
            "configuration.developerConfiguration.logVerbosity.virtSynchronizationController",
        ),
        10,
    ),
    "synchronizationPort": "9185",
    "configuration.minCPUModel": "Haswell",
}


QEMU = registry.get("qemu-kvm")
ABSENT = [f for f in FEATURES if support(QEMU, f.key).admitted]


def warning_of(feature: Feature, field: str = "") -> str:
    found = support(QEMU, feature.key)
    return f"{field or feature.field} is accepted, but VirtFleet does not do it yet: {found.reason}; {found.advice}"


def told(found: Findings, warning: str) -> bool:
    assert found.allowed, found.causes
    return warning in found.warnings


@pytest.mark.parametrize("feature", ABSENT, ids=lambda feature: feature.key)
def test_a_vmi_that_asks_for_it_is_told(feature: Feature) -> None:
    assert told(verdict(vmi(SPECS[feature.key]), WHERE), warning_of(feature))


@pytest.mark.parametrize("owner", [VM, REPLICA_SET], ids=lambda owner: owner["kind"])
def test_so_is_a_template(owner: dict[str, Any]) -> None:
    asking = edited(owner, {"spec.template.metadata.annotations": {"sidecar.istio.io/inject": "true"}})
    found = verdict(asking, WHERE)
    assert told(found, warning_of(BY_KEY["istio"], "spec.template.metadata.annotations[sidecar.istio.io/inject]"))


@pytest.mark.parametrize("field", notyet.VM, ids=lambda field: field.field)
def test_a_vm_that_asks_for_it_is_told(field: AbsentField) -> None:
    assert told(verdict(edited(VM, VMS[field.field]), WHERE), field.not_yet.warning(f"spec.{field.field}"))


@pytest.mark.parametrize("field", notyet.KUBEVIRT, ids=lambda field: field.field)
def test_an_installation_that_asks_for_it_is_told(field: AbsentField) -> None:
    asking = edited(KUBEVIRT, {f"spec.{field.field}": VALUES[field.field]})
    assert told(review(asking, cluster()), field.not_yet.warning(f"spec.{field.field}"))


@pytest.mark.parametrize("gate", sorted(notyet.EMPTY_GATES | notyet.CONTAINER_GATES | notyet.DOWNTIME_GATES))
def test_a_gate_without_its_feature_is_told_of(gate: str) -> None:
    asking = edited(KUBEVIRT, {"spec.configuration.developerConfiguration.featureGates": [gate]})
    (warning,) = review(asking, cluster()).warnings
    assert gate in warning
    assert gate in STATES


# --- a refusal is a refusal


@pytest.mark.parametrize("feature", ABSENT, ids=lambda feature: feature.key)
def test_what_is_refused_is_not_said_to_be_accepted(feature: Feature) -> None:
    found = verdict(vmi({**SPECS[feature.key], "hostname": "No_"}), WHERE)
    assert not found.allowed
    assert not any("is accepted" in warning for warning in found.warnings)


@pytest.mark.parametrize(
    ("key", "advice"),
    {
        "tdx": "remove it",
        "net-claim": "use a multus network with bridge",
    }.items(),
)
def test_nobody_is_told_to_switch_on_a_gate_behind_which_nothing_is(key: str, advice: str) -> None:
    found = verdict(vmi(SPECS[key]), cluster())
    gate = BY_KEY[key].not_yet.gate  # type: ignore[union-attr]
    (cause,) = [cause for cause in found.causes if gate in cause.message]
    assert "an administrator" not in cause.message
    assert "VirtFleet does not have that feature yet" in cause.message and advice in cause.message


def test_what_only_containers_mount_is_refused_to_machines() -> None:
    shared = {
        "volumes[1]": {"name": "files", "containerPath": {"path": "/opt", "readOnly": True}},
        f"{DEVICES}.filesystems": [{"name": "files", "virtiofs": {}}],
    }
    (cause,) = verdict(vmi(shared), cluster("ContainerPathVolumes")).causes
    assert cause.message.startswith("volume 'files' is no directory; use one of persistentVolumeClaim, ")


def test_resources_of_what_shares_directories_are_taken() -> None:
    asking = edited(KUBEVIRT, {"spec.configuration.supportContainerResources": [{"type": "virtiofs", "resources": {}}]})
    assert not any("supportContainerResources" in warning for warning in review(asking, cluster()).warnings)


def warnings_of_gaps(obj: dict[str, Any], where: Installation = WHERE) -> list[str]:
    return [warning for warning in verdict(obj, where).warnings if "VirtFleet does not" in warning]


@pytest.mark.parametrize("ordinary", [BASE, VM, REPLICA_SET, KUBEVIRT], ids=lambda obj: obj["kind"])
def test_what_works_is_not_warned_of(ordinary: dict[str, Any]) -> None:
    assert warnings_of_gaps(ordinary) == []


@pytest.mark.parametrize("file", sorted(EXAMPLES.rglob("*.yaml")), ids=lambda file: file.name)
def test_no_example_asks_for_what_is_not_there(file: Path) -> None:
    objects = [obj for obj in yaml.safe_load_all(file.read_text()) if obj and obj.get("apiVersion") == "kubevirt.io/v1"]
    where = next((Installation(obj) for obj in objects if obj["kind"] == "KubeVirt"), WHERE)
    assert [warning for obj in objects for warning in warnings_of_gaps(obj, where)] == []


def test_containers_mount_directories_themselves() -> None:
    asking = vmi({"hypervisor": "lxc", f"{DEVICES}.disks": [], f"{DEVICES}.filesystems": [{"name": "root"}]})
    assert not any("filesystems" in warning for warning in verdict(asking).warnings)


def test_room_to_grow_is_kept_without_a_word() -> None:
    room = vmi({"domain.cpu": {"sockets": 1, "maxSockets": 4}, "domain.memory.maxGuest": "4Gi"})
    assert warnings_of_gaps(room) == []


def test_no_warning_is_cut() -> None:
    warnings = [warning_of(f, f"spec.template.{f.field}") for f in ABSENT]
    warnings += [f.not_yet.warning(f"spec.{f.field}") for f in (*notyet.VM, *notyet.KUBEVIRT)]
    assert [warning for warning in warnings if len(warning) > LONGEST] == []


# --- the table stays true: whoever builds what it says is missing has to take it out


NOT_BUILT = (
    "net-sriov",
    "net-passt",
    "net-claim",
    "gpu-claim",
    "host-device-claim",
    "block-size-of-volume",
    "memory-dump",
)
NOT_OFFERED = {"lun-reservation": "pr-helper", "tdx": "tdx"}


def sample(key: str) -> VirtualMachineInstance:
    completed, _ = complete(vmi(SPECS[key]), WHERE)
    return read(VirtualMachineInstance, completed)


@pytest.mark.parametrize("key", NOT_BUILT)
def test_a_vm_that_is_said_not_to_start_has_no_domain(key: str) -> None:
    with pytest.raises(DomainError):
        registry.get("qemu-kvm").build(sample(key), Context())


@pytest.mark.parametrize("key", NOT_OFFERED)
def test_a_vm_that_is_said_to_find_no_node_asks_for_a_device_that_no_handler_offers(key: str, tmp_path: Path) -> None:
    device = NOT_OFFERED[key]
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev" / device).touch()
    offered = {source.resource for source in hostdevices.shared(tmp_path, 1, lambda name: True)}
    asked = resources.devices(sample(key), registry.get("qemu-kvm"), Installation(WHERE.kubevirt))
    assert names.DEVICE_PREFIX + device in asked.keys() - offered
