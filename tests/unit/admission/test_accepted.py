"""What people ask for and may have: accepted alone and in combinations, and libvirt's domain can be built from it."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from examples import examples
from virtfleet.admission.review import complete, review
from virtfleet.api import crds
from virtfleet.api.view import read
from virtfleet.api.vmi import VirtualMachineInstance
from virtfleet.cli.look.render import pretend_node
from virtfleet.hypervisors import registry
from virtfleet.kube.resource import VMIS
from virtfleet.local.apiserver.kinds.crds import custom_schema

from .machines import GONE, cluster, verdict, vmi

DEVICES = "domain.devices"
GATES = ("HostDevices", "HostDisk", "DownwardMetrics", "VSOCK", "WorkloadEncryptionTDX", "EnableVirtioFsStorageVolumes")
WHERE = cluster(*GATES, "PortRangesSpec", "PersistentReservation", "CPUManager")


def disk(source: dict[str, Any], name: str = "extra", **attributes: Any) -> dict[str, Any]:
    shown = {"name": name, **(attributes or {"disk": {"bus": "virtio"}})}
    return {f"{DEVICES}.disks[1]": shown, "volumes[1]": {"name": name, **source}}


CLAIM = {"persistentVolumeClaim": {"claimName": "c"}}
SOUND: dict[str, dict[str, Any]] = {
    "cores": {"domain.cpu.cores": 4},
    "sockets and threads": {"domain.cpu": {"sockets": 2, "threads": 2, "cores": 2}},
    "a CPU model": {"domain.cpu.model": "Skylake-Server"},
    "CPU features": {"domain.cpu.features": [{"name": "aes", "policy": "require"}, {"name": "pcid"}]},
    "as many CPUs as there are": {"domain.cpu": {"cores": 64, "sockets": 64}},
    "more CPUs than any node has": {"domain.resources.requests": {"cpu": "1M"}},
    "guests in a network of their own": {
        "networks[0].pod": {"vmNetworkCIDR": "10.10.010.0/24", "vmIPv6NetworkCIDR": "fd10:0:2::2/120"}
    },
    "addresses with zeros before a number": {
        "dnsPolicy": "None",
        "dnsConfig": {"nameservers": ["8.8.8.8", "01.1.1.1", "fd00::010"]},
        "domain.devices.interfaces[0].dhcpOptions": {"ntpServers": ["0127.0.0.3"]},
    },
    "more memory than any node has": {"domain.memory.guest": "1Ei"},
    "CPU resources": {"domain.resources": {"requests": {"cpu": "500m"}, "limits": {"cpu": "2"}}},
    "dedicated CPUs": {"domain.cpu": {"cores": 2, "dedicatedCpuPlacement": True, "isolateEmulatorThread": True}},
    "NUMA": {
        "domain.cpu": {"cores": 2, "dedicatedCpuPlacement": True, "numa": {"guestMappingPassthrough": {}}},
        "domain.memory": {"guest": "1Gi", "hugepages": {"pageSize": "2Mi"}},
    },
    "huge pages": {"domain.memory": {"guest": "2Gi", "hugepages": {"pageSize": "1Gi"}}},
    "memory by request": {"domain.memory": GONE, "domain.resources": {"requests": {"memory": "2Gi"}}},
    "memory limit": {"domain.resources": {"limits": {"memory": "2Gi"}}},
    "EFI": {"domain.firmware.bootloader": {"efi": {"secureBoot": False}}},
    "secure boot": {"domain.firmware.bootloader": {"efi": {}}, "domain.features.smm": {}},
    "BIOS with serial": {"domain.firmware.bootloader": {"bios": {"useSerial": True}}},
    "kernel boot": {
        "domain.firmware.kernelBoot": {
            "kernelArgs": "quiet",
            "container": {"image": "k:v1", "kernelPath": "/boot/vmlinuz", "initrdPath": "/boot/initrd"},
        }
    },
    "SEV": {"domain.launchSecurity": {"sev": {}}, "domain.firmware.bootloader": {"efi": {"secureBoot": False}}},
    "TDX": {"domain.launchSecurity": {"tdx": {}}, "domain.firmware.bootloader": {"efi": {"secureBoot": False}}},
    "clock": {"domain.clock": {"utc": {}, "timer": {"hpet": {"present": False}, "rtc": {}, "hyperv": {}}}},
    "Hyper-V": {"domain.features.hyperv": {"synictimer": {"direct": {}}, "tlbflush": {}, "spinlocks": {}, "evmcs": {}}},
    "hidden KVM": {"domain.features.kvm": {"hidden": True}},
    "data volume": disk({"dataVolume": {"name": "d"}}),
    "claim": disk(CLAIM),
    "a claim that KubeVirt waits for in vain": disk({"persistentVolumeClaim": {"claimName": "noSuchClaim"}}),
    "LUN": disk(CLAIM, lun={"bus": "scsi", "reservation": True}),
    "empty disk": disk({"emptyDisk": {"capacity": "2Gi"}}),
    "ephemeral disk": disk({"ephemeral": CLAIM}),
    "host disk": disk({"hostDisk": {"path": "/d.img", "type": "DiskOrCreate", "capacity": "1Gi"}}),
    "cloud-init": disk({"cloudInitNoCloud": {"userData": "#cloud-config"}}, name="ci"),
    "cloud-init in lines of base64": disk(
        {"cloudInitNoCloud": {"userDataBase64": "I2Nsb3Vk\nLWNvbmZpZw==\n"}}, name="ci"
    ),
    "config drive": disk({"cloudInitConfigDrive": {"secretRef": {"name": "s"}}}, name="cd"),
    "config map": disk({"configMap": {"name": "c"}}, name="cm"),
    "secret": disk({"secret": {"secretName": "s"}}, name="sec"),
    "service account": disk({"serviceAccount": {"serviceAccountName": "a"}}, name="sa"),
    "downward API": disk({"downwardAPI": {"fields": [{"path": "l", "fieldRef": {"fieldPath": "metadata.labels"}}]}}),
    "sysprep": disk({"sysprep": {"configMap": {"name": "c"}}}, name="sys", cdrom={"bus": "sata"}),
    "empty CD-ROM drive": {f"{DEVICES}.disks[1]": {"name": "drive", "cdrom": {"bus": "sata"}}},
    "metrics disk": disk({"downwardMetrics": {}}, name="met"),
    "file system on a claim": {
        f"{DEVICES}.filesystems": [{"name": "f", "virtiofs": {}}],
        "volumes[1]": {"name": "f", **CLAIM},
    },
    "file system from a secret": {
        f"{DEVICES}.filesystems": [{"name": "f", "virtiofs": {}}],
        "volumes[1]": {"name": "f", "secret": {"secretName": "s"}},
    },
    "disk without a bus": {f"{DEVICES}.disks[0]": {"name": "root"}},
    "disk settings": {
        f"{DEVICES}.disks[0]": {
            "name": "root",
            "disk": {"bus": "virtio", "pciAddress": "0000:81:01.0"},
            "cache": "none",
            "io": "native",
            "serial": "abc-1",
            "bootOrder": 1,
            "errorPolicy": "report",
            "dedicatedIOThread": True,
            "blockSize": {"custom": {"logical": 512, "physical": 4096}},
        }
    },
    "I/O threads": {"domain.ioThreadsPolicy": "auto"},
    "pool of I/O threads": {
        "domain.ioThreadsPolicy": "supplementalPool",
        "domain.ioThreads": {"supplementalPoolThreadCount": 2},
    },
    "queues": {
        f"{DEVICES}.blockMultiQueue": True,
        f"{DEVICES}.networkInterfaceMultiqueue": True,
        "domain.cpu.cores": 2,
    },
    "no network": {f"{DEVICES}.interfaces": GONE, "networks": GONE, f"{DEVICES}.autoattachPodInterface": False},
    "default network": {f"{DEVICES}.interfaces": GONE, "networks": GONE},
    "ports": {f"{DEVICES}.interfaces[0].ports": [{"name": "web", "port": 80}, {"port": 53, "protocol": "UDP"}]},
    "port ranges": {f"{DEVICES}.interfaces[0].portRanges": [{"start": 1000, "end": 2000, "protocol": "TCP"}]},
    "second network": {
        f"{DEVICES}.interfaces[1]": {"name": "red", "bridge": {}, "macAddress": "DE-AD-00-00-BE-AF", "state": "down"},
        "networks[1]": {"name": "red", "multus": {"networkName": "ns/red"}},
    },
    "SR-IOV": {
        f"{DEVICES}.interfaces[1]": {"name": "fast", "sriov": {}},
        "networks[1]": {"name": "fast", "multus": {"networkName": "sriov"}},
    },
    "binding plugin": {f"{DEVICES}.interfaces[0]": {"name": "default", "binding": {"name": "slirp"}}},
    "network boot": {f"{DEVICES}.interfaces[0].bootOrder": 1, f"{DEVICES}.interfaces[0].model": "e1000e"},
    "GPU": {f"{DEVICES}.gpus": [{"name": "g", "deviceName": "nvidia.com/A100"}]},
    "host device": {f"{DEVICES}.hostDevices": [{"name": "h", "deviceName": "intel.com/qat"}]},
    "TPM": {f"{DEVICES}.tpm": {"persistent": True}},
    "watchdog": {f"{DEVICES}.watchdog": {"name": "w", "i6300esb": {"action": "poweroff"}}},
    "sound": {f"{DEVICES}.sound": {"name": "s", "model": "ich9"}},
    "tablet": {f"{DEVICES}.inputs": [{"name": "t", "type": "tablet"}]},
    "panic devices": {f"{DEVICES}.panicDevices": [{"model": "isa"}, {"model": "hyperv"}]},
    "video": {f"{DEVICES}.video": {"type": "virtio"}},
    "no graphics": {f"{DEVICES}.autoattachGraphicsDevice": False, f"{DEVICES}.autoattachSerialConsole": False},
    "vsock": {f"{DEVICES}.autoattachVSOCK": True},
    "USB redirection": {f"{DEVICES}.clientPassthrough": {}},
    "old virtio": {f"{DEVICES}.useVirtioTransitional": True},
    "rng": {f"{DEVICES}.rng": {}},
    "probes": {"readinessProbe": {"tcpSocket": {"port": 22}}, "livenessProbe": {"guestAgentPing": {}}},
    "paused start": {"startStrategy": "Paused"},
    "live migration": {"evictionStrategy": "LiveMigrate"},
    "DNS": {"dnsPolicy": "None", "dnsConfig": {"nameservers": ["1.1.1.1"], "searches": ["example.com"]}},
    "names": {"hostname": "web-1", "subdomain": "vms"},
    "chassis": {"domain.chassis": {"manufacturer": "m", "sku": "s"}},
    "arm64": {"architecture": "arm64"},
    "s390x": {"architecture": "s390x"},
}


# A document names every CPU that may be plugged in: a million take seconds, and show no more than some thousand.
BUILT = SOUND | {"more CPUs than any node has": {"domain.resources.requests": {"cpu": "5k"}}}


def build(obj: dict[str, Any]) -> None:
    machine = read(VirtualMachineInstance, obj)
    registry.get("qemu-kvm").build(machine, pretend_node(machine, WHERE))


SCHEMA = custom_schema(VMIS, crds.schema(VirtualMachineInstance))


@pytest.mark.parametrize("wish", SOUND)
def test_is_accepted(wish: str) -> None:
    assert verdict(vmi(SOUND[wish]), WHERE).causes == []


@pytest.mark.parametrize("wish", SOUND)
def test_defaults_and_wishes_are_fields_that_exist(wish: str) -> None:
    assert SCHEMA.shape(complete(vmi(SOUND[wish]), WHERE)[0]) == []


@settings(max_examples=examples(400), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(st.sampled_from(list(BUILT)), min_size=1, max_size=4, unique=True))
def test_a_domain_can_be_built_from_what_is_accepted(wishes: list[str]) -> None:
    edits: dict[str, Any] = {}
    for wish in wishes:
        # Later wishes win where two want one place.
        clashing = [path for path in edits if any(path.startswith(new) or new.startswith(path) for new in BUILT[wish])]
        edits = {path: value for path, value in edits.items() if path not in clashing} | BUILT[wish]
    obj, found = complete(vmi(edits), WHERE)
    assert found.allowed
    if review(obj, WHERE).allowed:
        build(obj)
