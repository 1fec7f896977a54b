"""What is known of each container, on disk from the moment before it is made, so that a killed agent finds it again."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import msgspec

UNKNOWN_EXIT = 137  # what Kubernetes says of a container whose end nobody saw
GRACE = 30.0  # Kubernetes' default


class Container(msgspec.Struct, kw_only=True, omit_defaults=True):
    """One run of one container of a pod. Times are seconds since the epoch; 0 means not yet."""

    id: str
    pod: str  # its uid
    name: str
    attempt: int = 0
    version: str = ""  # the image as its spec named it, which can change under a running pod
    image: str = ""
    image_id: str = ""
    log: str = ""
    stop_signal: str = ""  # the image's; empty for SIGTERM
    grace: float = GRACE  # seconds that its pod's spec gives it to end
    cgroup: str = ""
    resources: dict[str, dict[str, str]] | None = None  # requests and limits that it has; None: as its spec says
    boot: str = ""  # of the machine; processes of another boot are gone
    pid: int = 0
    pid_start: int = 0
    monitor: int = 0
    monitor_start: int = 0
    backoff: float = 0  # seconds to wait after its end before it is run again
    started: float = 0
    finished: float = 0
    exit_code: int = 0
    reason: str = ""
    message: str = ""
    retired: bool = False  # nothing is left of it but this record and its log

    @property
    def running(self) -> bool:
        return bool(self.started) and not self.finished

    @property
    def stop_number(self) -> int:
        """The signal that asks it to end."""
        name = f"SIG{self.stop_signal.upper().removeprefix('SIG')}"
        known = signal.Signals.__members__.get(name, signal.SIGTERM)
        return int(self.stop_signal) if self.stop_signal.isdigit() else known

    def save(self, home: Path) -> None:
        write_atomically(home / "container.json", msgspec.json.encode(self))

    def fail(self, now: float, exit_code: int, reason: str, message: str) -> None:
        self.finished, self.exit_code, self.reason, self.message = now, exit_code, reason, message


def records(directory: Path) -> Iterator[tuple[Path, Container | None]]:
    """Every container's directory with its record; None for one that an agent was killed in the middle of making."""
    for path in sorted(directory.glob("*")):
        try:
            yield path, msgspec.json.decode((path / "container.json").read_bytes(), type=Container)
        except (FileNotFoundError, msgspec.DecodeError):
            yield path, None


def write_atomically(path: Path, content: bytes) -> None:
    temporary = path.with_name(f".{path.name}.new")
    temporary.write_bytes(content)
    os.replace(temporary, path)
