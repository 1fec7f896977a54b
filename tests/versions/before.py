"""The version before this one: its sources, from its commit.

    python -m versions.before DIRECTORY

puts them there, and says which version it is and where its package lies.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
COMMIT, VERSION = "03b3f1d", "0.1.0"
NEEDED = pytest.mark.on_demand("UPGRADE", "it needs the commit of the version before, and minutes")


def sources(directory: Path) -> Path:
    """The directory of its package."""
    archive = subprocess.run(
        ["git", "archive", COMMIT, "src/virtfleet"], cwd=HERE.parents[1], check=True, capture_output=True
    )
    subprocess.run(["tar", "x", "-C", str(directory)], input=archive.stdout, check=True)
    return directory / "src/virtfleet"


def manifest() -> str:
    """Of its operator."""
    return (HERE / f"operator-{VERSION}.yaml").read_text()


if __name__ == "__main__":
    sys.stdout.write(f"{VERSION}={sources(Path(sys.argv[1]))}\n")
