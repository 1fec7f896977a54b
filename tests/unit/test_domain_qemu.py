"""What each part of a VMI becomes in a QEMU domain, and what cannot be built."""

from __future__ import annotations

from typing import Any
from xml.etree import ElementTree

import pytest

from tests.unit.domain_samples import NODE, OTHER_ARCHITECTURES, SAMPLES, Sample, disk, interface, vmi
from virtfleet.domain.context import AssignedDevice, Context
from virtfleet.domain.errors import DomainError
from virtfleet.hypervisors import registry

QEMU = registry.get("qemu-kvm")


def plain(element: ElementTree.Element) -> str:
    return ElementTree.canonicalize(ElementTree.tostring(element), strip_text=True, rewrite_prefixes=True)


@pytest.mark.parametrize("sample", [*SAMPLES, *OTHER_ARCHITECTURES], ids=lambda s: s.name)
def test_a_field_becomes_its_part_of_the_document(sample: Sample) -> None:
    domain = QEMU.build(vmi(sample), sample.context)
    parts = {plain(element) for element in domain.iter()}
    for fragment in sample.fragments:
        assert plain(ElementTree.fromstring(fragment)) in parts, "\n".join(sorted(parts))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"volumes": []}, "spec.volumes has no volume"),
        ({"networks": []}, "spec.networks has no network"),
        (disk({"memoryDump": {"claimName": "x"}}), "cannot be shown as a disk"),
        (disk({"emptyDisk": {}}, disk={"bus": "sata", "pciAddress": "0000:00:00.0"}), "needs the virtio bus"),
        (disk({"emptyDisk": {}}, disk={"bus": "virtio", "pciAddress": "81:00"}), "not a PCI address"),
        (disk({"emptyDisk": {}}, disk={"bus": "virtio"}, shareable=True, cache="writeback"), "needs cache none"),
        (disk({"emptyDisk": {}}, disk={"bus": "virtio"}, errorPolicy="panic"), "error policy"),
        ({"domain.devices.sound": {"name": "s", "model": "gus"}}, "not ich9 or ac97"),
        ({"domain.devices.watchdog": {"name": "w", "diag288": {}}}, "must be i6300esb"),
        ({"domain.devices.inputs": [{"name": "i", "type": "joystick"}]}, "only a tablet"),
        ({"domain.devices.gpus": [{"name": "unknown"}]}, "no device was assigned"),
        (interface(), "no binding is set"),
        ({"domain.firmware": {"acpi": {}}}, "expecting at least one"),
        ({"domain.cpu": {"cores": 9, "dedicatedCpuPlacement": True}}, "not enough exclusive threads"),
        (
            {"domain.cpu": {"cores": 1, "dedicatedCpuPlacement": True, "numa": {"guestMappingPassthrough": {}}}},
            "huge pages",
        ),
        ({"architecture": "arm64", "domain.firmware": {"bootloader": {"efi": {}}}}, "no EFI firmware"),
    ],
)
def test_what_cannot_be_built_is_refused_with_the_reason(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(DomainError, match=message):
        QEMU.build(vmi(Sample("", fields, ())), NODE)


def test_without_the_hypervisors_device_the_cpu_is_emulated_and_mshv_differs_in_the_type_only() -> None:
    sample = vmi(SAMPLES[0])
    kvm, emulated = QEMU.build(sample, NODE), QEMU.build(sample, Context(emulated=True))
    mshv = registry.get("mshv").build(sample, NODE)
    assert [d.get("type") for d in (kvm, emulated, mshv)] == ["kvm", "qemu", "hyperv"]
    mshv.set("type", "kvm")
    assert ElementTree.tostring(mshv) == ElementTree.tostring(kvm)


def test_a_plugin_interface_is_attached_only_where_the_plugin_wants_a_tap() -> None:
    sample = vmi(Sample("", interface(binding={"name": "mine"}), ()))
    assert QEMU.build(sample, Context()).find("devices/interface") is None
    assert QEMU.build(sample, Context(attachments={"mine": "managedTap"})).find("devices/interface") is not None


def test_a_device_that_the_node_pretends_to_have_is_emulated_by_qemu_and_refused_by_others() -> None:
    devices = {"domain.devices.hostDevices": [{"name": "slop", "deviceName": "superduper.io/MegaSlop_9000"}]}
    pretended = Context(host_devices={"slop": AssignedDevice("emulated", "megaslop-0")})
    domain = QEMU.build(vmi(Sample("", devices, ())), pretended)
    assert domain.find("devices/hostdev") is None
    arguments = [argument.get("value") for argument in domain.iter() if argument.tag.endswith("}arg")]
    assert arguments == ["-device", '{"driver":"edu","id":"ua-hostdevice-slop"}']
    with pytest.raises(DomainError, match="pretends"):
        registry.get("cloud-hypervisor").build(vmi(Sample("", devices, ())), pretended)


def test_disks_whose_volume_is_not_there_yet_are_left_out() -> None:
    fields = disk({"persistentVolumeClaim": {"claimName": "c"}})
    status = {"volumeStatus": [{"name": "root"}, {"name": "data", "hotplugVolume": {}, "phase": "Pending"}]}
    domain = QEMU.build(vmi(Sample("", fields, (), status=status)), NODE)
    assert [a.get("name") for a in domain.iterfind("devices/disk/alias")] == ["ua-root"]
