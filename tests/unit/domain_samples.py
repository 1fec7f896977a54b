"""VMIs that each use one part of the API, and what that part looks like in a QEMU domain.

A sample is a base VMI with some fields set, given by their path below spec, and fragments that its domain must have.
"""

# ruff: noqa: E501, RUF012 (fragments of documents read best on one line; the defaults are never written to)
from __future__ import annotations

import json
from typing import Any, NamedTuple

from virtfleet.api.view import read
from virtfleet.api.vmi import VirtualMachineInstance
from virtfleet.domain.context import AssignedDevice, Context, NumaCell

UID = "11111111-1111-4111-8111-111111111111"
PRIVATE = f"/var/run/kubevirt-private/{UID}"

BASE: dict[str, Any] = {
    "metadata": {"name": "vmi", "namespace": "default", "uid": UID, "annotations": {}},
    "spec": {
        "architecture": "amd64",
        "domain": {
            "cpu": {"cores": 1, "sockets": 1, "threads": 1, "model": "host-model"},
            "memory": {"guest": "512Mi"},
            "machine": {"type": "q35"},
            "features": {"acpi": {"enabled": True}},
            "firmware": {"uuid": "aaaaaaaa-aaaa-4aaa-aaaa-aaaaaaaaaaaa"},
            "devices": {
                "disks": [{"name": "root", "disk": {"bus": "virtio"}}],
                "interfaces": [{"name": "default", "masquerade": {}}],
            },
        },
        "networks": [{"name": "default", "pod": {}}],
        "volumes": [{"name": "root", "containerDisk": {"image": "x"}}],
    },
    "status": {"runtimeUser": 107},
}

# A node with two NUMA cells of four CPUs, two threads to a core, and with devices.
NODE = Context(
    cpus=tuple(range(8)),
    cells=(
        NumaCell(0, ((0, (0, 1)), (1, (0, 1)), (2, (2, 3)), (3, (2, 3))), ((0, 10), (1, 21))),
        NumaCell(1, ((4, (4, 5)), (5, (4, 5)), (6, (6, 7)), (7, (6, 7))), ((0, 21), (1, 10))),
    ),
    gpus={"whole": AssignedDevice("pci", "0000:81:00.0"), "virtual": AssignedDevice("mdev", UID)},
    host_devices={"card": AssignedDevice("pci", "0000:82:00.1"), "stick": AssignedDevice("usb", "1:5")},
    sriov={"default": "0000:65:00.1"},
    block_volumes=frozenset({"block"}),
    preallocated_volumes=frozenset({"thick"}),
)


class Sample(NamedTuple):
    """One use of the API."""

    name: str
    fields: dict[str, Any]
    fragments: tuple[str, ...]
    status: dict[str, Any] = {}
    annotations: dict[str, str] = {}
    context: Context = NODE


def vmi(sample: Sample) -> VirtualMachineInstance:
    """The VMI of a sample."""
    obj = json.loads(json.dumps(BASE))
    for path, value in sample.fields.items():
        target = obj["spec"]
        *parents, last = path.split(".")
        for parent in parents:
            target = target.setdefault(parent, {})
        target[last] = value
    obj["status"] |= sample.status
    obj["metadata"]["annotations"] |= sample.annotations
    return read(VirtualMachineInstance, obj)


def disk(source: dict[str, Any], name: str = "data", **device: Any) -> dict[str, Any]:
    """Fields for a second disk."""
    device = device or {"disk": {"bus": "virtio"}}
    root = BASE["spec"]["domain"]["devices"]["disks"][0]
    return {
        "domain.devices.disks": [root, {"name": name, **device}],
        "volumes": [BASE["spec"]["volumes"][0], {"name": name, **source}],
    }


def interface(**fields: Any) -> dict[str, Any]:
    return {"domain.devices.interfaces": [{"name": "default", **fields}]}


CLAIM = {"persistentVolumeClaim": {"claimName": "c"}}
DEDICATED = {"cores": 2, "sockets": 1, "threads": 2, "dedicatedCpuPlacement": True, "model": "host-passthrough"}

SAMPLES = [
    # --- disks
    Sample(
        "a claim",
        disk(CLAIM),
        (
            '<source file="/var/run/kubevirt-private/vmi-disks/data/disk.img"/>',
            '<driver name="qemu" type="raw" error_policy="stop" discard="unmap"/>',
        ),
    ),
    Sample("a claim that is a block device", disk(CLAIM, "block"), ('<source dev="/dev/block" name="block"/>',)),
    Sample("a preallocated claim", disk(CLAIM, "thick"), ('<driver name="qemu" type="raw" error_policy="stop"/>',)),
    Sample(
        "an empty disk", disk({"emptyDisk": {"capacity": "1Gi"}}),
        ('<source file="/var/run/libvirt/empty-disks/data.qcow2"/>',),
    ),
    Sample(
        "a layer over a claim", disk({"ephemeral": CLAIM}),
        (
            '<backingStore type="file"><format type="raw"/>'
            '<source file="/var/run/kubevirt-private/vmi-disks/data/disk.img"/></backingStore>',
        ),
    ),
    Sample(
        "a disk image of the node", disk({"hostDisk": {"path": "/data/my.img", "type": "Disk"}}),
        ('<source file="/var/run/kubevirt-private/vmi-disks/data/my.img"/>',),
    ),
    Sample(
        "a config drive", disk({"cloudInitConfigDrive": {"userData": "x"}}),
        ('<source file="/var/run/kubevirt-ephemeral-disks/cloud-init-data/default/vmi/configdrive.iso"/>',),
    ),
    Sample(
        "a service account", disk({"serviceAccount": {"serviceAccountName": "x"}}),
        ('<source file="/var/run/kubevirt-private/service-account-disk/service-account.iso"/>',),
    ),
    Sample(
        "metrics of the node as a disk", disk({"downwardMetrics": {}}),
        (
            '<source file="/var/run/kubevirt-private/downwardapi-disks/vhostmd0"/>',
            '<driver name="qemu" type="raw" error_policy="stop"/>',
        ),
    ),
    Sample(
        "a CD-ROM drive without a disc",
        {"domain.devices.disks": [{"name": "drive", "cdrom": {"bus": "sata", "tray": "open"}}]},
        (
            '<disk device="cdrom" type="block"><source/><target bus="sata" dev="sda" tray="open"/>'
            '<driver name="qemu" type="raw" error_policy="stop" discard="unmap"/><readonly/><alias name="ua-drive"/></disk>',
        ),
    ),
    Sample(
        "a LUN with reservations", disk(CLAIM, "block", lun={"bus": "scsi", "reservation": True, "readonly": True}),
        (
            '<reservations managed="no" migration="yes"><source type="unix" '
            'path="/var/run/kubevirt/daemons/pr/pr-helper.sock" mode="client"/></reservations>',
            '<address type="drive" controller="0" bus="0" unit="0"/>',
        ),
    ),
    Sample(
        "a shared disk with a serial number", disk(CLAIM, disk={"bus": "scsi"}, shareable=True, serial="S1"),
        ("<shareable/>", "<serial>S1</serial>",
         '<driver name="qemu" type="raw" error_policy="stop" cache="none" discard="unmap"/>'),
    ),
    Sample(
        "cache, I/O, error policy and boot order",
        disk(CLAIM, disk={"bus": "sata"}, cache="writeback", io="threads", errorPolicy="report", bootOrder=2),
        (
            '<driver name="qemu" type="raw" error_policy="report" cache="writeback" io="threads" discard="unmap"/>',
            '<boot order="2"/>',
        ),
    ),
    Sample(
        "a disk at a PCI address", disk(CLAIM, disk={"bus": "virtio", "pciAddress": "0000:0a:00.0", "readonly": True}),
        ('<address type="pci" domain="0x0000" bus="0x0a" slot="0x00" function="0x0"/>', "<readonly/>"),
    ),
    Sample(
        "block sizes by number",
        {"domain.devices.disks": [{"name": "root", "disk": {"bus": "virtio"}, "blockSize": {
            "custom": {"logical": 512, "physical": 4096, "discardGranularity": 0}}}]},
        ('<blockio logical_block_size="512" physical_block_size="4096" discard_granularity="0"/>',),
    ),
    Sample(
        "a disk that was added while the VM ran", disk(CLAIM, disk={"bus": "scsi"}),
        ('<source file="/var/run/kubevirt/hotplug-disks/data.img"/>', '<target bus="scsi" dev="sdc"/>'),
        status={"volumeStatus": [
            {"name": "root", "target": "vda"},
            {"name": "data", "target": "sdc", "hotplugVolume": {}, "phase": "Ready"}]},
    ),
    # --- I/O threads
    Sample(
        "a thread for one disk alone",
        disk(CLAIM, disk={"bus": "virtio"}, dedicatedIOThread=True),
        ("<iothreads>2</iothreads>",
         '<driver name="qemu" type="raw" error_policy="stop" discard="unmap" iothread="2"/>'),
    ),
    Sample(
        "threads by the number of CPUs",
        {**disk(CLAIM), "domain.ioThreadsPolicy": "auto", "domain.resources": {"requests": {"cpu": "2"}}},
        ("<iothreads>2</iothreads>",
         '<driver name="qemu" type="raw" error_policy="stop" discard="unmap" iothread="2"/>'),
    ),
    Sample(
        "a pool of threads",
        {"domain.ioThreadsPolicy": "supplementalPool", "domain.ioThreads": {"supplementalPoolThreadCount": 2}},
        ("<iothreads>2</iothreads>", '<iothreads><iothread id="1"/><iothread id="2"/></iothreads>'),
    ),
    Sample(
        "a thread for the SCSI controller", disk(CLAIM, disk={"bus": "scsi"}, dedicatedIOThread=True),
        ('<controller type="scsi" index="0" model="virtio-non-transitional"><driver iothread="1" queues="1"/></controller>',),
    ),
    # --- network
    Sample(
        "an interface with everything",
        interface(bridge={}, model="virtio", macAddress="de:ad:00:00:be:af", pciAddress="0000:0b:00.0", bootOrder=1,
                  acpiIndex=3, state="down"),
        (
            '<interface type="ethernet"><model type="virtio-non-transitional"/>'
            '<address type="pci" domain="0x0000" bus="0x0b" slot="0x00" function="0x0"/><acpi index="3"/>'
            '<mac address="de:ad:00:00:be:af"/><boot order="1"/><link state="down"/><alias name="ua-default"/></interface>',
        ),
    ),
    Sample(
        "queues for interfaces",
        {"domain.devices.networkInterfaceMultiqueue": True, "domain.cpu": {"cores": 4}},
        ('<driver name="vhost" queues="4"/>',),
    ),
    Sample(
        "a virtual function of a network card", interface(sriov={}, bootOrder=1),
        (
            '<hostdev type="pci" managed="no"><source>'
            '<address type="pci" domain="0x0000" bus="0x65" slot="0x00" function="0x1"/></source>'
            '<alias name="ua-sriov-default"/><boot order="1"/></hostdev>',
        ),
    ),
    Sample(
        "passt with ports", interface(passtBinding={}, ports=[{"port": 80}, {"port": 53, "protocol": "UDP"}]),
        (
            '<portForward proto="tcp"><range start="80"/></portForward>',
            '<backend type="passt" logFile="/var/run/kubevirt/passt.log"/>',
            '<access mode="shared"/>',
        ),
        status={"interfaces": [{"name": "default", "podInterfaceName": "eth0"}]},
    ),
    # --- CPU and memory
    Sample(
        "a named CPU model with features",
        {"domain.cpu": {"cores": 2, "model": "Skylake-Server", "features": [{"name": "apic", "policy": "require"}]}},
        (
            '<cpu mode="custom"><model>Skylake-Server</model><topology sockets="1" cores="2" threads="1"/>'
            '<feature name="apic" policy="require"/><feature name="mpx" policy="disable"/></cpu>',
        ),
    ),
    Sample(
        "CPUs that can be added", {"domain.cpu": {"cores": 1, "sockets": 1, "maxSockets": 2}},
        (
            '<vcpu placement="static">2</vcpu>',
            '<vcpus><vcpu id="0" enabled="yes" hotpluggable="no"/><vcpu id="1" enabled="no" hotpluggable="yes"/></vcpus>',
        ),
    ),
    Sample(
        "CPUs of its own, and one for the emulator",
        {"domain.cpu": {**DEDICATED, "isolateEmulatorThread": True}},
        (
            '<cputune><vcpupin vcpu="0" cpuset="0"/><vcpupin vcpu="1" cpuset="1"/><vcpupin vcpu="2" cpuset="2"/>'
            '<vcpupin vcpu="3" cpuset="3"/><emulatorpin cpuset="4"/></cputune>',
            '<kvm><hint-dedicated state="on"/></kvm>',
        ),
    ),
    Sample(
        "the emulator on two CPUs, to make their number even",
        {"domain.cpu": {**DEDICATED, "isolateEmulatorThread": True}},
        ('<emulatorpin cpuset="4,5"/>',),
        annotations={"alpha.kubevirt.io/EmulatorThreadCompleteToEvenParity": ""},
    ),
    Sample(
        "NUMA nodes of the host, with real-time CPUs",
        {
            "domain.cpu": {**DEDICATED, "cores": 3, "numa": {"guestMappingPassthrough": {}}, "realtime": {}},
            "domain.memory": {"guest": "6Mi", "hugepages": {"pageSize": "2Mi"}},
        },
        (
            '<cell id="0" cpus="0,1,2,3" memory="4194304" unit="b">'
            '<distances><sibling id="0" value="10"/><sibling id="1" value="21"/></distances></cell>',
            '<cell id="1" cpus="4,5" memory="2097152" unit="b">'
            '<distances><sibling id="0" value="21"/><sibling id="1" value="10"/></distances></cell>',
            '<numatune><memory mode="strict" nodeset="0,1"/><memnode cellid="0" mode="strict" nodeset="0"/>'
            '<memnode cellid="1" mode="strict" nodeset="1"/></numatune>',
            "<nosharepages/>",
            '<pmu state="off"/>',
        ),
    ),
    Sample(
        "I/O threads on the guest's CPUs",
        {"domain.cpu": DEDICATED, "domain.ioThreadsPolicy": "shared"},
        ('<iothreadpin iothread="1" cpuset="0,1,2,3"/>',),
    ),
    Sample(
        "huge pages without a memfd", {"domain.memory": {"guest": "1Gi", "hugepages": {"pageSize": "2Mi"}}},
        ("<memoryBacking><hugepages/></memoryBacking>",), annotations={"kubevirt.io/memfd": "false"},
    ),
    Sample(
        "memory as requested", {"domain.memory": {}, "domain.resources": {"requests": {"memory": "1.5Gi"}}},
        ('<memory unit="b">1610612736</memory>',),
    ),
    # --- firmware and machine
    Sample(
        "secure boot",
        {"domain.firmware": {"bootloader": {"efi": {}}}, "domain.features": {"smm": {}}},
        (
            '<loader readonly="yes" secure="yes" type="pflash">/usr/share/edk2/ovmf/OVMF_CODE.secboot.fd</loader>',
            '<nvram template="/usr/share/edk2/ovmf/OVMF_VARS.secboot.fd">'
            "/var/run/kubevirt-private/libvirt/qemu/nvram/vmi_VARS.fd</nvram>",
            "<smm/>",
            '<video><model heads="1" type="bochs"/></video>',
        ),
    ),
    Sample(
        "a kernel", {"domain.firmware": {"kernelBoot": {"kernelArgs": "console=ttyS0", "container": {
            "image": "x", "kernelPath": "/boot/vmlinuz", "initrdPath": "/boot/initrd"}}}},
        (
            "<kernel>/var/run/kubevirt/container-disks/kernel-boot/vmlinuz</kernel>",
            "<initrd>/var/run/kubevirt/container-disks/kernel-boot/initrd</initrd>",
            "<cmdline>console=ttyS0</cmdline>",
        ),
    ),
    Sample(
        "BIOS on the serial console, started paused",
        {"domain.firmware": {"bootloader": {"bios": {"useSerial": True}}, "serial": "S9"}, "startStrategy": "Paused"},
        ('<bios useserial="yes"/>', '<bootmenu enable="yes" timeout="10000"/>', '<entry name="serial">S9</entry>'),
    ),
    Sample(
        "an ACPI table",
        {**disk({"secret": {"secretName": "s"}}), "domain.firmware": {"acpi": {"slicNameRef": "data"}}},
        ('<acpi><table type="slic">/var/run/kubevirt-private/secret/data/slic.bin</table></acpi>',),
    ),
    Sample(
        "clock and timers",
        {"domain.clock": {"utc": {"offsetSeconds": 60}, "timer": {
            "rtc": {"tickPolicy": "catchup", "track": "guest"}, "pit": {"tickPolicy": "delay"},
            "hpet": {"present": False}, "kvm": {}, "hyperv": {}}}},
        (
            '<clock offset="utc" adjustment="60"><timer name="rtc" track="guest" tickpolicy="catchup" present="yes"/>'
            '<timer name="pit" present="yes" tickpolicy="delay"/><timer name="kvmclock" present="yes"/>'
            '<timer name="hpet" present="no"/><timer name="hypervclock" present="yes"/></clock>',
        ),
    ),
    Sample("a time zone", {"domain.clock": {"timezone": "Europe/Paris"}}, ('<clock offset="timezone" timezone="Europe/Paris"/>',)),
    Sample(
        "a time stamp counter that must not change",
        {"domain.cpu": {"cores": 1, "features": [{"name": "invtsc", "policy": "require"}]}},
        ('<clock><timer name="tsc" frequency="2400000000"/></clock>',),
        status={"topologyHints": {"tscFrequency": 2400000000}},
    ),
    Sample(
        "features", {"domain.features": {"apic": {}, "kvm": {"hidden": True}, "pvspinlock": {"enabled": False},
                                         "hypervPassthrough": {"enabled": True}}},
        (
            '<features><acpi/><apic/><hyperv mode="passthrough"/><kvm><hidden state="on"/></kvm><pvspinlock state="off"/>'
            '<vmport state="off"/></features>',
        ),
    ),
    Sample(
        "AMD SEV-ES",
        {"domain.launchSecurity": {"sev": {"policy": {"encryptedState": True}, "session": "s", "dhCert": "d"}},
         "domain.firmware": {"bootloader": {"efi": {"secureBoot": False}}}, "domain.devices.rng": {}},
        (
            '<launchSecurity type="sev"><policy>0x5</policy><dhCert>d</dhCert><session>s</session></launchSecurity>',
            '<rng model="virtio-non-transitional"><backend model="random">/dev/urandom</backend><driver iommu="on"/></rng>',
            '<driver name="vhost" iommu="on"/>',
        ),
    ),
    Sample(
        "AMD SEV-SNP",
        {"domain.launchSecurity": {"snp": {}}, "domain.firmware": {"bootloader": {"efi": {"secureBoot": False}}}},
        (
            '<launchSecurity type="sev-snp"><policy>0x30000</policy></launchSecurity>',
            '<loader readonly="yes" secure="no" type="rom">/usr/share/edk2/ovmf/OVMF.amdsev.fd</loader>',
        ),
    ),
    Sample("a reboot that ends the VM", {"domain.rebootPolicy": "Terminate"}, ("<on_reboot>destroy</on_reboot>",)),
    # --- devices
    Sample(
        "TPMs", {"domain.devices.tpm": {"persistent": True}},
        ('<tpm model="tpm-crb"><backend type="emulator" version="2.0" persistent_state="yes"/></tpm>',),
    ),
    Sample(
        "a USB tablet", {"domain.devices.inputs": [{"name": "t", "type": "tablet"}]},
        ('<input type="tablet" bus="usb"><alias name="ua-t"/></input>',
         '<controller type="usb" index="0" model="qemu-xhci"/>'),
    ),
    Sample(
        "USB devices of the user's machine", {"domain.devices.clientPassthrough": {}},
        (f'<redirdev type="unix" bus="usb"><source mode="bind" path="{PRIVATE}/virt-usbredir-3"/></redirdev>',),
    ),
    Sample(
        "no balloon, no console, no graphics",
        {"domain.devices.autoattachMemBalloon": False, "domain.devices.autoattachSerialConsole": False,
         "domain.devices.autoattachGraphicsDevice": False},
        ('<memballoon model="none"/>',),
    ),
    Sample("another video device", {"domain.devices.video": {"type": "virtio"}},
           ('<video><model heads="1" type="virtio" vram="16384"/></video>',)),
    Sample(
        "a whole GPU and a virtual one",
        {"domain.devices.gpus": [{"name": "virtual", "deviceName": "v"}, {"name": "whole", "deviceName": "w"}]},
        (
            f'<hostdev type="mdev" mode="subsystem" model="vfio-pci" display="on" ramfb="on"><source><address uuid="{UID}"/>'
            '</source><alias name="ua-gpu-virtual"/></hostdev>',
        ),
    ),
    Sample(
        "host devices", {"domain.devices.hostDevices": [{"name": "stick", "deviceName": "s"}, {"name": "card", "deviceName": "c"}]},
        (
            '<hostdev type="usb" mode="subsystem"><source><address bus="1" device="5"/></source>'
            '<alias name="ua-usb-host-stick"/></hostdev>',
        ),
    ),
    Sample("a vsock", {}, ('<vsock model="virtio-non-transitional"><cid auto="no" address="42"/></vsock>',),
           status={"VSOCKCID": 42}),
    Sample(
        "Ignition", {}, (
            '<q:commandline xmlns:q="http://libvirt.org/schemas/domain/qemu/1.0"><q:arg value="-fw_cfg"/>'
            '<q:arg value="name=opt/com.coreos/config,file=/var/run/libvirt/ignition-dir/default/vmi/data.ign"/></q:commandline>',
        ), annotations={"kubevirt.io/ignitiondata": '{"ignition": {}}'},
    ),
    Sample(
        "PCI devices on the root complex", {},
        ('<address type="pci" domain="0x0000" bus="0x00" slot="0x02" function="0x0"/>',),
        annotations={"kubevirt.io/placePCIDevicesOnRootComplex": "true"},
    ),
    Sample("no 64 bit PCI hole", {}, ('<controller type="pci" index="0" model="pcie-root"><pcihole64 unit="KiB">0</pcihole64></controller>',),
           annotations={"kubevirt.io/disablePCIHole64": "true"}),
]  # fmt: skip

OTHER_ARCHITECTURES = [
    Sample(
        "arm64",
        {"architecture": "arm64", "domain.machine": {"type": "virt"}, "domain.cpu": {"cores": 1, "maxSockets": 4},
         "domain.firmware": {"bootloader": {"efi": {"secureBoot": False}}}},
        (
            '<type arch="aarch64" machine="virt">hvm</type>',
            '<loader readonly="yes" secure="no" type="pflash">/usr/share/AAVMF/AAVMF_CODE.fd</loader>',
            '<input type="tablet" bus="usb"/>', '<input type="keyboard" bus="usb"/>',
            '<video><model heads="1" type="virtio"/></video>', '<controller type="usb" index="0" model="qemu-xhci"/>',
            '<vcpu placement="static">1</vcpu>',
        ),
    ),
    Sample(
        "s390x",
        {"architecture": "s390x", "domain.machine": {"type": ""}, "domain.launchSecurity": {},
         "domain.memory": {"guest": "1Gi", "hugepages": {"pageSize": "1Mi"}},
         "domain.devices.watchdog": {"name": "w", "diag288": {"action": "reset"}}},
        (
            '<type arch="s390x" machine="s390-ccw-virtio">hvm</type>', '<input type="keyboard" bus="virtio"/>',
            '<controller type="scsi" index="0" model="virtio-scsi"><driver iommu="on"/></controller>',
            '<watchdog model="diag288" action="reset"><alias name="ua-w"/></watchdog>',
            "<memoryBacking><hugepages/></memoryBacking>",
        ),
    ),
]  # fmt: skip
