"""The containers that share directories with the guest, as the launcher beside them sees them: by their sockets."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from xml.etree.ElementTree import Element

from virtfleet.domain import paths
from virtfleet.launcher.failure import Failure

_LIMIT, _POLL = 30.0, 0.05  # seconds


async def awaited(domain: Element, *, limit: float = _LIMIT) -> None:
    """All that the document names listen: the hypervisor connects once, when it starts."""
    sockets = [Path(source.get("socket", "")) for source in domain.iterfind("devices/filesystem/source[@socket]")]
    try:
        async with asyncio.timeout(limit):
            while True:
                if not _absent(sockets):
                    return
                await asyncio.sleep(_POLL)
    except TimeoutError:
        names = ", ".join(f"virtiofs-{path.stem}" for path in _absent(sockets))
        raise Failure(f"nobody shares the VM's file systems: see what its Pod's containers say: {names}") from None


def _absent(sockets: Sequence[Path]) -> list[Path]:
    return [path for path in sockets if not path.is_socket()]


def say_goodbye(directory: Path = Path(paths.VIRTIOFS)) -> None:
    """Let those end that no hypervisor has come to: the Pod ends with the last of its containers."""
    for path in directory.glob("*.sock"):
        with suppress(OSError), socket.socket(socket.AF_UNIX) as word:
            word.setblocking(False)  # who serves a hypervisor does not listen, and ends with it
            word.connect(str(path))
