"""What a node can run, found out by the image that will run it."""

import os
from pathlib import Path

COMMAND = "node-labeller"
"""As which a launcher finds that out, instead of running a VM."""


def keep(path: Path, content: bytes) -> None:
    """Write a file whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    fresh.write_bytes(content)
    fresh.replace(path)
