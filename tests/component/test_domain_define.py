"""A real libvirt, with validation on, accepts the adapted domain of every VMI."""

from __future__ import annotations

import json
import os
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from pathlib import Path
from tempfile import mkdtemp

import libvirt
import msgspec
import pytest
import yaml

from tests.component.libvirt_daemon import running
from tests.reference import GOLDEN
from tests.unit.domain_samples import SAMPLES, Sample, vmi
from virtfleet.api.view import read
from virtfleet.api.vmi import VirtualMachineInstance
from virtfleet.cli.look.render import pretend_node
from virtfleet.domain.context import Context, Host
from virtfleet.domain.errors import DomainError
from virtfleet.hypervisors import registry
from virtfleet.installation import Installation

QEMU = registry.get("qemu-kvm")

# What a machine may lack: hardware, programs, or a libvirt that is new enough. Where libvirt refuses, it is for that.
LACKING = {
    "tdx": "launchSecurity",  # libvirt 11.5
    "AMD SEV-SNP": "launchSecurity",  # libvirt 10.5
    "AMD SEV-ES": "SEV launch security is not supported",
    "TPMs": "TPM version '2.0' is not supported",  # swtpm_setup
    "passt with ports": "validate",  # libvirt 11.1
}
# What needs a real CPU, and is refused where CPUs are emulated.
NOT_EMULATED = "host-passthrough needs a hypervisor"


def accepted_cases() -> list[Path]:
    cases = sorted(p.parent for p in GOLDEN.glob("*/domain.xml"))
    return [case for case in cases if json.loads((case / "verdict.json").read_text())["allowed"]]


@pytest.fixture(scope="module")
def connection() -> Iterator[libvirt.virConnect]:
    libvirt.registerErrorHandler(lambda *_: None, None)
    directory = Path(mkdtemp(prefix="virtfleet-"))  # a short path: sockets lie below it
    directory.chmod(0o755)
    with running(QEMU, "qemu", directory) as opened:
        yield opened


@pytest.fixture(scope="module")
def host(connection: libvirt.virConnect) -> Host:
    capabilities = ET.fromstring(connection.getCapabilities())
    machines = capabilities.findall("guest/arch[@name='x86_64']/machine")
    return Host(
        libvirt_version=connection.getLibVersion(),
        firmware=frozenset(str(path) for path in Path("/usr/share/OVMF").glob("*.fd")),
        machines=frozenset(machine.text or "" for machine in machines),
        vhost_net=os.path.exists("/dev/vhost-net"),
    )


def define(
    connection: libvirt.virConnect, host: Host, name: str, vmi: VirtualMachineInstance, context: Context
) -> None:
    context = msgspec.structs.replace(context, emulated=True, host=host)
    domain = QEMU.adapt(QEMU.build(vmi, context), context)
    document = ET.tostring(domain, encoding="unicode")
    try:
        defined = connection.defineXMLFlags(document, libvirt.VIR_DOMAIN_DEFINE_VALIDATE)
    except libvirt.libvirtError as error:
        assert name in LACKING, str(error)
        assert LACKING[name] in str(error)
    else:
        defined.undefineFlags(libvirt.VIR_DOMAIN_UNDEFINE_NVRAM)


@pytest.mark.parametrize("case", accepted_cases(), ids=lambda c: c.name)
def test_libvirt_defines_the_reference_vmi(connection: libvirt.virConnect, host: Host, case: Path) -> None:
    settings = yaml.safe_load((case / "kubevirt.yaml").read_text())
    vmi = read(VirtualMachineInstance, yaml.safe_load((case / "vmi.yaml").read_text()))
    options = json.loads((case / "options.json").read_text()) if (case / "options.json").exists() else {}
    context = msgspec.structs.replace(
        pretend_node(vmi, Installation(settings)), block_volumes=frozenset(options.get("block", []))
    )
    define(connection, host, case.name, vmi, context)


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda s: s.name)
def test_libvirt_defines_every_part_of_the_api(connection: libvirt.virConnect, host: Host, sample: Sample) -> None:
    try:
        define(connection, host, sample.name, vmi(sample), sample.context)
    except DomainError as error:
        assert NOT_EMULATED in str(error)
        assert sample.fields["domain.cpu"]["model"] == "host-passthrough"


def test_qemu_is_told_the_address_of_its_guest_on_vsock(connection: libvirt.virConnect, host: Host) -> None:
    """As far as a machine without vhost_vsock can show it: the descriptor comes when the guest starts."""
    sample = next(each for each in SAMPLES if each.name == "a vsock")
    context = msgspec.structs.replace(sample.context, emulated=True, host=host)
    domain = QEMU.adapt(QEMU.build(vmi(sample), context), context)
    devices = domain.find("devices")
    assert devices is not None
    for interface in devices.findall("interface"):
        devices.remove(interface)  # for which libvirt would open the node's
    arguments = connection.domainXMLToNative("qemu-argv", ET.tostring(domain, encoding="unicode"))
    assert '"driver":"vhost-vsock-pci-non-transitional"' in arguments and '"guest-cid":42' in arguments
