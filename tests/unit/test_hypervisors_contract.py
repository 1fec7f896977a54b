"""Every hypervisor keeps the contract, and one more can be added without touching VirtFleet."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import msgspec
import pytest

from virtfleet.api.view import read
from virtfleet.api.vmi import VirtualMachineInstance
from virtfleet.hypervisors import registry
from virtfleet.hypervisors.base import Hypervisor
from virtfleet.hypervisors.features import refusals
from virtfleet.hypervisors.proof import Step, TinyGuest
from virtfleet.hypervisors.support import works
from virtfleet.hypervisors.testing import DescriptionContract, HypervisorContract

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "hypervisor-plugin"


ALL = [registry.get(name) for name in registry.names()]
RUNNING = [h for h in ALL if not h.refusal]
REFUSING = [h for h in ALL if h.refusal]


def name(hypervisor: Hypervisor) -> str:
    return hypervisor.descriptor.name


@pytest.mark.parametrize("chosen", RUNNING, ids=name)
class TestHypervisorsThatRunVMs(HypervisorContract):
    """Our own."""

    @pytest.fixture(autouse=True)
    def _choose(self, chosen: Hypervisor) -> None:
        type(self).hypervisor = chosen


@pytest.mark.parametrize("chosen", REFUSING, ids=name)
class TestHypervisorsThatRunNone(DescriptionContract):
    """Those whose documents are written, but that run no VMs yet."""

    @pytest.fixture(autouse=True)
    def _choose(self, chosen: Hypervisor) -> None:
        type(self).hypervisor = chosen

    def test_it_says_that_it_cannot_run_vms_yet(self) -> None:
        vmi = read(VirtualMachineInstance, {})
        found = list(refusals(self.hypervisor, vmi))
        assert [(r.field, r.message) for r in found] == [("spec.hypervisor", self.hypervisor.refusal)]


class Careless(registry.get("lxc").__class__):  # type: ignore[misc]
    """A hypervisor that promises what it does not keep."""

    descriptor = msgspec.structs.replace(registry.get("lxc").descriptor, name="careless", device="nothing")
    supports = registry.get("lxc").supports | works("live-migration")

    def proof(self, machine: str) -> tuple[Step, ...]:
        return (TinyGuest(command=("vmm",), files={"rom": b""}, does="nothing", status=0, seconds=1),)


@pytest.mark.parametrize(
    "broken",
    [
        "test_steps_of_a_migration_are_its_own_or_refused",
        "test_cpus_are_emulated_only_where_it_says_so",
        "test_the_pod_asks_for_devices_and_memory",
        "test_a_node_proves_its_device_before_guests_use_it",
    ],
)
def test_the_contract_finds_what_a_plugin_does_not_keep(broken: str) -> None:
    contract = type("Contract", (HypervisorContract,), {"hypervisor": Careless()})()
    with pytest.raises(AssertionError):
        getattr(contract, broken)()


def test_the_contract_needs_no_pytest_to_be_there() -> None:
    program = "import sys, virtfleet.hypervisors.testing; sys.exit('pytest' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False, timeout=60).returncode == 0


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with the example installed in it, from a wheel that is built here."""
    pytest.importorskip("setuptools")
    target, wheels = tmp_path_factory.mktemp("target"), tmp_path_factory.mktemp("wheels")
    source = tmp_path_factory.mktemp("source") / "plugin"
    subprocess.run(["cp", "-r", EXAMPLE, source], check=True)
    build = "import sys; from setuptools.build_meta import build_wheel; build_wheel(sys.argv[1])"
    subprocess.run([sys.executable, "-c", build, str(wheels)], cwd=source, check=True, capture_output=True)
    with zipfile.ZipFile(next(wheels.glob("*.whl"))) as wheel:
        wheel.extractall(target)
    return target


def run(installed: Path, *command: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(installed)}
    return subprocess.run([sys.executable, *command], env=environment, capture_output=True, text=True, check=False)


@pytest.mark.slow
def test_an_installed_plugin_is_listed_and_used(installed: Path, tmp_path: Path) -> None:
    listed = run(installed, "-c", "from virtfleet.cli import main; main()", "hypervisors")
    assert "mock" in listed.stdout, listed.stderr
    vmi = tmp_path / "vmi.yaml"
    vmi.write_text(
        "kind: VirtualMachineInstance\nmetadata: {name: a, namespace: b}\n"
        "spec: {hypervisor: mock, domain: {memory: {guest: 64Mi}, devices: {}}}\n"
    )
    rendered = run(installed, "-c", "from virtfleet.cli import main; main()", "render", "domain", "-f", str(vmi))
    assert '<domain xmlns:kubevirt="http://kubevirt.io" type="test">' in rendered.stdout, rendered.stderr


@pytest.mark.slow
def test_an_installed_plugin_proves_itself_with_the_contract(installed: Path) -> None:
    tests = run(
        installed, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", str(EXAMPLE), str(EXAMPLE / "tests")
    )
    assert tests.returncode == 0, tests.stdout


def test_a_domain_of_the_plugin_is_accepted_by_libvirt(installed: Path) -> None:
    script = """
import libvirt, sys
from xml.etree.ElementTree import tostring
from virtfleet.api.view import read
from virtfleet.api.vmi import VirtualMachineInstance
from virtfleet.domain.context import Context
from virtfleet.hypervisors import registry
mock = registry.get("mock")
spec = {"domain": {"memory": {"guest": "64Mi"}}}
vmi = read(VirtualMachineInstance, {"metadata": {"name": "a", "namespace": "b"}, "spec": spec})
connection = libvirt.open(mock.daemon(None).uri)
print(connection.defineXML(tostring(mock.build(vmi, Context()), encoding="unicode")).name())
"""
    assert run(installed, "-c", script).stdout.strip() == "b_a"
