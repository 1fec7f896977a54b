"""A USB device of the caller's in a VM: plugged in by virtctl, and asked by the guest's firmware."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cluster.clusters import Cluster
from vm.accessed import Used
from vm.guests import PATIENCE
from vm.test_virtctl import virtctl
from waiting import eventually

pytestmark = pytest.mark.timeout(600)

NAMESPACE = "usb"
STAND_IN = Path(__file__).parent / "usb"


class WithPorts(Used):
    """The VM `web` with USB ports for others' devices."""

    def adapt(self, vm: dict[str, Any]) -> None:
        vm["spec"]["template"]["spec"]["domain"]["devices"]["clientPassthrough"] = {}


@pytest.fixture(scope="module")
def web(fleet: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[WithPorts]:
    with WithPorts(fleet, NAMESPACE, tmp_path_factory.mktemp("home")) as used:
        used.environment["PATH"] = f"{STAND_IN}:{os.environ['PATH']}"
        yield used


@pytest.mark.parametrize("time", ["first", "second"])
def test_a_device_is_plugged_in_and_asked_by_the_firmware(web: WithPorts, tmp_path: Path, time: str) -> None:
    """And once more, when the first is gone."""
    asked = tmp_path / "asked"
    asked.touch()
    web.environment["USB_ASKED"] = str(asked)
    with web.beside(virtctl(), "-n", NAMESPACE, "usbredir", "feed:beef", "web"):
        eventually(lambda: "hello" in asked.read_text(), PATIENCE)
        web.does(virtctl(), "-n", NAMESPACE, "reset", "web")  # the firmware looks what there is
        eventually(lambda: {"descriptor 1", "descriptor 2"} <= set(asked.read_text().splitlines()), PATIENCE)
