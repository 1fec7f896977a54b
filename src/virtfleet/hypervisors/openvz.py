"""OpenVZ containers; the driver runs inside the client library and calls vzctl."""

from __future__ import annotations

from typing import ClassVar

from virtfleet.hypervisors.base import Announced, Connection, Descriptor, Events, Overheads
from virtfleet.hypervisors.containers import IMPOSSIBLE_IN_CONTAINERS
from virtfleet.hypervisors.support import Supports, impossible


class OpenVZ(Announced):
    """OpenVZ."""

    descriptor: ClassVar[Descriptor] = Descriptor(
        name="openvz",
        title="OpenVZ",
        overheads=Overheads.of(
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
    )
    supports: ClassVar[Supports] = impossible(
        *IMPOSSIBLE_IN_CONTAINERS,
        (
            "container-disk claim ephemeral-disk config-disk filesystem disk-virtio",
            "an OpenVZ container has one file system, made from a template",
        ),
        ("cloud-init", "there is no disk to hand the data over"),
        ("gpu host-device", "libvirt's OpenVZ driver has no host devices"),
        ("guest-agent", "libvirt knows no guest agent in OpenVZ"),
        ("serial-console", "libvirt's OpenVZ driver opens no consoles"),
        ("kernel-boot", "a container runs on the node's kernel"),
    )
