"""Records of the launcher Pods that were ever worked on here, on the node's own disk.

A VMI can vanish from the API server while its handler is not looking. What it left on this node is found by its record,
which is written before anything is done for the VM and removed when nothing of it is left.
"""

from __future__ import annotations

import contextlib
import logging
from functools import cached_property
from pathlib import Path

import msgspec

logger = logging.getLogger(__name__)


class VmRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A launcher Pod that is or was here, and the VM that it is for."""

    namespace: str
    name: str
    uid: str
    """UID of the VMI."""
    pod: str
    """UID of the launcher's Pod."""
    since: float = 0.0
    """When it was first seen: a VMI that left and came back has two Pods here for a while, and the later one counts."""

    @property
    def vmi(self) -> str:
        return f"{self.namespace}/{self.name}"

    @property
    def key(self) -> str:
        """What it is queued under."""
        return f"{self.vmi}/{self.pod}"


class VmRecords:
    """All records, by Pod; read when they are first asked for, and kept in step with the directory."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    @cached_property
    def _by_pod(self) -> dict[str, VmRecord]:
        self._directory.mkdir(parents=True, exist_ok=True)
        records = {}
        for path in self._directory.glob("*.json"):
            if record := _read(path):
                path.replace(self._path(record.pod))  # earlier versions named it after the VMI
                records[record.pod] = record
        return records

    def of_pod(self, pod: str) -> VmRecord | None:
        return self._by_pod.get(pod)

    def of_vmi(self, uid: str) -> list[VmRecord]:
        """Those of one VMI, the earliest first."""
        return sorted((r for r in self._by_pod.values() if r.uid == uid), key=lambda record: record.since)

    def all(self) -> list[VmRecord]:
        return [*self._by_pod.values()]

    def add(self, record: VmRecord) -> None:
        if record.pod not in self._by_pod:
            temporary = self._path(record.pod).with_suffix(".new")
            temporary.write_bytes(msgspec.json.encode(record))
            temporary.replace(self._path(record.pod))
            self._by_pod[record.pod] = record

    def remove(self, pod: str) -> None:
        self._path(pod).unlink(missing_ok=True)
        self._by_pod.pop(pod, None)

    def _path(self, pod: str) -> Path:
        return self._directory / f"{pod}.json"


def _read(path: Path) -> VmRecord | None:
    with contextlib.suppress(OSError):
        try:
            return msgspec.json.decode(path.read_bytes(), type=VmRecord)
        except msgspec.MsgspecError as error:
            logger.error("%s is no record of a VM and is removed: %s", path, error)
            path.unlink()
    return None
