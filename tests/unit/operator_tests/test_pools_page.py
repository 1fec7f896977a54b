"""What docs/pools.md shows is what the commands say."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from docblocks import Block, marked, run
from virtfleet.cli.main import main

from .fleets import kubevirt

REPOSITORY = Path(__file__).parents[3]
EXAMPLES = REPOSITORY / "examples"
PAGE = (REPOSITORY / "docs/pools.md").read_text()


def pool(name: str, image: str, nodes: dict[str, str], **selector: Any) -> dict[str, Any]:
    return {"name": name, "virtLauncherImage": image, "nodeSelector": nodes, "selector": selector}


BAD = [
    {"name": "GPU", "nodeSelector": {}, "selector": {"deviceNames": [""]}},
    pool("gpu", "registry.example.com/virt-launcher:v1", {"accelerator": "nvidia"}, vmLabels={}),
]
TWICE = [
    pool("gpu", "registry.example.com/virt-launcher:v1", {"zone": zone}, deviceNames=["nvidia.com/GPU"])
    for zone in ("west", "east")
]
OVERLAPPING = [
    pool("gpu", "registry.example.com/virt-launcher", {"accelerator": "nvidia"}, deviceNames=["nvidia.com/GPU"]),
    pool(
        "west",
        "registry.example.com/virt-launcher:west",
        {"zone": "west"},
        deviceNames=["nvidia.com/GPU"],
        vmLabels={"matchLabels": {"zone": "west"}},
    ),
    pool(
        "never",
        "registry.example.com/virt-launcher:never",
        {"zone": "west", "tier": "gold"},
        vmLabels={"matchLabels": {"tier": "gold"}},
    ),
]
APART = [pool(f"p{i}", "launcher:1", {f"{key}{i}": "1" for key in "abc"}, deviceNames=[f"x.io/d{i}"]) for i in range(6)]


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    slopped = yaml.safe_load((EXAMPLES / "vmi.yaml").read_text())
    slopped["metadata"] = {"name": "slopped"}
    devices = [{"name": "slop", "deviceName": "superduper.io/MegaSlop_9000"}]
    slopped["spec"]["domain"]["devices"]["hostDevices"] = devices
    boxed = {
        "apiVersion": "kubevirt.io/v1",
        "kind": "VirtualMachineInstance",
        "metadata": {"name": "boxed", "labels": {"fleet.example/kind": "box"}},
        "spec": {"hypervisor": "qemu-kvm", "domain": {"memory": {"guest": "64Mi"}, "devices": {}}},
    }
    bad = kubevirt(virtHandlerPools=BAD)
    bad["spec"]["configuration"] = {}
    written = {
        "slopped": slopped,
        "boxed": boxed,
        "bad": bad,
        "twice": kubevirt(virtHandlerPools=TWICE),
        "overlap": kubevirt(virtHandlerPools=OVERLAPPING),
        "apart": kubevirt(virtHandlerPools=APART),
    }
    for name, content in written.items():
        (tmp_path / f"{name}.yaml").write_text(yaml.safe_dump(content))
    (tmp_path / "examples").symlink_to(EXAMPLES)
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(
    "command",
    [
        "validate -f boxed.yaml --kubevirt examples/pools/hypervisor.yaml",
        "validate -f apart.yaml",
    ],
)
@pytest.mark.usefixtures("files")
def test_the_page_shows_what_the_command_says(command: str) -> None:
    said = CliRunner().invoke(main, command.split()).output
    shown = " ".join(PAGE.split())  # long lines are wrapped there
    header = "virtualmachineinstance/", "kubevirt/kubevirt is refused", "Checked with "
    lines = [line for line in said.splitlines() if line and not line.startswith(header)]
    assert lines
    for line in lines:
        assert " ".join(line.split()) in shown


@pytest.mark.slow
@pytest.mark.usefixtures("files")
@pytest.mark.parametrize("block", marked(__file__), ids=str)
def test_a_block_prints_what_the_page_shows(block: Block, tmp_path: Path) -> None:
    run(
        block,
        tmp_path,
        {"PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin", "KUBECONFIG": "", "HOME": str(tmp_path)},
    )
