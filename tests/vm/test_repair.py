"""A VM that cannot start says why, and starts when that is repaired."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from virtfleet.domain.context import Context
from virtfleet.hypervisors import registry
from virtfleet.launcher.alone.standalone import Standalone
from virtfleet.local import guestimage
from virtfleet.protocol.client import Refused
from virtfleet.protocol.messages import GetState, Status
from vm.guests import admitted, guest, machine


@pytest.fixture
def image() -> Iterator[Path]:
    with tempfile.NamedTemporaryFile() as file:
        file.truncate(1 << 20)
        yield Path(file.name)


async def test_a_start_that_failed_is_repeated_when_the_reason_is_gone(image: Path) -> None:
    vmi = admitted(machine([{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}], startStrategy="Paused"))
    sources = {"root": guest().image, "data": image}
    cache = guestimage.default_cache() / "capabilities"
    async with Standalone(vmi, registry.get("qemu-kvm"), Context(emulated=True), sources, cache=cache) as vm:
        os.chmod(image, 0)
        with pytest.raises(Refused, match=r"cannot be started.*until this is repaired.*disk\.img.*Permission denied"):
            await vm.start()
        assert (await vm.client.call(GetState())).status is Status.ABSENT
        with pytest.raises(Refused, match="Permission denied"):
            await vm.sync(vm.vmi)
        os.chmod(image, 0o666)
        assert (await vm.sync(vm.vmi)).status is Status.PAUSED
