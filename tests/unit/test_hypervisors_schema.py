"""Documents of hypervisors that cannot all run here are valid by libvirt's own schema of domains.

Each hypervisor says how far its documents were tested, and no further than a test here, or beside this one, has seen.
"""

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
from virtfleet.domain.errors import DomainError
from virtfleet.domain.xml import text
from virtfleet.hypervisors import registry
from virtfleet.hypervisors.base import Evidence, Hypervisor

SCHEMA = Path("/usr/share/libvirt/schemas/domain.rng")
NAMES = [name for name in registry.names() if registry.get(name).evidence is not Evidence.NONE]

IMAGES = {
    "image": {"containerDisk": {"image": "x"}},
    "claim": {"persistentVolumeClaim": {"claimName": "x"}},
    "block": {"persistentVolumeClaim": {"claimName": "x"}},
    "empty": {"emptyDisk": {"capacity": "1Gi"}},
}
MADE = {"seed": {"cloudInitNoCloud": {"userData": "x"}}, "config": {"configMap": {"name": "x"}}}
OWN = {"own": {"hostDisk": {"path": "/store/vm/disk.img"}}}
ROOT = {"rootfs": {"containerDisk": {"image": "x"}}}
INTERFACES = [{"name": "default", "masquerade": {}, "macAddress": "de:ad:00:00:be:af"}, {"name": "red", "bridge": {}}]
NETWORKS = [{"name": "default", "pod": {}}, {"name": "red", "multus": {"networkName": "red"}}]
KERNEL = {
    "kernelBoot": {
        "kernelArgs": "init=/bin/sh -- -l",
        "container": {"image": "x", "kernelPath": "/k", "initrdPath": "/i"},
    }
}
EFI = {"firmware": {"bootloader": {"efi": {"secureBoot": False}}}}
# A domain, and the feature without which a hypervisor is not asked for it.
DOMAINS: dict[str, tuple[str, dict[str, Any]]] = {
    "small": ("", {}),
    "kernel": ("kernel-boot", {"firmware": KERNEL, "rebootPolicy": "Terminate"}),
    "efi": ("efi", EFI),
    "pinned": ("cpu-pinning", {"cpu": {"cores": 2, "threads": 2, "dedicatedCpuPlacement": True}}),
    "devices": ("rng", {"devices": {"rng": {}, "networkInterfaceMultiqueue": True}}),
}


@cache
def schema() -> etree.RelaxNG:
    if not SCHEMA.exists():
        pytest.skip("libvirt's schemas are not installed")
    return etree.RelaxNG(etree.parse(str(SCHEMA)))


def vmi_for(hypervisor: Hypervisor, domain: dict[str, Any]) -> VirtualMachineInstance:
    """A VMI with all kinds of volumes and interfaces that the hypervisor has."""
    volumes = IMAGES if hypervisor.has("claim") else {} if hypervisor.descriptor.container else OWN
    volumes = {n: v for n, v in volumes.items() if n != "block" or hypervisor.descriptor.name != "bhyve"}
    disks = {**volumes, **(MADE if hypervisor.has("config-disk") else {})}
    devices: dict[str, Any] = {}
    if hypervisor.descriptor.container:
        disks = {n: v for n, v in disks.items() if n in MADE}
        devices["filesystems"] = [
            {"name": n, "virtiofs": {}} for n in ("rootfs", *(v for v in volumes if v == "claim"))
        ]
    bus = "virtio" if hypervisor.has("disk-virtio") else "scsi"
    devices["disks"] = [{"name": name, "disk": {"bus": bus}} for name in disks]
    devices["interfaces"] = INTERFACES if hypervisor.has("net-bridge") else []
    spec = {
        "domain": {"memory": {"guest": "128Mi"}} | domain | {"devices": devices | domain.get("devices", {})},
        "volumes": [{"name": name, **source} for name, source in {**ROOT, **volumes, **MADE}.items()],
        "networks": NETWORKS if devices["interfaces"] else [],
    }
    return read(VirtualMachineInstance, {"metadata": {"name": "vm", "namespace": "ns", "uid": "u"}, "spec": spec})


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("case", DOMAINS)
def test_documents_are_valid(name: str, case: str) -> None:
    hypervisor = registry.get(name)
    feature, domain = DOMAINS[case]
    if feature and not hypervisor.has(feature):
        return  # refused when it is applied, which tests of the registry see
    built = hypervisor.build(vmi_for(hypervisor, domain), NODE)
    document = hypervisor.adapt(built, Context(host=Host(libvirt_version=9_000_000)))
    schema().assertValid(etree.fromstring(text(document)))


def test_what_a_hypervisor_keeps_elsewhere_is_named_as_it_is_there() -> None:
    for name, path in (("esx", "[store] vm/disk.img"), ("hyperv", "/store/vm/disk.img")):
        hypervisor = registry.get(name)
        [source] = hypervisor.build(vmi_for(hypervisor, {}), Context()).findall("devices/disk/source")
        assert source.get("file") == path


@pytest.mark.parametrize("name", ["virtualbox", "vmware", "virtuozzo", "esx", "hyperv"])
def test_a_volume_that_a_hypervisor_cannot_read_is_refused_with_what_to_do(name: str) -> None:
    spec = {
        "domain": {"memory": {"guest": "128Mi"}, "devices": {"disks": [{"name": "claim", "disk": {"bus": "scsi"}}]}},
        "volumes": [{"name": "claim", "persistentVolumeClaim": {"claimName": "x"}}],
    }
    with pytest.raises(DomainError, match=r"disk 'claim': .* name it in hostDisk"):
        registry.get(name).build(read(VirtualMachineInstance, {"metadata": {"name": "vm"}, "spec": spec}), Context())
