"""A container starts, runs and stops with libvirt's LXC driver, from a VMI."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.component.lxc_container import DRIVER


def test_a_container_starts_runs_and_stops(tmp_path: Path) -> None:
    if os.getuid() != 0 or not DRIVER.exists() or not Path("/bin/busybox").exists():
        pytest.skip("needs root, libvirt's LXC driver and busybox")
    command = ["unshare", "--mount", sys.executable, "-m", "tests.component.lxc_container", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=90, check=False)
    assert done.returncode == 0, done.stderr
