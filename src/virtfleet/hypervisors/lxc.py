"""Linux containers, through libvirt's own LXC driver.

A container has no hardware: it has directories, one of them its root; its network interfaces are ends of veth pairs in
a bridge of the Pod; of a kernel's command line, `init=` and what follows `--` remain. It shares the node's kernel, so
its users are nobody there: root of the guest has rights in the guest's own namespaces and over its own files only.
"""

from __future__ import annotations

import shlex
from typing import ClassVar
from xml.etree.ElementTree import Element

from virtfleet.api import traits
from virtfleet.api.disks import Volume
from virtfleet.api.vmi import VirtualMachineInstance as VMI
from virtfleet.domain import common, interfaces, paths, volumes
from virtfleet.domain.context import Context
from virtfleet.domain.errors import DomainError
from virtfleet.domain.xml import add
from virtfleet.hypervisors import daemons
from virtfleet.hypervisors.base import DaemonPlan, DaemonSettings, Descriptor, Evidence, Hypervisor, Overheads
from virtfleet.hypervisors.containers import IDS, IMPOSSIBLE_IN_CONTAINERS, first_id
from virtfleet.hypervisors.support import Supports, impossible, works

ROOT = "rootfs"  # the file system of this name is the container's root
_SEEDS = "/var/lib/cloud/seed"  # where cloud-init looks before it looks for disks
_LXC_CONF = 'log_with_libvirtd = 0\nsecurity_driver = "none"\n'
_FOREIGN = "the node's kernel would read a file system that somebody else made; give the container a directory"
# What the guest's root may not even do in its own namespaces, beside what libvirt takes away: modules, clock, audit.
_WITHHELD = ("sys_rawio", "syslog", "mac_override", "sys_pacct", "wake_alarm", "block_suspend")


class Lxc(Hypervisor):
    """Linux containers."""

    descriptor: ClassVar[Descriptor] = Descriptor(
        name="lxc",
        title="Linux containers",
        overheads=Overheads(daemon="32Mi", vmm="24Mi"),
        launcher_image="virt-launcher-lxc",
        uri="lxc:///system",
        daemon="virtlxcd",
        root=True,
        capabilities=(
            *("SYS_ADMIN", "SETPCAP", "SETUID", "SETGID", "SETFCAP"),  # namespaces, mounts, control groups, users
            *("CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "MKNOD"),  # the guest's files and its /dev
            *("NET_ADMIN", "NET_BIND_SERVICE", "KILL"),  # its network, DHCP, its end
            "SYS_BOOT",  # else the runtime's seccomp profile, which the guest has too, keeps it from shutting down
        ),
        container=True,
        processes=("libvirt_lxc",),
        disk_bus="virtio",
    )
    evidence = Evidence.GUESTS
    supports: ClassVar[Supports] = {
        **works(
            "disk-virtio container-disk claim cloud-init config-disk filesystem",
            "net-bridge net-masquerade kernel-boot serial-console",
        ),
        **impossible(
            *IMPOSSIBLE_IN_CONTAINERS,
            ("guest-agent", "containers have no agent channel"),
            ("live-migration", "libvirt's LXC driver cannot migrate"),
            ("gpu host-device", "a container gets USB, block and character devices only, which a VMI cannot name"),
        ),
    }

    def build(self, vmi: VMI, context: Context) -> Element:
        root = common.document(vmi, "lxc")
        common.memory(root, vmi)
        common.vcpus(root, traits.topology(vmi).vcpus)
        _init(root, vmi)
        ids = add(root, "idmap")
        for kind in ("uid", "gid"):
            add(ids, kind, start=0, target=first_id(vmi.metadata.uid), count=IDS)
        features = add(root, "features")
        add(features, "privnet")  # no network of the Pod's own, even without interfaces
        capabilities = add(features, "capabilities", policy="default")
        for name in _WITHHELD:
            add(capabilities, name, state="off")
        common.clock(root, vmi)
        common.reboot_policy(root, vmi)
        devices = add(root, "devices")
        _filesystems(devices, vmi)
        _interfaces(devices, vmi, context)
        add(add(devices, "console", type="pty"), "target", type="lxc", port=0)
        return root

    def daemon(self, settings: DaemonSettings) -> DaemonPlan:
        return daemons.plan(self.descriptor, settings, {"lxc.conf": _LXC_CONF})

    def devices(self, vmi: VMI, *, emulated: bool) -> tuple[str, ...]:
        return ("fuse",)  # libvirt shows the guest its own /proc/meminfo with it

    def identity(self, device: Element) -> str:
        """By its hardware address, which the handler chooses for every interface: the driver forgets aliases."""
        mac = device.find("mac")
        return mac.get("address", "").lower() if mac is not None else ""


def _init(root: Element, vmi: VMI) -> None:
    """The container's first process: `init=` of the kernel's command line, with the arguments after `--`."""
    firmware = vmi.spec.domain.firmware
    line = shlex.split(firmware.kernel_boot.kernel_args if firmware and firmware.kernel_boot else "")
    words, arguments = (line[: line.index("--")], line[line.index("--") + 1 :]) if "--" in line else (line, [])
    init = next((word.removeprefix("init=") for word in words if word.startswith("init=")), "/sbin/init")
    os = add(root, "os")
    add(os, "type", "exe")
    add(os, "init", init)
    for argument in arguments:
        add(os, "initarg", argument)


def _filesystems(devices: Element, vmi: VMI) -> None:
    by_name = {volume.name: volume for volume in vmi.spec.volumes}
    shared = [wanted.name for wanted in vmi.spec.domain.devices.filesystems]
    if ROOT not in shared:
        raise DomainError(f"a container needs a root: a file system named {ROOT!r}")
    for name in shared:
        _directory(devices, vmi, _volume(by_name, name), "/" if name == ROOT else f"/mnt/{name}")
    for disk in vmi.spec.domain.devices.disks:
        volume = _volume(by_name, disk.name)
        if not (volumes.seed(volume) or volumes.config_kind(volume)):
            raise DomainError(f"disk {disk.name!r}: {_FOREIGN}, in domain.devices.filesystems")
        _directory(devices, vmi, volume, f"/mnt/{disk.name}")


def _volume(by_name: dict[str, Volume], name: str) -> Volume:
    if name not in by_name:
        raise DomainError(f"{name!r}: spec.volumes has no volume of that name")
    return by_name[name]


def _directory(devices: Element, vmi: VMI, volume: Volume, target: str) -> None:
    """Mount a directory of the Pod; configuration is mounted for reading only."""
    name, read_only = volume.name, True
    if volumes.seed(volume):
        path = paths.cloud_init_seed(vmi.metadata.namespace, vmi.metadata.name)
        target = f"{_SEEDS}/{'nocloud' if volume.cloud_init_no_cloud else 'config_drive'}"
    elif kind := volumes.config_kind(volume):
        path = paths.config_dir(kind, name)
    elif volume.container_path:
        path = volume.container_path.path  # the launcher's own files, which stay the launcher's
    elif volume.container_disk:
        path, read_only = paths.container_root(name), False
    elif volume.persistent_volume_claim or volume.data_volume:
        path, read_only = paths.mapped_dir(name), False
    else:
        raise DomainError(f"volume {name!r} is no directory that could be mounted")
    element = add(devices, "filesystem", type="mount", accessmode="passthrough")
    add(element, "source", dir=path)
    add(element, "target", dir=target)
    if read_only:
        add(element, "readonly")


def _interfaces(devices: Element, vmi: VMI, context: Context) -> None:
    for number, interface in enumerate(interfaces.present(vmi)):
        element = interfaces.on_bridge(devices, interface, context, "a container")
        add(element, "guest", dev=f"eth{number}")
        if interface.state == "down":
            add(element, "link", state="down")
        add(element, "alias", name=f"ua-{interface.name}")
