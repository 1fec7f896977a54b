"""Rules that hypervisors share: names of disks, physical CPUs, the text of a document, settings of the cluster."""

from __future__ import annotations

from typing import Any
from xml.etree.ElementTree import Element, fromstring, tostring

import pytest
from hypothesis import given
from hypothesis import strategies as st

from virtfleet.api import traits
from virtfleet.api.traits import Topology
from virtfleet.api.view import read
from virtfleet.api.vmi import VirtualMachineInstance
from virtfleet.cli.look.render import pretend_node
from virtfleet.domain.context import NumaCell
from virtfleet.domain.cpupool import CpuPool
from virtfleet.domain.errors import DomainError
from virtfleet.domain.interfaces import pci_address
from virtfleet.domain.targets import TargetNames
from virtfleet.domain.xml import add, text
from virtfleet.installation import Installation


def vmi(domain: dict[str, Any], **status: Any) -> VirtualMachineInstance:
    return read(VirtualMachineInstance, {"spec": {"domain": domain}, "status": status})


# --- names of disks


def test_disks_are_named_per_bus_in_the_order_of_the_spec() -> None:
    names = TargetNames(vmi({}))
    assert [names.name(str(i), "virtio")[0] for i in range(28)][::9] == ["vda", "vdj", "vds", "vdab"]
    assert names.name("x", "sata") == ("sda", 0)
    assert names.name("y", "scsi") == ("sdb", 1)


def test_a_name_in_the_status_stays_with_its_volume() -> None:
    disks = [{"name": n, "disk": {"bus": "virtio"}} for n in ("new", "old")]
    names = TargetNames(vmi({"devices": {"disks": disks}}, volumeStatus=[{"name": "old", "target": "vda"}]))
    assert names.name("new", "virtio") == ("vdb", 1)
    assert names.name("old", "virtio") == ("vda", 0)


# --- physical CPUs


def cell(number: int, cores: list[list[int]]) -> NumaCell:
    return NumaCell(number, tuple((thread, tuple(core)) for core in cores for thread in core))


@given(
    st.lists(st.lists(st.integers(1, 4), max_size=6), min_size=1, max_size=4),
    st.tuples(st.integers(1, 2), st.integers(1, 4), st.integers(1, 3)),
    st.booleans(),
    st.data(),
)
def test_every_virtual_cpu_gets_a_physical_cpu_of_its_own(
    shape: list[list[int]], topology: tuple[int, int, int], crossing: bool, data: st.DataObject
) -> None:
    cells, thread = [], 0
    for number, cores in enumerate(shape):
        ids = []
        for size in cores:
            ids.append(list(range(thread, thread + size)))
            thread += size
        cells.append(cell(number, ids))
    cpus = data.draw(st.lists(st.sampled_from(range(thread)), unique=True)) if thread else []
    wanted = Topology(*topology)
    pool = CpuPool(wanted, cells, cpus, may_cross_cells=crossing)
    try:
        taken = pool.take_cores()
    except DomainError:
        assert not crossing or len(cpus) < wanted.vcpus
        return
    assert len(taken) == len(set(taken)) == wanted.vcpus
    assert set(taken) <= set(cpus)
    if not crossing:
        node = {t: c.id for c in cells for t, _ in c.cpus}
        cores = [taken[i : i + wanted.threads] for i in range(0, len(taken), wanted.threads)]
        assert all(len({node[t] for t in core}) == 1 for core in cores), "a core never spans two nodes"


def test_threads_of_a_core_share_a_physical_core_where_possible() -> None:
    cells = [cell(0, [[0, 4], [1, 5], [2, 6]])]
    pool = CpuPool(Topology(1, 2, 2), cells, [0, 1, 2, 4, 6], may_cross_cells=True)
    assert pool.take_cores() == [0, 4, 2, 6]
    assert pool.take_thread("the emulator") == 1
    with pytest.raises(DomainError, match="no CPU is left for the emulator"):
        pool.take_thread("the emulator")


# --- size


@pytest.mark.parametrize(
    ("domain", "sockets"),
    [
        ({}, 1),
        ({"resources": {"requests": {"cpu": "1500m"}}}, 2),
        ({"resources": {"requests": {"cpu": "1"}, "limits": {"cpu": 3}}}, 3),
        ({"resources": {"limits": {"cpu": "3"}}, "cpu": {"sockets": 2}}, 2),
    ],
)
def test_without_a_topology_the_pods_cpus_become_sockets(domain: dict[str, Any], sockets: int) -> None:
    assert traits.topology(vmi(domain)) == Topology(sockets, 1, 1)


# --- text of a document


def build(tag: str, attrib: dict[str, str], content: str, children: list[Element]) -> Element:
    element = Element(tag, attrib)
    element.text = content
    element.extend(children)
    return element


names = st.text("abcdefg-_.", min_size=1).filter(lambda n: n[0].isalpha())
values = st.text(st.characters(codec="utf-8", exclude_categories=("Cs", "Cc")) | st.sampled_from('<>&"\n\t'))
elements = st.recursive(
    st.builds(lambda tag, attrib, inner: build(tag, attrib, inner, []), names, st.dictionaries(names, values), values),
    lambda inner: st.builds(build, names, st.dictionaries(names, values), values, st.lists(inner, max_size=3)),
    max_leaves=8,
)


@given(elements)
def test_a_document_reads_back_as_it_was_written(root: Element) -> None:
    assert tostring(fromstring(text(root))) == tostring(fromstring(tostring(root)))


def test_namespaces_have_the_prefixes_of_libvirts_documentation() -> None:
    root = Element("domain")
    add(root, "{http://libvirt.org/schemas/domain/qemu/1.0}commandline")
    assert text(root) == '<domain xmlns:qemu="http://libvirt.org/schemas/domain/qemu/1.0"><qemu:commandline/></domain>'


# --- settings of the cluster


def test_settings_of_the_cluster_shape_domains() -> None:
    settings = {
        "metadata": {"annotations": {"kubevirt.io/vga-display-efi-x86": ""}},
        "spec": {
            "configuration": {
                "smbios": {"product": "Cloud", "sku": "7"},
                "memBalloonStatsPeriod": 0,
                "virtualMachineOptions": {"disableFreePageReporting": {}, "disableSerialConsoleLog": {}},
                "architectureConfiguration": {"arm64": {"ovmfPath": "/firmware"}},
                "network": {"binding": {"mine": {"domainAttachmentType": "tap"}}},
                "developerConfiguration": {"logVerbosity": {"virtLauncher": 6}},
            }
        },
    }
    context = Installation(settings).context("arm64")
    assert (context.smbios.manufacturer, context.smbios.product, context.smbios.sku) == ("KubeVirt", "Cloud", "7")
    assert (context.balloon_period, context.free_page_reporting, context.serial_console_log) == (0, False, False)
    assert (context.firmware_dir, context.attachments, context.verbose) == ("/firmware", {"mine": "tap"}, True)
    assert not context.bochs_for_efi


@pytest.mark.parametrize(
    ("name", "hostname", "expected"),
    [
        ("web", "", "web"),
        ("web.shop", "", "web"),
        ("web", "db", "db"),
        ("a" * 62 + "-b", "", "a" * 62),
    ],
)
def test_a_guest_is_called_as_said_or_like_its_vm(name: str, hostname: str, expected: str) -> None:
    named = read(VirtualMachineInstance, {"metadata": {"name": name}, "spec": {"hostname": hostname, "domain": {}}})
    assert traits.hostname(named) == expected


# --- what `render domain` makes up


def test_no_two_devices_of_a_pretended_node_share_an_address() -> None:
    devices = {
        "hostDevices": [{"name": f"h{i}", "deviceName": "x.io/card"} for i in range(40)],
        "gpus": [{"name": "g", "deviceName": "x.io/gpu"}],
        "interfaces": [{"name": f"n{i}", "sriov": {}} for i in range(10)],
    }
    node = pretend_node(vmi({"devices": devices}), Installation({}))
    assigned = [device.address for device in (*node.host_devices.values(), *node.gpus.values())]
    addresses = [*assigned, *node.sriov.values()]
    assert len(set(addresses)) == 51
    for address in addresses:
        pci_address(Element("hostdev"), address, "device")
