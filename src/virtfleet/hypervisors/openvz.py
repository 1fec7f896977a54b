"""OpenVZ containers; libvirt's driver runs inside the client library and calls vzctl."""

from __future__ import annotations

from typing import ClassVar
from xml.etree.ElementTree import Element

from virtfleet.api import traits
from virtfleet.api.vmi import VirtualMachineInstance as VMI
from virtfleet.domain import common, interfaces
from virtfleet.domain.context import Context
from virtfleet.domain.errors import DomainError
from virtfleet.domain.xml import add, child
from virtfleet.hypervisors.base import Connection, Descriptor, Events, Evidence, Hypervisor, Overheads
from virtfleet.hypervisors.containers import IMPOSSIBLE_IN_CONTAINERS, first_id
from virtfleet.hypervisors.support import Supports, impossible, works

_FIRST = 101  # numbers up to 100 are OpenVZ's own


class OpenVZ(Hypervisor):
    """OpenVZ. A container's one file system is made from a template: the image of its `containerDisk`, by name."""

    descriptor: ClassVar[Descriptor] = Descriptor(
        name="openvz",
        title="OpenVZ",
        overheads=Overheads(
            daemon="0",
            vmm="24Mi",
            estimate="what libvirt's LXC driver keeps beside a container; the driver lives in the launcher",
        ),
        launcher_image="virt-launcher-openvz",
        connection=Connection.LIBRARY,
        events=Events.POLLED,
        uri="openvz:///system",
        root=True,
        privileged=True,
        container=True,
        disk_bus="virtio",
        program="vzctl",
    )
    refusal = (
        "VMs cannot run on hypervisor openvz yet: VirtFleet writes their documents, but looks for a VM by its name,"
        " and an OpenVZ container has a number"
    )
    evidence = Evidence.DRIVER
    supports: ClassVar[Supports] = impossible(
        *IMPOSSIBLE_IN_CONTAINERS,
        ("claim config-disk disk-virtio", "an OpenVZ container has one file system, made from a template"),
        ("cloud-init", "there is no disk to hand the data over"),
        ("gpu host-device", "libvirt's OpenVZ driver has no host devices"),
        ("guest-agent", "libvirt knows no guest agent in OpenVZ"),
        ("serial-console", "libvirt's OpenVZ driver opens no consoles"),
        ("kernel-boot", "a container runs on the node's kernel"),
        ("live-migration", "VirtFleet has not driven a migration of OpenVZ yet"),
    ) | works("container-disk filesystem net-bridge net-masquerade")

    def build(self, vmi: VMI, context: Context) -> Element:
        root = common.document(vmi, "openvz")
        child(root, "name").text = str(number(vmi))
        common.memory(root, vmi)
        common.vcpus(root, traits.topology(vmi).vcpus)
        os = add(root, "os")
        add(os, "type", "exe")
        add(os, "init", "/sbin/init")
        devices = add(root, "devices")
        template = next((v.container_disk.image for v in vmi.spec.volumes if v.container_disk), "")
        if not template:
            raise DomainError("spec.volumes: an OpenVZ container is made from a template: name it as a containerDisk")
        element = add(devices, "filesystem", type="template")
        add(element, "source", name=template.rpartition("/")[2].partition(":")[0])
        add(element, "target", dir="/")
        for interface in interfaces.present(vmi):
            interfaces.on_bridge(devices, interface, context, "a container")
        return root


def number(vmi: VMI) -> int:
    """What OpenVZ knows a container by: it follows from the VMI's UID, as its users would."""
    return _FIRST + first_id(vmi.metadata.uid) // 65536
