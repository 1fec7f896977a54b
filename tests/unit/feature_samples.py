"""What a VMI writes to ask for each feature of the registry, and which features to test on a hypervisor."""

from __future__ import annotations

from typing import Any

from virtfleet.api.view import read
from virtfleet.api.vmi import VirtualMachineInstance
from virtfleet.hypervisors import registry
from virtfleet.hypervisors.features import Feature, at
from virtfleet.hypervisors.support import Level

_SECTORS = {"logical": 4096, "physical": 4096}
_CLAIMED = {"claimName": "c", "requestName": "r"}
_KEYS = {"secret": {"secretName": "keys"}}
_DISK: dict[str, Any] = {"name": "d", "disk": {"bus": "virtio"}}
SPECS: dict[str, dict[str, Any]] = {
    "disk-image": {"domain": {"devices": {"disks": [_DISK]}}, "volumes": [{"name": "d", "emptyDisk": {}}]},
    **{
        f"disk-{bus}": {"domain": {"devices": {"disks": [{"name": "d", "disk": {"bus": bus}}]}}}
        for bus in ("virtio", "sata", "scsi", "usb")
    },
    "cdrom": {"domain": {"devices": {"disks": [{"name": "d", "cdrom": {"bus": "scsi"}}]}}},
    "lun": {"domain": {"devices": {"disks": [{"name": "d", "lun": {"bus": "scsi"}}]}}},
    "shareable-disk": {"domain": {"devices": {"disks": [{**_DISK, "shareable": True}]}}},
    "boot-order": {"domain": {"devices": {"disks": [{**_DISK, "bootOrder": 1}]}}},
    "io-threads": {"domain": {"ioThreadsPolicy": "auto"}},
    "block-multiqueue": {"domain": {"devices": {"blockMultiQueue": True}}},
    "container-disk": {"volumes": [{"name": "d", "containerDisk": {"image": "x"}}]},
    "claim": {"volumes": [{"name": "d", "persistentVolumeClaim": {"claimName": "x"}}]},
    "volume-hotplug": {"volumes": [{"name": "d", "dataVolume": {"name": "x", "hotpluggable": True}}]},
    "ephemeral-disk": {"volumes": [{"name": "d", "emptyDisk": {"capacity": "1Gi"}}]},
    "cloud-init": {"volumes": [{"name": "d", "cloudInitConfigDrive": {"userData": "x"}}]},
    "config-disk": {"volumes": [{"name": "d", "sysprep": {"secret": {"name": "x"}}}]},
    "downward-metrics": {"volumes": [{"name": "d", "downwardMetrics": {}}]},
    "filesystem": {
        "domain": {"devices": {"filesystems": [{"name": "f", "virtiofs": {}}]}},
        "volumes": [{"name": "d", "emptyDisk": {"capacity": "1Gi"}}, {"name": "f", "configMap": {"name": "x"}}],
    },
    **{
        f"net-{key}": {"domain": {"devices": {"interfaces": [{"name": "n", field: {}}]}}}
        for key, field in {
            "bridge": "bridge",
            "masquerade": "masquerade",
            "sriov": "sriov",
            "passt": "passtBinding",
        }.items()
    },
    "interface-hotplug": {"domain": {"devices": {"interfaces": [{"name": "n", "bridge": {}, "state": "absent"}]}}},
    "net-multiqueue": {"domain": {"devices": {"networkInterfaceMultiqueue": True}}},
    "cpu-model": {"domain": {"cpu": {"model": "Haswell"}}},
    "cpu-features": {"domain": {"cpu": {"features": [{"name": "vmx"}]}}},
    "cpu-pinning": {"domain": {"cpu": {"dedicatedCpuPlacement": True}}},
    "cpu-hotplug": {"domain": {"cpu": {"sockets": 1, "maxSockets": 4}}},
    "numa": {"domain": {"cpu": {"numa": {"guestMappingPassthrough": {}}}}},
    "realtime": {"domain": {"cpu": {"realtime": {}}}},
    "memory-hotplug": {"domain": {"memory": {"guest": "1Gi", "maxGuest": "4Gi"}}},
    "hugepages": {"domain": {"memory": {"hugepages": {"pageSize": "2Mi"}}}},
    "balloon": {"domain": {"devices": {"autoattachMemBalloon": True}}},
    "efi": {"domain": {"firmware": {"bootloader": {"efi": {"secureBoot": False}}}}},
    "secure-boot": {"domain": {"firmware": {"bootloader": {"efi": {}}}}},
    "kernel-boot": {"domain": {"firmware": {"kernelBoot": {"container": {"image": "x", "kernelPath": "/k"}}}}},
    "acpi-tables": {"domain": {"firmware": {"acpi": {"slicNameRef": "x"}}}},
    "start-paused": {"startStrategy": "Paused"},
    "graphics": {"domain": {"devices": {"autoattachGraphicsDevice": True}}},
    "serial-console": {"domain": {"devices": {"autoattachSerialConsole": True}}},
    "console-log": {"domain": {"devices": {"logSerialConsole": True}}},
    "input": {"domain": {"devices": {"inputs": [{"name": "i", "type": "tablet"}]}}},
    "tpm": {"domain": {"devices": {"tpm": {}}}},
    "watchdog": {"domain": {"devices": {"watchdog": {"name": "w", "i6300esb": {}}}}},
    "rng": {"domain": {"devices": {"rng": {}}}},
    "sound": {"domain": {"devices": {"sound": {"name": "s"}}}},
    "panic": {"domain": {"devices": {"panicDevices": [{"model": "isa"}]}}},
    "usb-redirection": {"domain": {"devices": {"clientPassthrough": {}}}},
    "vsock": {"domain": {"devices": {"autoattachVSOCK": True}}},
    "gpu": {"domain": {"devices": {"gpus": [{"name": "g", "deviceName": "x.io/g"}]}}},
    "host-device": {"domain": {"devices": {"hostDevices": [{"name": "h", "deviceName": "x.io/h"}]}}},
    "guest-agent": {"livenessProbe": {"guestAgentPing": {}}},
    "hyperv-enlightenments": {"domain": {"features": {"hypervPassthrough": {"enabled": True}}}},
    "kvm-hidden": {"domain": {"features": {"kvm": {"hidden": True}}}},
    "sev": {"domain": {"launchSecurity": {"snp": {}}}},
    "tdx": {"domain": {"launchSecurity": {"tdx": {}}}},
    "clock": {"domain": {"clock": {"utc": {}}}},
    "live-migration": {"evictionStrategy": "LiveMigrate"},
    "lun-reservation": {"domain": {"devices": {"disks": [{"name": "d", "lun": {"bus": "scsi", "reservation": True}}]}}},
    "block-size": {"domain": {"devices": {"disks": [{**_DISK, "blockSize": {"custom": _SECTORS}}]}}},
    "block-size-of-volume": {"domain": {"devices": {"disks": [{**_DISK, "blockSize": {"matchVolume": {}}}]}}},
    "changed-block-tracking": {"domain": {"devices": {"disks": [{**_DISK, "changedBlockTracking": True}]}}},
    "data-volume": {"volumes": [{"name": "d", "dataVolume": {"name": "x"}}]},
    "memory-dump": {"volumes": [{"name": "d", "memoryDump": {"claimName": "x"}}]},
    "host-disk": {"volumes": [{"name": "d", "hostDisk": {"path": "/x/disk.img", "type": "Disk"}}]},
    "net-plugin": {"domain": {"devices": {"interfaces": [{"name": "n", "binding": {"name": "p"}}]}}},
    "net-claim": {
        "domain": {"devices": {"interfaces": [{"name": "n", "sriov": {}}]}},
        "networks": [{"name": "n", "resourceClaim": _CLAIMED}],
    },
    "efi-persistent": {"domain": {"firmware": {"bootloader": {"efi": {"secureBoot": False, "persistent": True}}}}},
    "tpm-persistent": {"domain": {"devices": {"tpm": {"persistent": True}}}},
    "gpu-claim": {"domain": {"devices": {"gpus": [{"name": "g", **_CLAIMED}]}}},
    "host-device-claim": {
        "domain": {"devices": {"hostDevices": [{"name": "h", "claimName": "c", "requestName": "r"}]}}
    },
    "device-tags": {"domain": {"devices": {"disks": [{**_DISK, "tag": "blue"}]}}},
    "agent-credentials": {
        "accessCredentials": [
            {"sshPublicKey": {"source": _KEYS, "propagationMethod": {"qemuGuestAgent": {"users": ["me"]}}}}
        ]
    },
    "sev-attestation": {"domain": {"launchSecurity": {"sev": {"attestation": {}}}}},
}
ANNOTATIONS = {
    "ignition": {"kubevirt.io/ignitiondata": "{}"},
    "hook-sidecars": {"hooks.kubevirt.io/hookSidecars": "[]"},
    "istio": {"sidecar.istio.io/inject": "true"},
}


def asking(feature: Feature, architecture: str = "amd64") -> VirtualMachineInstance:
    """A VMI that asks for a feature, and for as little else as can be."""
    return read(
        VirtualMachineInstance,
        {
            "metadata": {"name": "vm", "namespace": "n", "annotations": ANNOTATIONS.get(feature.key, {})},
            "spec": {"architecture": architecture, **SPECS.get(feature.key, {})},
        },
    )


def that_work(hypervisor: str, architecture: str = "amd64") -> list[Feature]:
    """Which features tests run for a hypervisor: those of which the registry says that they work, or do by a gate."""
    chosen = registry.get(hypervisor)
    return [feature for level in (Level.WORKS, Level.EXPERIMENTAL) for feature in at(level, chosen, architecture)]
