"""The page for developers of hypervisors does what it says, from the first command to a guest that was tried."""

from __future__ import annotations

import os
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import yaml

from docblocks import Block, run, shown

ROOT = Path(__file__).resolve().parents[2]
VMI = """apiVersion: kubevirt.io/v1
kind: VirtualMachineInstance
metadata: {name: a, namespace: b}
spec: {domain: {memory: {guest: 64Mi}, devices: {}}}
"""
# What the page's class says is impossible, and what the one says that the command writes.
PAGES_REASON, REASON = "my hypervisor has no display", "the test driver has no devices that a guest could see or hear"


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.skipif(os.getuid() != 0, reason="trying a hypervisor needs root")
def test_the_page_runs() -> None:
    with TemporaryDirectory(prefix="virtfleet-") as directory:
        Path(directory).chmod(0o755)  # launchers are another user, and import the package
        follow_the_page(Path(directory))


def follow_the_page(tmp_path: Path) -> None:
    vmi = yaml.safe_load(VMI)
    environment = {
        "PATH": f"{ROOT}/.venv/bin:{ROOT}/.tools/bin:{os.environ['PATH']}",
        "VIRTUAL_ENV": str(ROOT / ".venv"),
        "KUBECONFIG": "",
        "VIRTFLEET_DATA": str(tmp_path / "none"),
    }

    def does(block: Block, **devices: object) -> None:
        vmi["spec"]["domain"]["devices"] = devices
        (tmp_path / "vm.yaml").write_text(yaml.safe_dump(vmi))
        run(block, tmp_path, environment)

    does(shown(__file__, "virtfleet hypervisors new"))
    written = tmp_path / "mine/src/virtfleet_mine/__init__.py"
    written.write_text(written.read_text().replace(REASON, PAGES_REASON))
    does(shown(__file__, "uv pip install"))
    environment["PYTHONPATH"] = str(tmp_path / "lib")  # as that block has exported
    vmi["spec"]["hypervisor"] = "mine"
    does(shown(__file__, "virtfleet validate"), sound={"name": "loud"}, autoattachGraphicsDevice=False)
    does(shown(__file__, "virtfleet hypervisors check"))
    without = ("autoattachGraphicsDevice", "autoattachMemBalloon", "autoattachSerialConsole")
    does(shown(__file__, "virtfleet launch"), **dict.fromkeys(without, False))


def test_the_example_is_what_the_command_writes() -> None:
    from virtfleet.cli.look.hypervisors import files

    example = ROOT / "examples/hypervisor-plugin"
    written = files("mock")
    assert {path: (example / path).read_text() for path in written} == written
    with pytest.raises(ValueError, match="already"):
        files("kvm")
    with pytest.raises(ValueError, match="no name"):
        files("../kvm")
