"""What VirtFleet does not do yet is said when it is asked for, and only then."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from virtfleet.admission import gaps
from virtfleet.admission.cluster import Cluster
from virtfleet.admission.findings import Findings
from virtfleet.admission.gaps import Gap
from virtfleet.admission.review import complete, review
from virtfleet.api import names
from virtfleet.api.feature_gates import STATES
from virtfleet.api.view import read
from virtfleet.api.vmi import VirtualMachineInstance
from virtfleet.domain.context import Context
from virtfleet.domain.errors import DomainError
from virtfleet.handler import hostdevices
from virtfleet.hypervisors import registry
from virtfleet.pods import resources
from virtfleet.pods.settings import Settings

from .machines import BASE, cluster, edited, verdict, vmi
from .test_templates import MIGRATION, REPLICA_SET, VM

EXAMPLES = Path(__file__).parents[3] / "examples"
LONGEST = 256  # of a warning, before API servers cut it
DEVICES = "domain.devices"
GATES = (
    "DownwardMetrics", "VSOCK", "WorkloadEncryptionTDX", "HostDisk", "HostDevices", "NetworkDevicesWithDRA", "Sidecar",
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
AGENT = {"source": {"secret": {"secretName": "keys"}}, "propagationMethod": {"qemuGuestAgent": {"users": ["me"]}}}
SPECS: dict[str, dict[str, Any]] = {
    "evictionStrategy": {"evictionStrategy": "LiveMigrate"},
    "domain.devices.tpm.persistent": {f"{DEVICES}.tpm": {"persistent": True}},
    "domain.firmware.bootloader.efi.persistent": {
        "domain.firmware.bootloader": {"efi": {"secureBoot": False, "persistent": True}}
    },
    "accessCredentials[].qemuGuestAgent": {"accessCredentials": [{"sshPublicKey": AGENT}]},
    "domain.devices.interfaces[].sriov": connected({"sriov": {}}, {"multus": {"networkName": "fast"}}),
    "domain.devices.interfaces[].binding": connected({"binding": {"name": "plugin"}}, {"pod": {}}),
    "domain.devices.interfaces[].passtBinding": connected({"passtBinding": {}}, {"pod": {}}),
    "networks[].resourceClaim": {
        **connected({"sriov": {}}, {"resourceClaim": {"claimName": "claim", "requestName": "one"}}),
        "resourceClaims": [{"name": "claim", "resourceClaimName": "devices"}],
    },
    "domain.devices.gpus[].claimName": claimed("gpus"),
    "domain.devices.hostDevices[].claimName": claimed("hostDevices"),
    "domain.devices.disks[].lun.reservation": shown("data", CLAIM, {"lun": {"bus": "scsi", "reservation": True}}),
    "domain.devices.disks[].blockSize.matchVolume": {f"{DEVICES}.disks[0].blockSize": {"matchVolume": {}}},
    "domain.devices.disks[].changedBlockTracking": {f"{DEVICES}.disks[0].changedBlockTracking": True},
    "domain.devices.*[].tag": {f"{DEVICES}.interfaces[0].tag": "blue"},
    "volumes[].memoryDump": {"volumes[1]": {"name": "dump", "memoryDump": {"claimName": "dump"}}},
    "volumes[].dataVolume": shown("data", {"dataVolume": {"name": "data"}}),
    "volumes[].hostDisk": shown("host", {"hostDisk": {"path": "/data/disk.img", "type": "Disk"}}),
    "domain.devices.autoattachVSOCK": {f"{DEVICES}.autoattachVSOCK": True},
    "domain.devices.clientPassthrough": {f"{DEVICES}.clientPassthrough": {}},
    "domain.launchSecurity.tdx": {"domain.launchSecurity": {"tdx": {}}, "domain.firmware.bootloader": EFI},
    "domain.launchSecurity.sev.attestation": {
        "domain.launchSecurity": {"sev": {"attestation": {}}},
        "domain.firmware.bootloader": EFI,
        "startStrategy": "Paused",
    },
    "domain.devices.filesystems": {
        "volumes[1]": {"name": "files", "configMap": {"name": "files"}},
        f"{DEVICES}.filesystems": [{"name": "files", "virtiofs": {}}],
    },
}
ANNOTATIONS = {
    "annotations[hooks.kubevirt.io/hookSidecars]": {"hooks.kubevirt.io/hookSidecars": "[]"},
    "annotations[sidecar.istio.io/inject]": {"sidecar.istio.io/inject": "true"},
}
VMS: dict[str, dict[str, Any]] = {
    "instancetype": {"spec.instancetype": {"name": "u1.small"}},
    "preference": {"spec.preference": {"name": "fedora"}},
    "dataVolumeTemplates": {
        "spec.dataVolumeTemplates": [{"metadata": {"name": "data"}, "spec": {"storage": {}, "source": {"blank": {}}}}],
        "spec.template.spec.volumes[1]": {"name": "data", "dataVolume": {"name": "data"}},
    },
    "updateVolumesStrategy": {"spec.updateVolumesStrategy": "Migration"},
    "runStrategy": {"spec.runStrategy": "WaitAsReceiver"},
}
# Fields of the KubeVirt object for which `{"a": "b"}`, any content at all, does not do.
VALUES: dict[str, Any] = {
    "configuration.evictionStrategy": "LiveMigrate",
    "configuration.vmRolloutStrategy": "LiveUpdate",
    "configuration.roleAggregationStrategy": "Manual",
    "configuration.migrations": {"allowPostCopy": True},
    "configuration.liveUpdateConfiguration": {"maxCpuSockets": 8},
    "configuration.mediatedDevicesConfiguration": {"mediatedDeviceTypes": ["nvidia-222"]},
    "configuration.network.binding": {"plugin": {"sidecarImage": "plugin:v1"}},
    "configuration.tlsConfiguration": {"minTLSVersion": "VersionTLS13"},
    "configuration.autoCPULimitNamespaceLabelSelector": {"matchLabels": {"limit": "yes"}},
    "configuration.ksmConfiguration": {"nodeLabelSelector": {}},
    "configuration.supportContainerResources": [{"type": "virtiofs", "resources": {}}],
    "configuration.confidentialCompute": {"tdx": {"attestation": {"enforced": True}}},
    "configuration.changedBlockTrackingLabelSelectors": {"namespaceLabelSelector": {}},
    "configuration.instancetype": {"referencePolicy": "expand"},
    "configuration.supportedGuestAgentVersions": ["4.*"],
    "configuration.developerConfiguration.diskVerification": {"memoryLimit": "2G"},
    "configuration.developerConfiguration.logVerbosity.nodeVerbosity": {"node1": 9},
    "workloadUpdateStrategy": {"workloadUpdateMethods": ["LiveMigrate"]},
    **{
        f"configuration.{name}Configuration": {"restClient": {}} for name in ("api", "controller", "handler", "webhook")
    },
    **dict.fromkeys(
        (
            "configuration.persistentReservationConfiguration.enabled",
            "configuration.commonInstancetypesDeployment.enabled",
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
    **dict.fromkeys(("monitorNamespace", "monitorAccount", "serviceMonitorNamespace"), "monitoring"),
    "synchronizationPort": "9185",
    "configuration.minCPUModel": "Haswell",
    "configuration.vmStateStorageClass": "fast",
}


def told(found: Findings, gap: Gap, path: str) -> bool:
    assert found.allowed, found.causes
    return gap.warning(path) in found.warnings


@pytest.mark.parametrize("gap", [*gaps.SPEC, gaps.FILESYSTEMS], ids=lambda gap: gap.field)
def test_a_vmi_that_asks_for_it_is_told(gap: Gap) -> None:
    assert told(verdict(vmi(SPECS[gap.field]), WHERE), gap, "spec")


@pytest.mark.parametrize("owner", [VM, REPLICA_SET], ids=lambda owner: owner["kind"])
def test_so_is_a_template(owner: dict[str, Any]) -> None:
    (gap,) = (gap for gap in gaps.SPEC if gap.field == "evictionStrategy")
    asking = edited(owner, {"spec.template.spec.evictionStrategy": "LiveMigrate"})
    assert told(verdict(asking, WHERE), gap, "spec.template.spec")


@pytest.mark.parametrize("gap", gaps.ANNOTATIONS, ids=lambda gap: gap.field)
def test_annotations_are_told_of(gap: Gap) -> None:
    assert told(verdict(vmi({"metadata.annotations": ANNOTATIONS[gap.field]}), WHERE), gap, "metadata")


@pytest.mark.parametrize("gap", gaps.VM, ids=lambda gap: gap.field)
def test_a_vm_that_asks_for_it_is_told(gap: Gap) -> None:
    assert told(verdict(edited(VM, VMS[gap.field]), WHERE), gap, "spec")


def test_a_migration_is_told() -> None:
    assert verdict(MIGRATION).warnings == [gaps.MIGRATION]


@pytest.mark.parametrize("gap", gaps.KUBEVIRT, ids=lambda gap: gap.field)
def test_an_installation_that_asks_for_it_is_told(gap: Gap) -> None:
    asking = edited(KUBEVIRT, {f"spec.{gap.field}": VALUES[gap.field]})
    assert told(review(asking, cluster()), gap, "spec")


@pytest.mark.parametrize("gate", sorted(gaps.GATES))
def test_a_gate_without_its_feature_is_told_of(gate: str) -> None:
    asking = edited(KUBEVIRT, {"spec.configuration.developerConfiguration.featureGates": [gate]})
    (warning,) = review(asking, cluster()).warnings
    assert gate in warning
    assert gate in STATES


def warnings_of_gaps(obj: dict[str, Any], where: Cluster = WHERE) -> list[str]:
    return [warning for warning in verdict(obj, where).warnings if "VirtFleet does not" in warning]


@pytest.mark.parametrize("ordinary", [BASE, VM, REPLICA_SET, KUBEVIRT], ids=lambda obj: obj["kind"])
def test_what_works_is_not_warned_of(ordinary: dict[str, Any]) -> None:
    assert warnings_of_gaps(ordinary) == []


@pytest.mark.parametrize("file", sorted(EXAMPLES.rglob("*.yaml")), ids=lambda file: file.name)
def test_no_example_asks_for_what_is_not_there(file: Path) -> None:
    objects = [obj for obj in yaml.safe_load_all(file.read_text()) if obj and obj.get("apiVersion") == "kubevirt.io/v1"]
    where = next((Cluster(obj) for obj in objects if obj["kind"] == "KubeVirt"), WHERE)
    assert [warning for obj in objects for warning in warnings_of_gaps(obj, where)] == []


def test_containers_mount_directories_themselves() -> None:
    asking = vmi({"hypervisor": "lxc", f"{DEVICES}.disks": [], f"{DEVICES}.filesystems": [{"name": "root"}]})
    assert not any("filesystems" in warning for warning in verdict(asking).warnings)


def test_no_warning_is_cut() -> None:
    warnings = [gaps.MIGRATION]
    for path, table in (
        ("spec.template.spec", (*gaps.SPEC, gaps.FILESYSTEMS)),
        ("spec.template.metadata", gaps.ANNOTATIONS),
        ("spec", (*gaps.VM, *gaps.KUBEVIRT)),
    ):
        warnings += [gap.warning(path) for gap in table]
    assert [warning for warning in warnings if len(warning) > LONGEST] == []


# --- the table stays true: whoever builds what it says is missing has to take it out


NOT_BUILT = (
    "domain.devices.interfaces[].sriov",
    "domain.devices.interfaces[].passtBinding",
    "networks[].resourceClaim",
    "domain.devices.gpus[].claimName",
    "domain.devices.hostDevices[].claimName",
    "domain.devices.disks[].blockSize.matchVolume",
    "volumes[].memoryDump",
)
NOT_OFFERED = {"domain.devices.disks[].lun.reservation": "pr-helper", "domain.launchSecurity.tdx": "tdx"}


def sample(field: str) -> VirtualMachineInstance:
    completed, _ = complete(vmi(SPECS[field]), WHERE)
    return read(VirtualMachineInstance, completed)


@pytest.mark.parametrize("field", NOT_BUILT)
def test_a_vm_that_is_said_not_to_start_has_no_domain(field: str) -> None:
    with pytest.raises(DomainError):
        registry.get("qemu-kvm").build(sample(field), Context())


@pytest.mark.parametrize("field", NOT_OFFERED)
def test_a_vm_that_is_said_to_find_no_node_asks_for_a_device_that_no_handler_offers(field: str, tmp_path: Path) -> None:
    device = NOT_OFFERED[field]
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev" / device).touch()
    offered = {source.resource for source in hostdevices.shared(tmp_path, 1, lambda name: True)}
    asked = resources.devices(sample(field), registry.get("qemu-kvm"), Settings.of(WHERE.kubevirt))
    assert names.DEVICE_PREFIX + device in asked.keys() - offered
