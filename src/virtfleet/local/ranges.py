"""Address ranges for a new cluster: such that this machine has nothing in them yet.

Clusters side by side, and whatever else the machine is connected to, must keep their ranges apart; a cluster's own are
chosen once and written into its settings.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterable
from ipaddress import IPv4Network

# What Kubernetes installations commonly use comes first, so that a single cluster looks familiar.
_POD_RANGES = [IPv4Network(f"10.{n}.0.0/16") for n in range(244, 190, -1)]
_SERVICE_RANGES = [IPv4Network(f"10.{n}.0.0/16") for n in range(96, 64, -1)]


def choose(taken: Iterable[IPv4Network]) -> tuple[str, str]:
    """A range for pods and one for Services that overlap nothing in `taken`."""
    taken = list(taken)

    def free(candidates: list[IPv4Network], what: str) -> str:
        for candidate in candidates:
            if not any(candidate.overlaps(network) for network in taken):
                return str(candidate)
        raise ValueError(f"no address range for {what} is free between {candidates[-1]} and {candidates[0]}")

    return free(_POD_RANGES, "pods"), free(_SERVICE_RANGES, "Services")


def in_use() -> list[IPv4Network]:
    """The networks that this machine has routes to, its default route left out."""
    listed = subprocess.run(["ip", "-json", "-4", "route", "show", "table", "all"], capture_output=True, check=True)
    destinations = {route["dst"] for route in json.loads(listed.stdout or "[]")}
    return [IPv4Network(d, strict=False) for d in destinations if d != "default"]
