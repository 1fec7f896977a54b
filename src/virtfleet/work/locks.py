"""Locks among the processes of a machine. They go with whoever holds them, however that ends."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def locked(path: Path, *, create: bool = True, wait: bool = True) -> Iterator[None]:
    """Alone with what the file at `path` stands for. Without `wait`, BlockingIOError where somebody else has it."""
    lock = os.open(path, (os.O_CREAT if create else 0) | os.O_RDWR | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        yield
    finally:
        os.close(lock)
