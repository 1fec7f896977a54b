"""A container starts, runs and stops with libvirt's LXC driver, from a VMI."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from tests.component.lxc_container import DRIVER


def test_a_container_starts_runs_and_stops() -> None:
    if os.getuid() != 0 or not DRIVER.exists() or not Path("/bin/busybox").exists():
        pytest.skip("needs root, libvirt's LXC driver and busybox")
    with tempfile.TemporaryDirectory(prefix="lxc-") as directory:  # pytest's are closed to the guest's users
        command = ["unshare", "--mount", sys.executable, "-m", "tests.component.lxc_container", directory]
        done = subprocess.run(command, capture_output=True, text=True, timeout=90, check=False)
    assert done.returncode == 0, done.stderr
