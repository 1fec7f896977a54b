"""Documents of the hypervisors that cannot all run here are valid by libvirt's own schema."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import pytest
from lxml import etree

from tests.unit.domain_samples import NODE
from virtfleet.api.view import read
from virtfleet.api.vmi import VirtualMachineInstance
from virtfleet.domain.context import Context, Host
from virtfleet.domain.xml import text
from virtfleet.hypervisors import registry

SCHEMA = Path("/usr/share/libvirt/schemas/domain.rng")

DISKS = [{"name": n, "disk": {"bus": "virtio"}} for n in ("image", "claim", "block", "empty", "seed", "config")]
VOLUMES = [
    {"name": "image", "containerDisk": {"image": "x"}},
    {"name": "rootfs", "containerDisk": {"image": "x"}},
    {"name": "claim", "persistentVolumeClaim": {"claimName": "x"}},
    {"name": "block", "persistentVolumeClaim": {"claimName": "x"}},
    {"name": "empty", "emptyDisk": {"capacity": "1Gi"}},
    {"name": "seed", "cloudInitNoCloud": {"userData": "x"}},
    {"name": "config", "configMap": {"name": "x"}},
]
INTERFACES = [{"name": "default", "masquerade": {}, "macAddress": "de:ad:00:00:be:af"}, {"name": "red", "bridge": {}}]
KERNEL = {
    "kernelBoot": {
        "kernelArgs": "init=/bin/sh -- -l",
        "container": {"image": "x", "kernelPath": "/k", "initrdPath": "/i"},
    }
}


@cache
def schema() -> etree.RelaxNG:
    if not SCHEMA.exists():
        pytest.skip("libvirt's schemas are not installed")
    return etree.RelaxNG(etree.parse(str(SCHEMA)))


@pytest.mark.parametrize("name", ["mshv", "lxc", "cloud-hypervisor"])
@pytest.mark.parametrize(
    "domain",
    [
        {},
        {"firmware": KERNEL, "rebootPolicy": "Terminate"},
        {"cpu": {"cores": 2, "threads": 2, "dedicatedCpuPlacement": True}},
        {"devices": {"rng": {}, "networkInterfaceMultiqueue": True}},
    ],
    ids=["small", "kernel", "pinned", "devices"],
)
def test_documents_are_valid(name: str, domain: dict[str, Any]) -> None:
    hypervisor = registry.get(name)
    disks = {"disks": DISKS}
    if hypervisor.descriptor.container:
        shared = [{"name": name, "virtiofs": {}} for name in ("rootfs", "claim")]
        disks = {"disks": DISKS[-2:], "filesystems": shared}
    devices = {**disks, "interfaces": INTERFACES} | domain.get("devices", {})
    spec = {
        "domain": {"memory": {"guest": "128Mi"}} | domain | {"devices": devices},
        "volumes": VOLUMES,
        "networks": [{"name": "default", "pod": {}}, {"name": "red", "multus": {"networkName": "red"}}],
    }
    vmi = read(VirtualMachineInstance, {"metadata": {"name": "vm", "namespace": "ns", "uid": "u"}, "spec": spec})
    document = hypervisor.adapt(hypervisor.build(vmi, NODE), Context(host=Host(libvirt_version=9_000_000)))
    schema().assertValid(etree.fromstring(text(document)))
