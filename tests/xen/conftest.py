"""A real Xen with its dom0, which all tests here share. On demand: `make test-xen`."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from virtfleet.local import guestimage
from xen import node
from xen.dom0 import build
from xen.machine import TREE, Shell, booted

HERE = Path(__file__).parent


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(HERE):
            item.add_marker(pytest.mark.on_demand("TEST_XEN", "boots Xen in an emulated machine, which takes minutes"))
            item.add_marker(pytest.mark.timeout(900))


@pytest.fixture(scope="session")
def files() -> Iterator[Path]:
    """What guests boot from; the dom0 sees it at the same place, and whatever else tests put there."""
    guest = guestimage.build(guestimage.default_cache())
    with tempfile.TemporaryDirectory(prefix="xen-") as made:
        for source in (guest.kernel, guest.initrd, guest.disk):
            shutil.copy(source, made)
        yield Path(made)


@pytest.fixture(scope="session")
def dom0(files: Path) -> Iterator[Shell]:
    if os.geteuid() != 0:
        pytest.skip("a dom0 is built by root")
    made, began = build(guestimage.default_cache()), time.monotonic()
    with (
        tempfile.TemporaryDirectory(prefix="xen-") as place,
        node.link() as tap,
        booted(made, Path(place), TREE, files, tap=tap) as shell,
    ):
        sys.stderr.write(f"Xen and its dom0 are up after {time.monotonic() - began:.0f} s\n")
        yield shell
