"""What a VMI becomes on Xen."""

from __future__ import annotations

from typing import Any

import pytest
from lxml import etree

from tests.unit.test_hypervisors_schema import schema
from virtfleet.api.view import read
from virtfleet.api.vmi import VirtualMachineInstance
from virtfleet.domain.context import Context, Host
from virtfleet.domain.errors import DomainError
from virtfleet.hypervisors import registry
from xen.reference import FIRMWARE, documents

XEN = registry.get("xen")


def vmi(firmware: dict[str, Any], **spec: Any) -> VirtualMachineInstance:
    domain = {"memory": {"guest": "128Mi"}, "firmware": firmware, **spec.pop("domain", {})}
    return read(VirtualMachineInstance, {"metadata": {"name": "vm"}, "spec": {"domain": domain, **spec}})


@pytest.mark.parametrize(
    ("way", "machine", "kind"),
    [
        ("bios", "", ("xenfv", "hvm")),
        ("efi", "", ("xenfv", "hvm")),
        ("kernel", "", ("xenpvh", "xenpvh")),
        ("kernel", "q35", ("xenpvh", "xenpvh")),
        ("kernel", "xenpv", ("xenpv", "linux")),
    ],
)
def test_what_it_boots_from_decides_what_a_guest_is(way: str, machine: str, kind: tuple[str, str]) -> None:
    document = XEN.build(vmi(FIRMWARE[way], domain={"machine": {"type": machine}}), Context())
    os_type = document.find("os/type")
    assert os_type is not None and (os_type.get("machine"), os_type.text) == kind
    assert (document.find("os/loader") is not None) == (way == "efi")
    assert (document.findtext("os/kernel") is not None) == (way == "kernel")
    assert (document.find("devices/serial") is not None) == (kind[1] == "hvm"), "others have Xen's own console"


def test_without_extensions_of_the_processor_a_kernel_boots_all_the_same() -> None:
    def fitted(*machines: str) -> str | None:
        context = Context(host=Host(machines=frozenset(machines)))
        return XEN.adapt(XEN.build(vmi(FIRMWARE["kernel"]), context), context).findtext("os/type")

    assert fitted("xenpv") == "linux"
    assert fitted("xenpv", "xenpvh") == "xenpvh"
    assert fitted() == "xenpvh", "nothing is known of the host"


def test_a_kernel_with_efi_is_refused_with_what_to_do() -> None:
    with pytest.raises(DomainError, match="leave one out"):
        XEN.build(vmi(FIRMWARE["kernel"] | FIRMWARE["efi"]), Context())


@pytest.mark.parametrize(
    ("disk", "way", "target"),
    [
        ({"disk": {"bus": "virtio"}}, "bios", ("xvda", "xen", "disk")),
        ({"disk": {"bus": "virtio"}}, "kernel", ("xvda", "xen", "disk")),
        ({"disk": {"bus": "scsi"}}, "bios", ("sda", "scsi", "disk")),
        ({"disk": {"bus": "scsi"}}, "kernel", ("xvda", "xen", "disk")),
        ({"cdrom": {"bus": "scsi"}}, "bios", ("hda", "ide", "cdrom")),
        ({"disk": {"bus": "virtio", "readonly": True}}, "bios", ("hda", "ide", "cdrom")),
    ],
)
def test_disks_are_on_buses_that_the_guest_has(disk: dict[str, Any], way: str, target: tuple[str, str, str]) -> None:
    devices = {"disks": [{"name": "d", **disk}]}
    volumes = [{"name": "d", "persistentVolumeClaim": {"claimName": "c"}}]
    document = XEN.build(vmi(FIRMWARE[way], domain={"devices": devices}, volumes=volumes), Context())
    (made,) = document.iterfind("devices/disk")
    place = made.find("target")
    assert place is not None and (place.get("dev"), place.get("bus"), made.get("device")) == target
    assert (made.find("readonly") is not None) == (target[2] == "cdrom")


@pytest.mark.parametrize("disk", [{"cdrom": {"bus": "scsi"}}, {"disk": {"bus": "virtio", "readonly": True}}])
def test_a_kernel_has_no_disks_that_are_only_read_but_those_made_for_it(disk: dict[str, Any]) -> None:
    """QEMU serves none, and a guest must not write to what is not its own."""

    def built(volume: dict[str, Any]) -> Any:
        domain = {"devices": {"disks": [{"name": "d", **disk}]}}
        return XEN.build(vmi(FIRMWARE["kernel"], domain=domain, volumes=[{"name": "d", **volume}]), Context())

    for shared in ({"persistentVolumeClaim": {"claimName": "c"}}, {"hostDisk": {"path": "/d.img", "type": "Disk"}}):
        with pytest.raises(DomainError, match="leave out readonly"):
            built(shared)
    (made,) = built({"containerDisk": {"image": "i"}}).iterfind("devices/disk")
    assert made.get("device") == "disk" and made.find("readonly") is None


def test_names_of_disks_do_not_collide() -> None:
    kinds: list[dict[str, Any]] = [{"disk": {"bus": b}} for b in ("virtio", "scsi", "virtio")] + [{"cdrom": {}}] * 2
    devices = {"disks": [{"name": f"d{number}", **kind} for number, kind in enumerate(kinds)]}
    volumes = [{"name": f"d{n}", "persistentVolumeClaim": {"claimName": "c"}} for n in range(len(kinds))]
    for firmware in FIRMWARE.values():
        if firmware == FIRMWARE["kernel"]:
            volumes = [{"name": volume["name"], "containerDisk": {"image": "i"}} for volume in volumes]
        document = XEN.build(vmi(firmware, domain={"devices": devices}, volumes=volumes), Context())
        named = [XEN.identity(disk) for disk in document.iterfind("devices/disk")]
        assert len(set(named)) == len(kinds), named
        # In a PC, xvda and hda are the same place.
        places = [name[-1] for name in named if not name.startswith("sd")]
        assert len(set(places)) == len(places), named


@pytest.mark.slow
def test_documents_of_the_references_are_valid() -> None:
    made = documents()
    assert len(made) > 60, "hardly any reference is supported"
    for name, document in made.items():
        assert schema().validate(etree.fromstring(document)), f"{name}: {schema().error_log}"
