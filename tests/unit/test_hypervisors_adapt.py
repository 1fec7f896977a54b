"""How documents fit the libvirt, QEMU and firmware that are really there."""

from __future__ import annotations

from typing import Any
from xml.etree.ElementTree import Element, fromstring

import pytest

from virtfleet.domain.context import Context, Host
from virtfleet.domain.errors import DomainError
from virtfleet.hypervisors import registry
from virtfleet.hypervisors.qemu.adapt import ARGUMENT

QEMU = registry.get("qemu-kvm")


def adapted(document: str, *, taps: dict[str, str] | None = None, **host: Any) -> Element:
    here = Host(**{"libvirt_version": 9_000_000, **host})
    return QEMU.adapt(fromstring(document), Context(taps=taps or {}, host=here))


def test_memory_that_can_grow_gets_slots_and_a_numa_cell_where_libvirt_wants_them() -> None:
    document = (
        '<domain><memory unit="b">1</memory><maxMemory unit="b" slots="0">4</maxMemory><vcpu>2</vcpu><cpu/></domain>'
    )
    old, new = adapted(document), adapted(document, libvirt_version=11_000_000)
    assert (old.find("maxMemory").get("slots"), new.find("maxMemory").get("slots")) == ("16", "0")  # type: ignore[union-attr]
    assert old.find("cpu/numa/cell[@cpus='0-1'][@memory='1']") is not None
    assert new.find("cpu/numa") is None


def test_firmware_is_taken_from_where_it_is_and_fits_the_secure_boot_setting() -> None:
    document = (
        '<domain><os><loader secure="{0}">/usr/share/edk2/ovmf/OVMF_CODE.secboot.fd</loader>'
        '<nvram template="/usr/share/edk2/ovmf/{1}">x</nvram></os></domain>'
    )
    files = frozenset(
        f"/usr/share/OVMF/{f}" for f in ("OVMF_CODE_4M.fd", "OVMF_CODE_4M.secboot.fd", "OVMF_VARS_4M.ms.fd")
    )
    secure = adapted(document.format("yes", "OVMF_VARS.secboot.fd"), firmware=files)
    plain = adapted(document.format("no", "OVMF_VARS.fd"), firmware=files)
    assert secure.findtext("os/loader") == "/usr/share/OVMF/OVMF_CODE_4M.secboot.fd"
    assert secure.find("os/nvram[@template='/usr/share/OVMF/OVMF_VARS_4M.ms.fd']") is not None
    assert plain.findtext("os/loader") == "/usr/share/OVMF/OVMF_CODE_4M.fd"
    assert plain.find("os/nvram[@template='/usr/share/edk2/ovmf/OVMF_VARS.fd']") is not None


def test_a_table_that_libvirt_does_not_know_is_an_argument_of_qemu() -> None:
    document = "<domain><os><acpi><table type='slic'>/s</table><table type='msdm'>/m</table></acpi></os></domain>"
    old, new = adapted(document), adapted(document, libvirt_version=11_002_000)
    assert [t.text for t in old.iterfind("os/acpi/table")] == ["/s"]
    assert [t.text for t in new.iterfind("os/acpi/table")] == ["/s", "/m"]
    line = "{http://libvirt.org/schemas/domain/qemu/1.0}commandline"
    assert [argument.get("value") for argument in old.iterfind(f"{line}/*")] == ["-acpitable", "sig=MSDM,file=/m"]
    assert new.find(line) is None


def test_a_machine_type_is_never_replaced() -> None:
    document = '<domain><os><type machine="pc-q35-rhel9.6.0">hvm</type></os></domain>'
    with pytest.raises(DomainError, match=r"no machine type 'pc-q35-rhel9\.6\.0'; choose one that it has \(q35"):
        adapted(document, machines=frozenset({"q35", "pc-q35-7.2"}))
    alias = adapted(document.replace("pc-q35-rhel9.6.0", "q35"), machines=frozenset({"q35", "pc-q35-7.2"}))
    assert alias.find("os/type[@machine='q35']") is not None


def test_interfaces_are_attached_to_the_taps_that_are_there() -> None:
    document = (
        '<domain><devices><interface type="ethernet"><driver name="vhost" queues="2"/><alias name="ua-red"/>'
        "</interface></devices></domain>"
    )
    domain = adapted(document, taps={"red": "tap7"}, vhost_net=False)
    assert domain.find("devices/interface/target[@dev='tap7'][@managed='no']") is not None
    assert domain.find("devices/interface/driver[@name='qemu']") is not None


@pytest.mark.parametrize("written", ["de:ad:00:00:be:af", "DE-AD-00-00-BE-AF", "dead.0000.beaf"])
def test_mac_addresses_are_written_as_libvirt_reads_them(written: str) -> None:
    domain = adapted(f'<domain><devices><interface><mac address="{written}"/></interface></devices></domain>')
    assert domain.find("devices/interface/mac[@address='de:ad:00:00:be:af']") is not None


def test_disks_get_what_libvirt_wants_for_native_io_and_for_usb() -> None:
    domain = adapted(
        '<domain><devices><disk><driver io="native"/><target bus="usb"/></disk>'
        '<disk><driver io="native" cache="directsync"/></disk><disk><driver io="threads"/></disk>'
        '<controller type="usb" model="none"/></devices></domain>'
    )
    assert [d.get("cache") for d in domain.iterfind("devices/disk/driver")] == ["none", "directsync", None]
    assert domain.find("devices/controller[@model='qemu-xhci']") is not None


def test_a_cpu_feature_without_a_policy_is_required() -> None:
    domain = adapted('<domain><cpu><feature name="vmx"/><feature name="mpx" policy="disable"/></cpu></domain>')
    assert [f.get("policy") for f in domain.iterfind("cpu/feature")] == ["require", "disable"]


def test_the_hosts_cpu_cannot_be_passed_through_under_emulation() -> None:
    with pytest.raises(DomainError, match="host-passthrough needs a hypervisor"):
        adapted('<domain type="qemu"><cpu mode="host-passthrough"/></domain>')


def test_code_that_is_translated_under_emulation_stays_within_what_the_pod_asks_for() -> None:
    emulated = adapted(
        '<domain type="qemu"><features><kvm><hidden/></kvm><hyperv><vpindex/></hyperv></features></domain>'
    )
    kept = emulated.find("features/tcg/tb-cache[@unit='MiB']")
    assert kept is not None and f"{kept.text}Mi" == str(QEMU.descriptor.overheads.emulation)
    assert emulated.find("features/kvm") is None and emulated.find("features/hyperv") is None
    assert adapted('<domain type="kvm"><features/></domain>').find("features/tcg") is None


PLAIN = '<memory unit="b">134217728</memory>'
EMULATED = f'<domain type="qemu">{PLAIN}</domain>'


def test_a_guest_with_emulated_cpus_may_run_while_its_memory_goes_where_qemu_sees_all_that_it_writes() -> None:
    """It does where a memory is not of whole groups of 64 pages."""
    moves = QEMU.migration
    domain = adapted(EMULATED)
    arguments = [argument.get("value", "") for argument in domain.iter(ARGUMENT)]
    size = 134217728 - 8192
    assert size % (64 * 4096) and size % 4096 == 0
    assert arguments == [
        *("-object", f"memory-backend-ram,id=watched.ram,size={size}"),
        *("-machine", "memory-backend=watched.ram", "-m", f"size={size}B"),
    ]
    assert not moves.stands_still(domain, 7_002_000)
    assert moves.stands_still(fromstring(EMULATED), 7_002_000)
    assert not moves.stands_still(fromstring(EMULATED), 9_000_000), "mended there"


@pytest.mark.parametrize(
    "other", ['<maxMemory unit="b">268435456</maxMemory>', "<memoryBacking/>", "<cpu><numa/></cpu>"]
)
def test_memory_of_several_parts_or_of_another_kind_is_left_to_libvirt(other: str) -> None:
    domain = adapted(f'<domain type="qemu">{PLAIN}{other}</domain>')
    assert not list(domain.iter(ARGUMENT)) and QEMU.migration.stands_still(domain, 7_002_000)


def test_memory_of_a_guest_on_kvm_is_left_to_libvirt() -> None:
    domain = adapted(f'<domain type="kvm">{PLAIN}</domain>')
    assert not list(domain.iter(ARGUMENT)) and not QEMU.migration.stands_still(domain, 7_002_000)
