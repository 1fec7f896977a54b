"""What a guest's machine was, and what of it holds in a document that is made anew."""

from __future__ import annotations

from typing import Any
from xml.etree import ElementTree as ET

import pytest
from hypothesis import given
from hypothesis import strategies as st

from virtfleet.api.view import read
from virtfleet.api.vmi import VirtualMachineInstance as VMI
from virtfleet.domain import abi as rules
from virtfleet.domain.context import Context, Host
from virtfleet.domain.errors import DomainError
from virtfleet.domain.targets import TargetNames
from virtfleet.hypervisors import registry
from virtfleet.installation import Installation
from virtfleet.launcher.vm import abi
from virtfleet.pods.placement import node_selector

Q35 = "pc-q35-7.2"
OVMF, VARS = "/usr/share/OVMF/OVMF_CODE_4M.fd", "/usr/share/OVMF/OVMF_VARS_4M.fd"
HOST = Host(libvirt_version=9_000_000, machines=frozenset({"q35", "pc", Q35}), firmware=frozenset({OVMF, VARS}))
QEMU = registry.get("qemu-kvm")


def vmi(disks: list[str], nics: list[str], known: Any = None, machine: str = "q35", **domain: Any) -> VMI:
    devices = {
        "disks": [{"name": name, "disk": {"bus": "virtio"}} for name in disks],
        "interfaces": [{"name": name, "masquerade": {}} for name in nics],
    }
    return read(
        VMI,
        {
            "metadata": {"name": "vm", "namespace": "default", "uid": "u1"},
            "spec": {
                "architecture": "amd64",
                "domain": {"memory": {"guest": "64Mi"}, "machine": {"type": machine}, "devices": devices, **domain},
                "networks": [{"name": name, "pod": {}} for name in nics],
                "volumes": [{"name": name, "emptyDisk": {"capacity": "1Gi"}} for name in disks],
            },
            "status": {"guestABI": known} if known else {},
        },
    )


def document(of: VMI, host: Host = HOST) -> ET.Element:
    """As a launcher makes it."""
    context = Context(host=host)
    made = QEMU.build(of, context)
    abi.keep_machine(made, of)
    made = QEMU.adapt(made, context)
    abi.keep_parts(made, of, host)
    return made


def places(made: ET.Element) -> dict[str, str]:
    """Addresses by name; those that the document leaves to libvirt are not there."""
    devices = made.find("devices")
    assert devices is not None
    return {name: address for name, device in abi._named(devices) if (address := abi._address(device))}


def placed(made: ET.Element) -> ET.Element:
    """The document as the running domain has it, where libvirt gave each PCI device a bus behind a port of its own."""
    devices = made.find("devices")
    assert devices is not None
    for bus, device in enumerate([d for d in devices if d.tag in ("disk", "interface", "memballoon")], start=1):
        if device.find("address") is None:
            ET.SubElement(
                device, "address", type="pci", domain="0x0000", bus=f"{bus:#04x}", slot="0x00", function="0x0"
            )
        port = ET.SubElement(devices, "controller", type="pci", index=str(bus), model="pcie-root-port")
        slot, function = f"{1 + bus // 8:#04x}", f"{bus % 8:#x}"
        ET.SubElement(port, "address", type="pci", domain="0x0000", bus="0x00", slot=slot, function=function)
    return made


def recorded(of: VMI) -> dict[str, Any]:
    made = placed(document(of))
    kind = made.find("os/type")
    assert kind is not None
    kind.set("machine", Q35)
    said = abi.record(made)
    devices = [{"name": d.name, "address": d.address, "mac": d.mac, "target": d.target} for d in said.devices]
    return {"machine": said.machine, "devices": devices}


DISKS = st.lists(st.sampled_from("abcdef"), unique=True, max_size=6).map(lambda names: [f"disk-{n}" for n in names])
NICS = st.lists(st.sampled_from("xyz"), unique=True, max_size=3).map(lambda names: [f"nic-{n}" for n in names])


@given(DISKS, NICS, DISKS, NICS)
def test_what_is_still_there_stays_where_it_was(
    disks: list[str], nics: list[str], more_disks: list[str], more_nics: list[str]
) -> None:
    known = recorded(vmi(disks, nics))
    before = {device["name"]: device["address"] for device in known["devices"] if device["address"]}
    after = places(document(vmi(more_disks, more_nics, known)))
    assert len(set(after.values())) == len(after), "two devices in one place"
    assert after.items() <= before.items(), "what is new is left to libvirt"
    for name in {f"disk/virtio-non-transitional/{disk}" for disk in {*disks} & {*more_disks}}:
        assert after[name] == before[name]
    ports = {name for name in before if name.startswith("controller/pci:")}
    assert ports <= after.keys(), "guests count the ports"
    targets = TargetNames(vmi(more_disks, more_nics, known))
    names = [targets.name(disk, "virtio")[0] for disk in more_disks]
    assert len({*names}) == len(names)
    for disk, name in zip(more_disks, names, strict=True):
        assert disk not in disks or name == next(
            d["target"] for d in known["devices"] if d["name"].endswith(f"/{disk}")
        )


@given(
    st.lists(
        st.fixed_dictionaries(
            {
                "name": st.sampled_from(["disk/virtio-non-transitional/a", "controller/pci:pcie-root-port/1", "x"])
                | st.text(max_size=99),
                "address": st.sampled_from(["0000:01:00.0", "0000:00:02.0", "0000:00:02.1"]) | st.text(max_size=40),
                "mac": st.sampled_from(["02:00:00:00:00:01", "03:00:00:00:00:01"]) | st.text(max_size=40),
                "target": st.sampled_from(["vda", "sda"]) | st.text(max_size=10),
            }
        ),
        max_size=8,
    ),
    st.sampled_from([Q35, "pc-q35-9.9", "q35"]) | st.text(max_size=99),
    st.text(max_size=99),
)
def test_a_record_that_somebody_forged_does_no_harm(devices: list[dict[str, str]], machine: str, loader: str) -> None:
    known = {"machine": machine, "devices": devices, "loader": loader, "variables": loader, "cpu": {"model": loader}}
    of = vmi(["a"], ["x"], known)
    try:
        made = document(of)
    except DomainError as error:
        assert machine in str(error), "of a machine type that is not here"
        return
    after = places(made)
    assert len(set(after.values())) == len(after)
    ET.fromstring(ET.tostring(made))
    (mac,) = [m.get("address") for m in made.iterfind("devices/interface/mac")] or [""]
    assert not mac or (mac == rules.mac(of, "x") and not int(mac[:2], 16) & 1)


@pytest.mark.parametrize(
    ("asked", "was", "is_now"),
    [
        ("q35", Q35, Q35),
        (Q35, Q35, Q35),
        ("q35", "pc-q35-rhel9.6.0", "pc-q35-rhel9.6.0"),
        ("pc", "pc-i440fx-7.2", "pc-i440fx-7.2"),
        ("pc-q35-8.0", Q35, "pc-q35-8.0"),
        ("pc", Q35, "pc"),
        ("q35", "pc-q35-7.2;x", "q35"),
        ("q35", "q35", "q35"),
        ("virt", "virt-9.0", "virt-9.0"),
        ("microvm", Q35, "microvm"),
    ],
)
def test_a_version_is_kept_until_the_spec_asks_for_another_machine(asked: str, was: str, is_now: str) -> None:
    of = vmi(["a"], [], {"machine": was}, machine=asked)
    assert rules.machine(of) == is_now
    wanted = node_selector(of, QEMU.descriptor, Installation({}))
    labels = [label for label in wanted if label.startswith("machine-type.")]
    assert labels == ([f"machine-type.node.kubevirt.io/{is_now}"] if "-" in is_now else [])


def test_another_machine_has_other_places_and_the_same_hardware_addresses() -> None:
    known = recorded(vmi(["a"], ["x"]))
    known["devices"].append({"name": "interface/virtio-non-transitional/x", "mac": "02:00:00:00:00:01"})
    known["devices"] = [
        d for d in known["devices"] if d["name"] != "interface/virtio-non-transitional/x" or d.get("mac")
    ]
    made = document(vmi(["a"], ["x"], known, machine="pc"))
    assert places(made) == {}
    assert [mac.get("address") for mac in made.iterfind("devices/interface/mac")] == ["02:00:00:00:00:01"]


def test_a_machine_type_that_is_not_here_is_refused() -> None:
    with pytest.raises(DomainError, match=r"no machine type 'pc-q35-2\.4'"):
        document(vmi(["a"], [], {"machine": "pc-q35-2.4"}))


def test_an_address_in_the_spec_goes_before_those_on_record() -> None:
    known = recorded(vmi(["a", "b"], []))
    of = vmi(["a", "b"], [], known)
    disk = of.spec.domain.devices.disks[1].disk
    assert disk is not None
    first, second = (d for d in known["devices"] if d["name"].startswith("disk/"))
    disk.pci_address = first["address"]
    after = places(document(of))
    assert after[second["name"]] == first["address"]
    assert first["name"] not in after, "libvirt finds another one"


def test_all_places_can_come_from_the_spec_instead() -> None:
    known = recorded(vmi(["a", "b"], ["x"]))
    of = vmi(["a", "b"], ["x"], known)
    of.metadata.annotations["kubevirt.io/placePCIDevicesOnRootComplex"] = "true"
    after = places(document(of))
    plain = vmi(["a", "b"], ["x"])
    plain.metadata.annotations["kubevirt.io/placePCIDevicesOnRootComplex"] = "true"
    assert places(document(plain)).items() <= after.items()
    slots = [address.rpartition(".")[0] for name, address in after.items() if "pcie-root-port" not in name]
    ports = {address.rpartition(".")[0] for name, address in after.items() if "pcie-root-port" in name}
    assert len(set(slots)) == len(slots) and not ports & set(slots), "no function is added to what the spec placed"


def test_a_disk_on_another_bus_is_another_device() -> None:
    known = recorded(vmi(["a"], []))
    of = vmi(["a"], [], known)
    disk = of.spec.domain.devices.disks[0].disk
    assert disk is not None
    disk.bus = "sata"
    made = document(of).find("devices/disk")
    assert made is not None and made.find("address[@type='pci']") is None
    assert TargetNames(of).name("a", "sata") == ("sda", 0)


EFI = {"firmware": {"bootloader": {"efi": {"secureBoot": False}}}}


def test_firmware_stays_the_same_where_it_is_here() -> None:
    other = "/usr/share/OVMF/OVMF_CODE.fd"
    here = Host(libvirt_version=9_000_000, firmware=HOST.firmware | {other, "/usr/share/OVMF/OVMF_VARS.fd"})
    known = {"machine": Q35, "loader": other, "variables": "/usr/share/OVMF/OVMF_VARS.fd"}
    assert document(vmi(["a"], [], known, **EFI), here).findtext("os/loader") == other
    assert document(vmi(["a"], [], known, **EFI)).findtext("os/loader") == OVMF, "nothing depends on which it is"
    persistent = {"firmware": {"bootloader": {"efi": {"secureBoot": False, "persistent": True}}}}
    with pytest.raises(DomainError, match=r"no /usr/share/OVMF/OVMF_CODE\.fd"):
        document(vmi(["a"], [], known, **persistent))


def test_a_running_guest_keeps_its_cpu() -> None:
    known = {"machine": Q35, "cpu": {"model": "Skylake-Client", "features": ["vmx", "-mpx"]}}
    cpu = document(vmi(["a"], [], known)).find("cpu")
    assert cpu is not None
    assert (cpu.get("mode"), cpu.findtext("model")) == ("custom", "Skylake-Client")
    assert [(f.get("name"), f.get("policy")) for f in cpu.iter("feature")] == [("vmx", "require"), ("mpx", "disable")]
    named = document(vmi(["a"], [], known, cpu={"model": "Haswell"})).find("cpu/model")
    assert named is not None and named.text == "Haswell", "the spec's own goes before it"
