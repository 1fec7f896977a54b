"""A guest that never stops talking does not fill its node's disk."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from component.moving import Place, counting, image
from tests.waiting import eventually
from virtfleet.launcher.libvirtd import logs

# Writes to the serial port, and does nothing else.
FLOODS = bytes.fromhex("bafb03b003eebaf803b078eeebfd")


@pytest.mark.slow
async def test_the_log_of_a_flooded_console_stays_short() -> None:
    with TemporaryDirectory(prefix="vff-") as directory:  # where the launcher's user may look
        os.chmod(directory, 0o755)
        place = Place(counting(), image(Path(directory, "disk.img"), FLOODS), Path(directory, "emulators"))
        async with place:
            await place.start()
            log, kept = (Path(f"{place.console}-log{more}") for more in ("", ".0"))
            await asyncio.to_thread(eventually, lambda: kept.exists() and log.stat().st_size < logs.MOST, deadline=100)
            assert 0 < kept.stat().st_size <= logs.MOST
            size = log.stat().st_size
            await asyncio.to_thread(eventually, lambda: log.stat().st_size != size)  # the guest goes on
