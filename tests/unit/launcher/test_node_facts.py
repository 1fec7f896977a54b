"""What launcher images say of their node, one after another."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from virtfleet.domain import paths
from virtfleet.hypervisors.base import Hypervisor
from virtfleet.launcher.node import facts, trial


def test_another_image_speaks_of_its_own_hypervisor_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    known = {"qemu-kvm": "no /dev/kvm", "lxc": "virtlxcd is not installed"}
    (tmp_path / paths.HYPERVISORS).write_text(json.dumps(known))

    def trouble(hypervisor: Hypervisor, cache: Path) -> str:
        return "" if hypervisor.descriptor.name == "lxc" else "not asked for"

    monkeypatch.setattr(trial, "trouble", trouble)
    assert facts.run(["--directory", str(tmp_path), "--hypervisor", "lxc"]) == 0
    assert json.loads((tmp_path / paths.HYPERVISORS).read_text()) == {**known, "lxc": ""}
