"""A hypervisor of a third party, installed as a package, runs a VM through the same launcher."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

EXAMPLE = Path(__file__).parents[2] / "examples" / "hypervisor-plugin"
VMI = {
    "apiVersion": "kubevirt.io/v1",
    "kind": "VirtualMachineInstance",
    "metadata": {"name": "guest", "namespace": "default"},
    "spec": {
        "hypervisor": "mock",
        "domain": {
            "memory": {"guest": "64Mi"},
            "devices": {
                "autoattachGraphicsDevice": False,
                "autoattachMemBalloon": False,
                "autoattachSerialConsole": False,
            },
        },
    },
}


@pytest.fixture
def installed() -> Iterator[Path]:
    """Where the example is installed, readable for the launcher's user."""
    if os.geteuid() != 0:
        pytest.skip("namespaces need root")
    pytest.importorskip("setuptools")
    with tempfile.TemporaryDirectory() as directory:
        os.chmod(directory, 0o755)
        subprocess.run(["cp", "-r", EXAMPLE, f"{directory}/source"], check=True)
        build = "import sys; from setuptools.build_meta import build_wheel; build_wheel(sys.argv[1])"
        command = [sys.executable, "-c", build, directory]
        subprocess.run(command, cwd=f"{directory}/source", check=True, capture_output=True)
        with zipfile.ZipFile(next(Path(directory).glob("*.whl"))) as wheel:
            wheel.extractall(directory)
        yield Path(directory)


def test_a_vm_on_an_installed_hypervisor_starts_and_stops(installed: Path) -> None:
    (installed / "vmi.yaml").write_text(yaml.safe_dump(VMI))
    virtfleet = Path(sys.executable).parent / "virtfleet"
    command = [str(virtfleet), "launch", "-f", str(installed / "vmi.yaml"), "--no-console"]
    environment = {**os.environ, "PYTHONPATH": str(installed)}
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as vm:
        assert vm.stderr is not None
        said = [line := vm.stderr.readline()]
        while line and "the domain has started" not in line:
            said.append(line := vm.stderr.readline())
        vm.send_signal(signal.SIGINT)
        out, rest = vm.communicate(timeout=60)
    assert (vm.returncode, out) == (0, "guest: Shutoff (Shutdown)\n"), [*said, rest]
