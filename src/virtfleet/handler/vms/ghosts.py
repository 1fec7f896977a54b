"""Records of the VMs that were ever started here, on the node's own disk.

A VMI can vanish from the API server while its handler is not looking. What it left on this node is found by its record,
which is written before anything is done for the VM and removed when nothing of it is left.
"""

from __future__ import annotations

import contextlib
import logging
from pathlib import Path

import msgspec

logger = logging.getLogger(__name__)


class Ghost(msgspec.Struct, frozen=True, kw_only=True):
    """A VM that was here."""

    namespace: str
    name: str
    uid: str
    pod: str
    """UID of the launcher's Pod."""

    @property
    def key(self) -> str:
        return f"{self.namespace}/{self.name}"


class Ghosts:
    """All records, read once and kept in step with the directory."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        directory.mkdir(parents=True, exist_ok=True)
        self._by_uid = {ghost.uid: ghost for path in directory.glob("*.json") if (ghost := _read(path))}

    def of(self, key: str) -> list[Ghost]:
        """Those that had this name; after a VMI was made anew there may be two."""
        return [ghost for ghost in self._by_uid.values() if ghost.key == key]

    def keys(self) -> set[str]:
        return {ghost.key for ghost in self._by_uid.values()}

    def add(self, ghost: Ghost) -> None:
        if self._by_uid.get(ghost.uid) != ghost:
            temporary = self._path(ghost.uid).with_suffix(".new")
            temporary.write_bytes(msgspec.json.encode(ghost))
            temporary.replace(self._path(ghost.uid))
            self._by_uid[ghost.uid] = ghost

    def remove(self, uid: str) -> None:
        self._path(uid).unlink(missing_ok=True)
        self._by_uid.pop(uid, None)

    def _path(self, uid: str) -> Path:
        return self._directory / f"{uid}.json"


def _read(path: Path) -> Ghost | None:
    with contextlib.suppress(OSError):
        try:
            return msgspec.json.decode(path.read_bytes(), type=Ghost)
        except msgspec.MsgspecError as error:
            logger.error("%s is no record of a VM and is removed: %s", path, error)
            path.unlink()
    return None
