"""Address ranges for a new cluster: such that this machine has nothing in them yet.

Clusters side by side, and whatever else the machine is connected to, must keep their ranges apart; a cluster's own are
chosen once and written into its settings. A range has routes only once the cluster's first node runs, so those that
were chosen are also noted in one place of the machine.
"""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
from collections.abc import Iterable
from ipaddress import IPv4Network
from pathlib import Path

NOTES = Path("/run/virtfleet/ranges.json")
# What Kubernetes installations commonly use comes first, so that a single cluster looks familiar.
_POD_RANGES = [IPv4Network(f"10.{n}.0.0/16") for n in range(244, 190, -1)]
_SERVICE_RANGES = [IPv4Network(f"10.{n}.0.0/16") for n in range(96, 64, -1)]


def choose(taken: Iterable[IPv4Network]) -> tuple[str, str]:
    """A range for pods and one for Services that overlap nothing in `taken`."""
    taken = list(taken)

    def free(candidates: list[IPv4Network], what: str) -> str:
        for candidate in candidates:
            if not any(map(candidate.overlaps, taken)):
                return str(candidate)
        raise ValueError(f"no address range for {what} is free between {candidates[-1]} and {candidates[0]}")

    return free(_POD_RANGES, "pods"), free(_SERVICE_RANGES, "Services")


def claim(data: Path, notes: Path = NOTES) -> tuple[str, str]:
    """Ranges for the cluster in `data`, which nobody else gets as long as that directory is there.

    Only root can start nodes, and without nodes nothing has an address.
    """
    if os.geteuid() != 0:
        return choose(in_use())
    notes.parent.mkdir(parents=True, exist_ok=True)
    with open(notes, "a+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.seek(0)
        known: dict[str, list[str]] = json.loads(file.read() or "{}")
        known = {place: ranges for place, ranges in known.items() if Path(place).is_dir() and Path(place) != data}
        chosen = choose([*in_use(), *(IPv4Network(network) for ranges in known.values() for network in ranges)])
        known[str(data)] = list(chosen)
        file.truncate(0)
        file.write(json.dumps(known))
    return chosen


def in_use() -> list[IPv4Network]:
    """The networks that this machine has routes to, its default route left out."""
    command = ["ip", "-json", "-4", "route", "show", "table", "all"]
    listed = subprocess.run(command, capture_output=True, check=True, timeout=60).stdout
    destinations = {route["dst"] for route in json.loads(listed or "[]")}
    return [IPv4Network(d, strict=False) for d in destinations if d != "default"]
