"""Every rule for a VMI refuses what it is there for, at the field where KubeVirt refuses it, and in words of use."""

from __future__ import annotations

from typing import Any

import pytest

from virtfleet.admission.review import review
from virtfleet.installation import Installation

from .machines import BASE, GONE, causes, cluster, verdict, vmi

DEVICES = "domain.devices"
DISK = "spec.domain.devices.disks[0]"
ODD_DISK = "spec.domain.devices.disks.domain.devices.disks[0]"
NIC = "spec.domain.devices.interfaces[0]"
DEDICATED = "spec.domain.cpu.dedicatedCpuPlacement"
REQUESTS, LIMITS = "spec.domain.resources.requests", "spec.domain.resources.limits"
LUN = {"name": "root", "lun": {"bus": "scsi"}}
CLAIM = {"name": "data", "persistentVolumeClaim": {"claimName": "data"}}
EFI = "domain.firmware.bootloader.efi"
AFFINITY = "affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms"
REQUIRED_TERMS = "spec.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms"
KEY = {"sshPublicKey": {"source": {"secret": {"secretName": "k"}}, "propagationMethod": {"noCloud": {}}}}

# what is wrong -> (edits of a sound VMI, the field at fault)
REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    # names of other objects, sizes, networks and times that nothing could be made of
    **{
        f"a volume of {source}"[:60]: (
            {"volumes[1]": {"name": "more", **source}, f"{DEVICES}.disks[1]": {"name": "more", "disk": {}}},
            f"spec.volumes[1].{field}",
        )
        for source, field in (
            ({"secret": {"secretName": "No_Such"}}, "secret.secretName"),
            ({"configMap": {"name": "a..b"}}, "configMap.name"),
            ({"serviceAccount": {"serviceAccountName": "-x"}}, "serviceAccount.serviceAccountName"),
            ({"persistentVolumeClaim": {"claimName": "../../etc"}}, "persistentVolumeClaim.claimName"),
            ({"ephemeral": {"persistentVolumeClaim": {"claimName": "A"}}}, "ephemeral.persistentVolumeClaim.claimName"),
            ({"dataVolume": {"name": "a b"}}, "dataVolume.name"),
            ({"containerDisk": {"image": "x:1", "imagePullSecret": "x/y"}}, "containerDisk.imagePullSecret"),
            ({"sysprep": {"configMap": {"name": "É"}}}, "sysprep.configMap.name"),
            ({"cloudInitNoCloud": {"secretRef": {"name": "x" * 254}}}, "cloudInitNoCloud.secretRef.name"),
            ({"emptyDisk": {"capacity": "-1"}}, "emptyDisk.capacity"),
            ({"emptyDisk": {"capacity": "0"}}, "emptyDisk.capacity"),
            ({"emptyDisk": {"capacity": "500Pi"}}, "emptyDisk.capacity"),
        )
    },
    "a bad name of a credential's secret": (
        {"accessCredentials": [{"sshPublicKey": {**KEY["sshPublicKey"], "source": {"secret": {"secretName": "A"}}}}]},
        "spec.accessCredentials[0].sshPublicKey.source.secret.secretName",
    ),
    "a bad scheduler": ({"schedulerName": "My Scheduler"}, "spec.schedulerName"),
    "a bad priority class": ({"priorityClassName": "High!"}, "spec.priorityClassName"),
    "a grace period without end": (
        {"terminationGracePeriodSeconds": 2**62},
        "spec.terminationGracePeriodSeconds",
    ),
    **{
        f"guests in {text}": ({"networks[0].pod": {field: text}}, f"spec.networks[0].pod.{field}")
        for field, text in (
            *(("vmNetworkCIDR", t) for t in ("10.0.0.0/33", "1.1.1.1/32", "10.0.2.0/31", "10.0.2.0", "fd10::/64")),
            *(("vmNetworkCIDR", t) for t in ("300.0.0.0/24", "; reboot", "224.0.0.0/24", "127.0.0.0/8", "0.0.0.0/0")),
            *(
                ("vmIPv6NetworkCIDR", t)
                for t in ("fd10::/127", "10.0.2.0/24", "fd10::/129", "fe80::1%eth0/64", "ff02::/64")
            ),
        )
    },
    # memory
    "negative guest memory": ({"domain.memory.guest": "-1Gi"}, "spec.domain.memory.guest"),
    "guest memory without a unit": ({"domain.memory.guest": "512"}, "spec.domain.memory.guest"),
    "guest memory that is not a quantity": ({"domain.memory.guest": "much"}, "spec.domain.memory.guest"),
    "guest over limit": ({"domain.resources.limits": {"memory": "512Mi"}}, "spec.domain.memory.guest"),
    "guest over maxGuest": ({"domain.memory.maxGuest": "512Mi"}, "spec.domain.memory.guest"),
    "no memory": ({"domain.memory": GONE}, ""),
    "negative request": ({"domain.resources.requests": {"memory": "-64Mi"}}, f"{REQUESTS}.memory"),
    "tiny request": ({"domain.resources.requests": {"memory": "64"}}, f"{REQUESTS}.memory"),
    "negative limit": ({"domain.resources.limits": {"memory": "-64Mi"}}, f"{LIMITS}.memory"),
    "request over limit": (
        {"domain.resources": {"requests": {"memory": "4Gi"}, "limits": {"memory": "2Gi"}}},
        f"{REQUESTS}.memory",
    ),
    "page size in words": ({"domain.memory.hugepages": {"pageSize": "big"}}, "spec.domain.memory.hugepages.pageSize"),
    "page size of zero": ({"domain.memory.hugepages": {"pageSize": "0"}}, "spec.domain.memory.hugepages.pageSize"),
    "less than one page": (
        {"domain.memory": {"guest": "64Mi", "hugepages": {"pageSize": "1Gi"}}},
        f"{REQUESTS}.memory",
    ),
    "half a page": ({"domain.memory": {"guest": "1537Mi", "hugepages": {"pageSize": "2Mi"}}}, f"{REQUESTS}.memory"),
    "overhead without its gate": (
        {"domain.memory.reservedOverhead": {"addedOverhead": "1Mi"}},
        "spec.domain.memory.reservedOverhead",
    ),
    # CPU
    "text for a number": ({"domain.cpu.cores": "two"}, "spec.domain.cpu.cores"),
    "negative cores": ({"domain.cpu.cores": -1}, "spec.domain.cpu.cores"),
    "negative CPU request": ({"domain.resources.requests": {"cpu": "-1"}}, f"{REQUESTS}.cpu"),
    "negative CPU limit": ({"domain.resources.limits": {"cpu": "-1"}}, f"{LIMITS}.cpu"),
    "CPU request over limit": (
        {"domain.resources": {"requests": {"cpu": "2"}, "limits": {"cpu": "1"}}},
        f"{REQUESTS}.cpu",
    ),
    "more CPUs than numbers can count": ({"domain.cpu.cores": 2**62}, "spec.domain.cpu"),
    "more CPUs than any hypervisor has": (
        {"domain.cpu": {"cores": 64, "sockets": 64, "threads": 2}},
        "spec.domain.cpu",
    ),
    "more CPUs than can be added": ({"domain.cpu": {"cores": 2, "maxSockets": 2**31}}, "spec.domain.cpu"),
    "a CPU request without end": ({"domain.resources.requests": {"cpu": "10G"}}, "spec.domain.cpu"),
    "more sockets than the most": ({"domain.cpu": {"sockets": 4, "maxSockets": 2}}, "spec.domain.cpu.sockets"),
    "unknown CPU feature policy": (
        {"domain.cpu.features": [{"name": "x", "policy": "maybe"}]},
        "spec.domain.cpu.features[0].policy",
    ),
    "isolated emulator without dedicated CPUs": (
        {"domain.cpu.isolateEmulatorThread": True},
        "spec.domain.cpu.isolateEmulatorThread",
    ),
    "dedicated part of a CPU": (
        {"domain.cpu.dedicatedCpuPlacement": True, "domain.resources.requests": {"cpu": "1500m"}},
        f"{REQUESTS}.cpu",
    ),
    "dedicated CPUs with unequal request and limit": (
        {
            "domain.cpu.dedicatedCpuPlacement": True,
            "domain.resources": {"requests": {"cpu": "1"}, "limits": {"cpu": "2"}},
        },
        DEDICATED,
    ),
    "dedicated CPUs counted twice": (
        {"domain.cpu": {"cores": 4, "dedicatedCpuPlacement": True}, "domain.resources.requests": {"cpu": "2"}},
        DEDICATED,
    ),
    "dedicated CPUs with three threads": ({"domain.cpu": {"threads": 3, "dedicatedCpuPlacement": True}}, DEDICATED),
    "dedicated CPUs with unequal memory": (
        {
            "domain.cpu": {"cores": 1, "dedicatedCpuPlacement": True},
            "domain.resources": {"requests": {"memory": "1Gi"}, "limits": {"memory": "2Gi"}},
        },
        f"{REQUESTS}.memory",
    ),
    "NUMA without dedicated CPUs": (
        {"domain.cpu": {"cores": 1, "numa": {"guestMappingPassthrough": {}}}},
        "spec.domain.cpu.numa.guestMappingPassthrough",
    ),
    "realtime without dedicated CPUs": ({"domain.cpu": {"cores": 1, "realtime": {}}}, DEDICATED),
    "realtime without NUMA": (
        {"domain.cpu": {"cores": 1, "dedicatedCpuPlacement": True, "realtime": {}}},
        "spec.domain.cpu.numa.guestMappingPassthrough",
    ),
    "unknown machine type": ({"domain.machine.type": "pc-i440fx"}, "spec.domain.machine.type"),
    "threads on arm64": (
        {"architecture": "arm64", "domain.cpu": {"cores": 1, "threads": 2, "dedicatedCpuPlacement": True}},
        "spec.architecture",
    ),
    # firmware
    "EFI and BIOS": (
        {"domain.firmware.bootloader": {"efi": {"secureBoot": False}, "bios": {}}},
        "spec.domain.firmware.bootloader",
    ),
    "secure boot without SMM": ({EFI: {}}, "spec.domain"),
    "ACPI without a table": ({"domain.firmware.acpi": {}}, "spec.acpi"),
    "ACPI table in no volume": ({"domain.firmware.acpi": {"slicNameRef": "x"}}, "spec.acpi.slicNameRef"),
    "ACPI table in the wrong volume": ({"domain.firmware.acpi": {"msdmNameRef": "root"}}, "spec.acpi.msdmNameRef"),
    "kernel arguments without a kernel": (
        {"domain.firmware.kernelBoot": {"kernelArgs": "quiet"}},
        "spec.domain.firmware.kernelBoot.kernelArgs",
    ),
    "kernel container without an image": (
        {"domain.firmware.kernelBoot.container": {"kernelPath": "/k"}},
        "spec.domain.firmware.kernelBoot.container.image",
    ),
    "kernel container without a path": (
        {"domain.firmware.kernelBoot.container": {"image": "x"}},
        "spec.domain.firmware.kernelBoot.container",
    ),
    "kernel path that climbs": (
        {"domain.firmware.kernelBoot.container": {"image": "x", "kernelPath": "/a/../../k"}},
        "spec.domain.firmware.kernelBoot.container.kernelPath",
    ),
    "two kinds of launch security": ({"domain.launchSecurity": {"sev": {}, "tdx": {}}}, "spec.launchSecurity"),
    "TDX without its gate": ({"domain.launchSecurity": {"tdx": {}}}, "spec.launchSecurity"),
    "SEV without EFI": ({"domain.launchSecurity": {"sev": {}}}, "spec.launchSecurity"),
    "SEV with secure boot": (
        {"domain.launchSecurity": {"sev": {}}, EFI: {}, "domain.features.smm": {}},
        "spec.launchSecurity",
    ),
    "SNP with persistent variables": (
        {"domain.launchSecurity": {"snp": {}}, EFI: {"secureBoot": False, "persistent": True}},
        "spec.launchSecurity",
    ),
    "SEV attestation of a VM that starts at once": (
        {"domain.launchSecurity": {"sev": {"attestation": {}}}, EFI: {"secureBoot": False}},
        "spec.launchSecurity",
    ),
    "SEV with network boot": (
        {
            "domain.launchSecurity": {"sev": {}},
            EFI: {"secureBoot": False},
            f"{DEVICES}.interfaces[0].bootOrder": 1,
        },
        "spec.launchSecurity",
    ),
    "launch security on arm64": ({"architecture": "arm64", "domain.launchSecurity": {"sev": {}}}, "spec.architecture"),
    # disks
    "disk without a volume": ({f"{DEVICES}.disks[1]": {"name": "extra"}}, "spec.domain.devices.disks[1].name"),
    "disk without a name": ({f"{DEVICES}.disks[1]": {"disk": {}}}, "spec.domain.devices.disks[1].name"),
    "two disks of one name": ({f"{DEVICES}.disks[1]": {"name": "root"}}, "spec.domain.devices.disks[1].name"),
    "disk name with capitals": (
        {f"{DEVICES}.disks[0].name": "Root", "volumes[0].name": "Root"},
        f"{ODD_DISK}.name",
    ),
    "disk and CD-ROM at once": ({f"{DEVICES}.disks[0].cdrom": {"bus": "sata"}}, DISK),
    "unknown bus": ({f"{DEVICES}.disks[0].disk.bus": "floppy"}, f"{DISK}.disk.bus"),
    "IDE": ({f"{DEVICES}.disks[0].disk.bus": "ide"}, f"{DISK}.disk.bus"),
    "CD-ROM on virtio": ({f"{DEVICES}.disks[0]": {"name": "root", "cdrom": {"bus": "virtio"}}}, f"{DISK}.cdrom.bus"),
    "read-only SATA disk": ({f"{DEVICES}.disks[0].disk": {"bus": "sata", "readonly": True}}, f"{DISK}.disk.bus"),
    "I/O thread on SATA": (
        {f"{DEVICES}.disks[0]": {"name": "root", "disk": {"bus": "sata"}, "dedicatedIOThread": True}},
        ODD_DISK,
    ),
    "PCI address on SATA": (
        {f"{DEVICES}.disks[0].disk": {"bus": "sata", "pciAddress": "0000:81:01.0"}},
        "spec.domain.devices.disks.domain.devices.disks.disk[0].pciAddress",
    ),
    "PCI address of a disk in words": (
        {f"{DEVICES}.disks[0].disk.pciAddress": "first"},
        "spec.domain.devices.disks.domain.devices.disks.disk[0].pciAddress",
    ),
    "boot order of zero": ({f"{DEVICES}.disks[0].bootOrder": 0}, f"{DISK}.bootOrder"),
    "one boot order twice": (
        {f"{DEVICES}.disks[0].bootOrder": 1, f"{DEVICES}.interfaces[0].bootOrder": 1},
        f"{NIC}.bootOrder",
    ),
    "boot order of zero for an interface": ({f"{DEVICES}.interfaces[0].bootOrder": 0}, "spec[0].bootOrder"),
    "serial with spaces": ({f"{DEVICES}.disks[0].serial": "a b"}, f"{DISK}.serial"),
    "endless serial": ({f"{DEVICES}.disks[0].serial": "a" * 257}, f"{DISK}.serial"),
    "unknown cache mode": ({f"{DEVICES}.disks[0].cache": "warm"}, f"{DISK}.cache"),
    "unknown I/O mode": ({f"{DEVICES}.disks[0].io": "fast"}, f"{ODD_DISK}.io"),
    "unknown error policy": ({f"{DEVICES}.disks[0].errorPolicy": "hope"}, f"{DISK}.errorPolicy"),
    "block size that is no power of two": (
        {f"{DEVICES}.disks[0].blockSize": {"custom": {"logical": 1000, "physical": 4096}}},
        f"{DISK}.blockSize.custom.logical",
    ),
    "logical blocks over physical ones": (
        {f"{DEVICES}.disks[0].blockSize": {"custom": {"logical": 4096, "physical": 512}}},
        f"{DISK}.blockSize.custom.logical",
    ),
    "large blocks on SATA": (
        {
            f"{DEVICES}.disks[0].disk.bus": "sata",
            f"{DEVICES}.disks[0].blockSize": {"custom": {"logical": 4096, "physical": 4096}},
        },
        f"{DISK}.blockSize.custom.logical",
    ),
    "discard granularity that does not fit": (
        {f"{DEVICES}.disks[0].blockSize": {"custom": {"logical": 512, "physical": 512, "discardGranularity": 700}}},
        f"{DISK}.blockSize.custom.discardGranularity",
    ),
    "two ways to choose blocks": (
        {f"{DEVICES}.disks[0].blockSize": {"custom": {"logical": 512, "physical": 512}, "matchVolume": {}}},
        f"{DISK}.blockSize",
    ),
    "LUN of a container disk": ({f"{DEVICES}.disks[0]": LUN}, f"{DISK}.lun"),
    "reservation without its setting": (
        {f"{DEVICES}.disks[1]": {"name": "data", "lun": {"reservation": True}}, "volumes[1]": CLAIM},
        "spec.domain.devices.disks.luns.reservation",
    ),
    # volumes
    "two volumes of one name": (
        {"volumes[1]": {"name": "root", "emptyDisk": {"capacity": "1Gi"}}},
        "spec.volumes[1].name",
    ),
    "volume without a source": ({"volumes[0]": {"name": "root"}}, "spec.volumes[0]"),
    "volume with two sources": ({"volumes[0].emptyDisk": {"capacity": "1Gi"}}, "spec.volumes[0]"),
    "container path that climbs": ({"volumes[0].containerDisk.path": "../disk.img"}, "spec.volumes[0].containerDisk"),
    "root as container path": ({"volumes[0].containerDisk.path": "/"}, "spec.volumes[0].containerDisk"),
    "data volume without a name": (
        {"volumes[0]": {"name": "root", "dataVolume": {"name": ""}}},
        "spec.volumes[0].name",
    ),
    "cloud-init without data": (
        {"volumes[0]": {"name": "root", "cloudInitNoCloud": {}}},
        "spec.volumes[0].cloudInitNoCloud",
    ),
    "cloud-init with too much data": (
        {"volumes[0]": {"name": "root", "cloudInitNoCloud": {"userData": "x" * 2049}}},
        "spec.volumes[0].cloudInitNoCloud",
    ),
    "cloud-init with two sources": (
        {"volumes[0]": {"name": "root", "cloudInitConfigDrive": {"userData": "x", "secretRef": {"name": "s"}}}},
        "spec.volumes[0].cloudInitConfigDrive",
    ),
    "cloud-init that is not base64": (
        {"volumes[0]": {"name": "root", "cloudInitNoCloud": {"userDataBase64": "#cloud-config"}}},
        "spec.volumes[0].cloudInitNoCloud.userDataBase64",
    ),
    "network data that is too long": (
        {"volumes[0]": {"name": "root", "cloudInitNoCloud": {"userData": "x", "networkData": "y" * 2049}}},
        "spec.volumes[0].cloudInitNoCloud",
    ),
    "host disk without its gate": (
        {"volumes[0]": {"name": "root", "hostDisk": {"path": "/d.img", "type": "Disk"}}},
        "spec.volumes[0]",
    ),
    "host disk of unknown type": (
        {"volumes[0]": {"name": "root", "hostDisk": {"path": "/d.img", "type": "File"}}},
        "spec.volumes[0].hostDisk.type",
    ),
    **{
        f"host disk at {path}": (
            {"volumes[0]": {"name": "root", "hostDisk": {"path": path, "type": "Disk"}}},
            "spec.volumes[0].hostDisk.path",
        )
        for path in ("d.img", "/data/", "/data/..", "/data/../etc/d.img", "/")
    },
    "existing host disk with a size": (
        {"volumes[0]": {"name": "root", "hostDisk": {"path": "/d.img", "type": "Disk", "capacity": "1Gi"}}},
        "spec.volumes[0].hostDisk.capacity",
    ),
    "config map without a name": ({"volumes[0]": {"name": "root", "configMap": {}}}, "spec.volumes[0].configMap.name"),
    "secret without a name": ({"volumes[0]": {"name": "root", "secret": {}}}, "spec.volumes[0].secret.secretName"),
    "service account without a name": (
        {"volumes[0]": {"name": "root", "serviceAccount": {}}},
        "spec.volumes[0].serviceAccount.serviceAccountName",
    ),
    "metrics volume without its gate": ({"volumes[0]": {"name": "root", "downwardMetrics": {}}}, "spec.volumes[0]"),
    "two service account volumes": (
        {
            "volumes[1]": {"name": "a", "serviceAccount": {"serviceAccountName": "a"}},
            "volumes[2]": {"name": "b", "serviceAccount": {"serviceAccountName": "a"}},
        },
        "spec.volumes",
    ),
    "utility volume from the start": ({"utilityVolumes": [{"name": "u", "claimName": "c"}]}, "spec.utilityVolumes"),
    "file system on a claim without its gate": (
        {f"{DEVICES}.filesystems": [{"name": "data", "virtiofs": {}}], "volumes[1]": CLAIM},
        "spec.domain.devices.filesystems",
    ),
    "file system without a volume": (
        {f"{DEVICES}.filesystems": [{"name": "none", "virtiofs": {}}]},
        "spec.domain.devices.filesystems[0].name",
    ),
    "file system of a disk": (
        {f"{DEVICES}.filesystems": [{"name": "root", "virtiofs": {}}], f"{DEVICES}.disks": []},
        "spec.domain.devices.filesystems[0].name",
    ),
    "file system whose name the guest could not be told": (
        {
            f"{DEVICES}.filesystems": [{"name": "x" * 37, "virtiofs": {}}],
            "volumes[1]": {"name": "x" * 37, "secret": {"secretName": "s"}},
        },
        "spec.domain.devices.filesystems[0].name",
    ),
    "container path shown as a disk": (
        {"volumes[0]": {"name": "root", "containerPath": {"path": "/var/run/secrets"}}},
        "spec.domain.volumes[0]",
    ),
    # network
    "two pod networks": (
        {"networks[1]": {"name": "n2", "pod": {}}, f"{DEVICES}.interfaces[1]": {"name": "n2", "masquerade": {}}},
        "spec.interfaces",
    ),
    "network without a kind": ({"networks[0]": {"name": "default"}}, "spec.networks[0]"),
    "network of two kinds": ({"networks[0].multus": {"networkName": "x"}}, "spec.networks[0]"),
    "multus without a network": (
        {
            "networks[0]": {"name": "default", "multus": {"networkName": ""}},
            f"{DEVICES}.interfaces[0]": {"name": "default", "bridge": {}},
        },
        "spec.networks[0]",
    ),
    "network without an interface": (
        {"networks[1]": {"name": "red", "multus": {"networkName": "r"}}},
        "spec.networks[1].name",
    ),
    "interface without a network": (
        {f"{DEVICES}.interfaces[1]": {"name": "red", "bridge": {}}},
        "spec.domain.devices.interfaces[1].name",
    ),
    "two networks of one name": (
        {"networks[1]": {"name": "default", "multus": {"networkName": "r"}}},
        "spec.networks[1].name",
    ),
    "two interfaces of one name": (
        {f"{DEVICES}.interfaces[1]": {"name": "default", "bridge": {}}},
        "spec.domain.devices.interfaces[1].name",
    ),
    "two default networks of multus": (
        {
            "networks": [{"name": n, "multus": {"networkName": n, "default": True}} for n in ("a", "b")],
            f"{DEVICES}.interfaces": [{"name": n, "bridge": {}} for n in ("a", "b")],
        },
        "spec.networks",
    ),
    "no binding": ({f"{DEVICES}.interfaces[0]": {"name": "default"}}, NIC),
    "two bindings": ({f"{DEVICES}.interfaces[0].bridge": {}}, NIC),
    "masquerade on a secondary network": (
        {"networks[0]": {"name": "default", "multus": {"networkName": "x"}}},
        f"{NIC}.name",
    ),
    "MAC address of the bridge in the pod": (
        {f"{DEVICES}.interfaces[0].macAddress": "02:00:00:00:00:00"},
        f"{NIC}.macAddress",
    ),
    "malformed MAC address": ({f"{DEVICES}.interfaces[0].macAddress": "de:ad"}, f"{NIC}.macAddress"),
    "long MAC address": ({f"{DEVICES}.interfaces[0].macAddress": "de:ad:00:00:be:af:de:ad"}, f"{NIC}.macAddress"),
    "interface name with spaces": (
        {f"{DEVICES}.interfaces[0].name": "my net", "networks[0].name": "my net"},
        f"{NIC}.name",
    ),
    "unknown model": ({f"{DEVICES}.interfaces[0].model": "vmxnet3"}, f"{NIC}.model"),
    "PCI address of an interface in words": ({f"{DEVICES}.interfaces[0].pciAddress": "x"}, f"{NIC}.pciAddress"),
    "unknown link state": ({f"{DEVICES}.interfaces[0].state": "sideways"}, f"{NIC}.state"),
    "absent default interface": (
        {f"{DEVICES}.interfaces[0]": {"name": "default", "bridge": {}, "state": "absent"}},
        f"{NIC}.state",
    ),
    "slirp": ({f"{DEVICES}.interfaces[0].slirp": {}}, f"{NIC}.slirp"),
    "port of zero": ({f"{DEVICES}.interfaces[0].ports": [{"port": 0}]}, f"{NIC}.ports[0].port"),
    "port that does not exist": ({f"{DEVICES}.interfaces[0].ports": [{"port": 70000}]}, f"{NIC}.ports[0].port"),
    "unknown protocol": (
        {f"{DEVICES}.interfaces[0].ports": [{"port": 1, "protocol": "SCTP"}]},
        f"{NIC}.ports[0].protocol",
    ),
    "two ports of one name": (
        {f"{DEVICES}.interfaces[0].ports": [{"name": "a", "port": 1}, {"name": "a", "port": 2}]},
        f"{NIC}.ports[1].name",
    ),
    "one port twice": (
        {f"{DEVICES}.interfaces[0].ports": [{"port": 80}, {"port": 80, "protocol": "TCP"}]},
        f"{NIC}.ports[1].port",
    ),
    "port name with capitals": (
        {f"{DEVICES}.interfaces[0].ports": [{"name": "HTTP", "port": 1}]},
        f"{NIC}.ports[0].name",
    ),
    "port ranges without their gate": (
        {f"{DEVICES}.interfaces[0].portRanges": [{"start": 1, "end": 2, "protocol": "TCP"}]},
        f"{NIC}.name",
    ),
    "NTP server by name": (
        {f"{DEVICES}.interfaces[0].dhcpOptions.ntpServers": ["pool.ntp"]},
        f"{NIC}.dhcpOptions.ntpServers[0]",
    ),
    "DHCP option out of range": (
        {f"{DEVICES}.interfaces[0].dhcpOptions.privateOptions": [{"option": 1, "value": "x"}]},
        "spec",
    ),
    "DHCP option twice": (
        {f"{DEVICES}.interfaces[0].dhcpOptions.privateOptions": [{"option": 240, "value": "x"}] * 2},
        "spec",
    ),
    "claimed network without its gate": (
        {"networks[0]": {"name": "default", "resourceClaim": {"claimName": "c", "requestName": "r"}}},
        "spec.networks",
    ),
    # other devices
    "input on a bus that has none": (
        {f"{DEVICES}.inputs": [{"name": "t", "type": "tablet", "bus": "ps2"}]},
        "spec.domain.devices.inputs[0].bus",
    ),
    "keyboard": ({f"{DEVICES}.inputs": [{"name": "k", "type": "keyboard"}]}, "spec.domain.devices.inputs[0].type"),
    "unknown I/O thread policy": ({"domain.ioThreadsPolicy": "many"}, "spec.domain.ioThreadsPolicy"),
    "pool of no I/O threads": ({"domain.ioThreadsPolicy": "supplementalPool"}, "spec.domain.ioThreads.count"),
    "unknown sound model": ({f"{DEVICES}.sound": {"name": "s", "model": "sb16"}}, "spec.Sound"),
    "video without graphics": (
        {f"{DEVICES}.video": {"type": "vga"}, f"{DEVICES}.autoattachGraphicsDevice": False},
        "spec.video",
    ),
    "unknown video type": ({f"{DEVICES}.video": {"type": "voodoo"}}, "spec.domain.devices.video.type"),
    "unknown panic device": (
        {f"{DEVICES}.panicDevices": [{"model": "loud"}]},
        "spec.domain.devices.panicDevices[0].model",
    ),
    "wrong watchdog": ({f"{DEVICES}.watchdog": {"name": "w", "diag288": {}}}, "spec.domain.devices.watchdog"),
    "vsock without its gate": ({f"{DEVICES}.autoattachVSOCK": True}, "spec.domain.devices.autoattachVSOCK"),
    "metrics device without its gate": ({f"{DEVICES}.downwardMetrics": {}}, "spec.domain.devices.downwardMetrics"),
    "host devices without their gate": (
        {f"{DEVICES}.hostDevices": [{"name": "h", "deviceName": "x.io/a"}]},
        "spec.HostDevices",
    ),
    "two boot displays": (
        {f"{DEVICES}.gpus": [{"name": n, "deviceName": "x.io/a", "virtualGPUOptions": {"display": {}}} for n in "ab"]},
        "spec.GPUs",
    ),
    "GPU without a device": ({f"{DEVICES}.gpus": [{"name": "g"}]}, "spec.domain.devices.gpus"),
    "claimed GPU without a claim": (
        {f"{DEVICES}.gpus": [{"name": "g", "claimName": "c", "requestName": "r"}]},
        "spec.resourceClaims",
    ),
    # surroundings
    "host name with capitals": ({"hostname": "Not_Valid"}, "spec.hostname"),
    "subdomain with capitals": ({"subdomain": "Not_Valid"}, "spec.subdomain"),
    "two probes in one": (
        {"readinessProbe": {"httpGet": {"port": 1}, "exec": {"command": ["x"]}}},
        "spec.readinessProbe",
    ),
    "probe that asks nothing": ({"livenessProbe": {"periodSeconds": 3}}, "spec.livenessProbe"),
    "probe without the pod network": (
        {
            "networks[0]": {"name": "default", "multus": {"networkName": "x"}},
            f"{DEVICES}.interfaces[0]": {"name": "default", "bridge": {}},
            "readinessProbe": {"tcpSocket": {"port": 22}},
        },
        "spec.readinessProbe.tcpSocket",
    ),
    "negative grace period": ({"terminationGracePeriodSeconds": -1}, "spec.terminationGracePeriodSeconds"),
    "probe before its time": (
        {"livenessProbe": {"guestAgentPing": {}, "initialDelaySeconds": -5}},
        "spec.livenessProbe.initialDelaySeconds",
    ),
    "unknown start strategy": ({"startStrategy": "Later"}, "spec.startStrategy"),
    "paused with a liveness probe": (
        {"startStrategy": "Paused", "livenessProbe": {"guestAgentPing": {}}},
        "spec.startStrategy",
    ),
    "unknown eviction strategy": ({"evictionStrategy": "Panic"}, "spec.evictionStrategy"),
    "unknown DNS policy": ({"dnsPolicy": "Maybe"}, "spec.dnsPolicy"),
    "DNS policy None without servers": ({"dnsPolicy": "None"}, "spec.dnsConfig"),
    "name server by name": ({"dnsConfig": {"nameservers": ["dns"]}}, "nameservers"),
    "four name servers": ({"dnsConfig": {"nameservers": ["1.1.1.1"] * 4}}, "nameservers"),
    "search domain with spaces": ({"dnsConfig": {"searches": ["a b"]}}, "searchDomains"),
    "keys by a volume that is not there": (
        {"accessCredentials": [KEY]},
        "spec.accessCredentials[0].sshPublicKey.propagationMethod",
    ),
    "keys for nobody": (
        {
            "accessCredentials": [
                {
                    "sshPublicKey": {
                        "source": {"secret": {"secretName": "k"}},
                        "propagationMethod": {"qemuGuestAgent": {"users": []}},
                    }
                }
            ]
        },
        "spec.accessCredentials[0].sshPublicKey.propagationMethod.qemuGuestAgent.users",
    ),
    "credential of no kind": ({"accessCredentials": [{}]}, "spec.accessCredentials[0]"),
    "service account with capitals": ({"serviceAccountName": "Not_Valid"}, "spec.serviceAccountName"),
    "unknown architecture": ({"architecture": "riscv64"}, "spec.architecture"),
    "unknown node operator": (
        {AFFINITY: [{"matchExpressions": [{"key": "a", "operator": "Like", "values": ["b"]}]}]},
        f"{REQUIRED_TERMS}[0].matchExpressions[0].operator",
    ),
    "In without values": (
        {AFFINITY: [{"matchExpressions": [{"key": "a", "operator": "In"}]}]},
        f"{REQUIRED_TERMS}[0].matchExpressions[0].values",
    ),
    "no node terms": ({AFFINITY: []}, REQUIRED_TERMS),
    "affinity of the wrong type": ({"affinity": {"nodeAffinity": "gpu"}}, "spec.affinity.nodeAffinity"),
    "spread without skew": (
        {"topologySpreadConstraints": [{"topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule"}]},
        "spec.topologySpreadConstraints[0].maxSkew",
    ),
    "pod affinity without a topology": (
        {"affinity": {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [{}]}}},
        "spec.podAffinity.requiredDuringSchedulingIgnoredDuringExecution[0].topologyKey",
    ),
    # metadata
    "reserved label": ({"metadata.labels": {"kubevirt.io/created-by": "me"}}, "metadata.labels"),
    "ignition without its gate": ({"metadata.annotations": {"kubevirt.io/ignitiondata": "{}"}}, "metadata.annotations"),
    "sidecars without their gate": (
        {"metadata.annotations": {"hooks.kubevirt.io/hookSidecars": "[]"}},
        "metadata.annotations",
    ),
    "object name with capitals": ({"metadata.name": "My VM"}, "metadata.name"),
    # Hyper-V
    "synic without vpindex": (
        {"domain.features.hyperv": {"synic": {}, "vpindex": {"enabled": False}}},
        "spec.domain.features.hyperv.domain.features.hyperv.synic",
    ),
    "Hyper-V features beside passthrough": (
        {"domain.features": {"hyperv": {"relaxed": {}}, "hypervPassthrough": {}}},
        "spec.domain.features.hyperv",
    ),
    # arm64 and s390x
    "BIOS on arm64": (
        {"architecture": "arm64", "domain.firmware.bootloader": {"bios": {}}},
        "spec.domain.firmware.bootloader.bios",
    ),
    "CPU model on arm64": ({"architecture": "arm64", "domain.cpu.model": "host-model"}, "spec.domain.cpu.model"),
    "SATA on arm64": ({"architecture": "arm64", f"{DEVICES}.disks[0].disk.bus": "sata"}, f"{DISK}.disk.bus"),
    "watchdog on arm64": (
        {"architecture": "arm64", f"{DEVICES}.watchdog": {"name": "w"}},
        "spec.domain.devices.watchdog",
    ),
    "sound on arm64": ({"architecture": "arm64", f"{DEVICES}.sound": {"name": "s"}}, "spec.domain.devices.sound"),
    "VGA on s390x": ({"architecture": "s390x", f"{DEVICES}.video": {"type": "vga"}}, "spec.domain.devices.video.type"),
    "panic device on s390x": (
        {"architecture": "s390x", f"{DEVICES}.panicDevices": [{}]},
        "spec.domain.devices.panicDevices",
    ),
}


def test_the_base_is_sound() -> None:
    assert verdict(BASE).causes == []


@pytest.mark.parametrize("mistake", REFUSED)
def test_is_refused(mistake: str) -> None:
    edits, field = REFUSED[mistake]
    found = causes(edits)
    assert field in found, f"refused at {sorted(found) or 'no field'}"
    assert found[field].reason.startswith("FieldValue")
    assert len(found[field].message) > 20


def test_a_missing_field_does_not_hide_what_else_is_wrong() -> None:
    found = causes({f"{DEVICES}.sound": {}, f"{DEVICES}.disks[0].bootOrder": 0})
    assert set(found) == {"spec.domain.devices.sound.name", "spec.Sound", f"{DISK}.bootOrder"}


GATED = {
    "ReservedOverheadMemlock": {"domain.memory.reservedOverhead": {"addedOverhead": "1Mi"}},
    "HostDisk": {"volumes[0]": {"name": "root", "hostDisk": {"path": "/d.img", "type": "Disk"}}},
    "DownwardMetrics": {f"{DEVICES}.downwardMetrics": {}},
    "VSOCK": {f"{DEVICES}.autoattachVSOCK": True},
    "HostDevices": {f"{DEVICES}.hostDevices": [{"name": "h", "deviceName": "x.io/a"}]},
    "WorkloadEncryptionTDX": {"domain.launchSecurity": {"tdx": {}}, EFI: {"secureBoot": False}},
    "EnableVirtioFsStorageVolumes": {
        f"{DEVICES}.filesystems": [{"name": "data", "virtiofs": {}}],
        "volumes[1]": CLAIM,
    },
    "PortRangesSpec": {f"{DEVICES}.interfaces[0].portRanges": [{"start": 1, "end": 2, "protocol": "TCP"}]},
    "ExperimentalIgnitionSupport": {"metadata.annotations": {"kubevirt.io/ignitiondata": "{}"}},
    "PersistentReservation": {
        f"{DEVICES}.disks[1]": {"name": "data", "lun": {"bus": "scsi", "reservation": True}},
        "volumes[1]": CLAIM,
    },
}


@pytest.mark.parametrize("gate", GATED)
def test_a_feature_gate_opens_what_it_guards_and_is_named_where_it_is_shut(gate: str) -> None:
    assert causes(GATED[gate], cluster(gate)) == {}
    shut = causes(GATED[gate])
    assert shut and all(gate in cause.message for cause in shut.values())


def test_a_beta_feature_is_shut_by_name() -> None:
    edits = {f"{DEVICES}.interfaces[0]": {"name": "default", "passtBinding": {}}}
    assert causes(edits) == {}
    developer = {"featureGates": [], "disabledFeatureGates": ["PasstBinding"]}
    assert f"{NIC}.name" in causes(edits, cluster(developerConfiguration=developer))


def test_devices_are_checked_against_the_permitted_ones_where_those_are_listed() -> None:
    edits = {f"{DEVICES}.gpus": [{"name": "g", "deviceName": "x.io/a"}]}
    assert causes(edits) == {}
    permitted = {"pciHostDevices": [{"pciVendorSelector": "10de:1", "resourceName": "x.io/b"}]}
    refused = causes(edits, cluster(permittedHostDevices=permitted))
    assert "x.io/a" in refused["spec.domain.devices.gpus[0].deviceName"].message


def test_bridges_on_the_pod_network_can_be_forbidden() -> None:
    strict = cluster(network={"permitBridgeInterfaceOnPodNetwork": False})
    assert f"{NIC}.name" in causes({f"{DEVICES}.interfaces[0]": {"name": "default", "bridge": {}}}, strict)
    none = {f"{DEVICES}.interfaces": GONE, "networks": GONE}
    assert "autoattachPodInterface" in causes(none, strict)["spec.domain.devices.interfaces"].message


def test_a_component_of_virtfleet_may_set_reserved_labels() -> None:
    from virtfleet.admission.updates import Requester

    where = cluster()
    obj = vmi({"metadata.labels": {"kubevirt.io/nodeName": "n"}})
    controller = Requester("system:serviceaccount:kubevirt:kubevirt-controller")
    assert review(obj, where).causes
    assert not [c for c in review(obj, where, controller).causes if c.field == "metadata.labels"]


def test_the_hypervisor_must_exist_fit_the_pool_and_have_what_is_asked_for() -> None:
    assert "qemu-kvm" in causes({"hypervisor": "parallels"})["spec.hypervisor"].message
    refused = causes({"hypervisor": "lxc", f"{DEVICES}.tpm": {}})
    assert "lxc" in refused["spec.domain.devices.tpm"].message
    pool = {
        "name": "mshv",
        "virtLauncherImage": "launcher:mshv",
        "nodeSelector": {"mshv": "true"},
        "hypervisor": "mshv",
        "selector": {"vmLabels": {"matchLabels": {"kubevirt.io/hypervisor": "mshv"}}},
    }
    gates = {"developerConfiguration": {"featureGates": ["VirtHandlerPools"]}}
    where = Installation({"spec": {"configuration": gates, "virtHandlerPools": [pool]}})
    labelled = {"metadata.labels": {"kubevirt.io/hypervisor": "mshv"}}
    assert causes(labelled, where) == {}
    conflict = causes({**labelled, "hypervisor": "lxc"}, where)["spec.hypervisor"].message
    assert "lxc" in conflict and "mshv" in conflict


@pytest.mark.parametrize("kind", ["VirtualMachine", "VirtualMachineInstanceReplicaSet"])
def test_templates_are_told_at_once_what_their_hypervisor_lacks(kind: str) -> None:
    asked = vmi({"hypervisor": "lxc", f"{DEVICES}.tpm": {}, "metadata.labels": {"app": "a"}})
    spec = {
        "template": {"metadata": {"labels": {"app": "a"}}, "spec": asked["spec"]},
        **({"runStrategy": "Always"} if kind == "VirtualMachine" else {"selector": {"matchLabels": {"app": "a"}}}),
    }
    found = review({**asked, "kind": kind, "spec": spec}, cluster(hypervisors=[{"name": "lxc"}]))
    fields = [f"spec.template.spec.{DEVICES}.{field}" for field in ("disks", "tpm")]
    assert [c.field for c in found.causes if "lxc" in c.message] == fields
    asked["spec"]["hypervisor"] = "xen"
    found = review({**asked, "kind": kind, "spec": spec}, cluster())
    assert "spec.template.spec.hypervisor" in [c.field for c in found.causes]


def test_all_causes_are_told_at_once() -> None:
    found = causes({"hostname": "No_", "domain.machine.type": "x", f"{DEVICES}.disks[0].cache": "warm"})
    assert set(found) == {"spec.hostname", "spec.domain.machine.type", f"{DISK}.cache"}


def test_a_kernel_without_an_image_is_refused_in_the_words_that_tools_look_for() -> None:
    container = "spec.domain.firmware.kernelBoot.container"
    for given, words in (
        ({"image": "", "kernelPath": "/k"}, f"{container} must be defined with an image; set {container}.image"),
        ({"image": "x"}, f"{container} must be defined with at least one of the following: kernelPath, initrdPath"),
    ):
        [cause] = verdict(vmi({"domain.firmware.kernelBoot.container": given})).causes
        assert cause.message == words


def test_null_means_not_there() -> None:
    assert causes({"hostname": None, "domain.cpu": None, "affinity": None}) == {}
