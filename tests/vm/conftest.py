"""Every test here boots a real guest. Those of a whole installation share one cluster, that of the examples."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from cluster.clusters import Cluster, start_local, stop_local

HERE = Path(__file__).parent
EXAMPLES = HERE.parents[1] / "examples"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(HERE):
            item.add_marker(pytest.mark.vm)


@pytest.fixture(scope="session")
def fleet() -> Iterator[Cluster]:
    """What `make up` starts: three nodes, VirtFleet, two pools."""
    if os.geteuid() != 0:
        pytest.skip("nodes run real containers, which needs root")
    cluster = start_local((EXAMPLES / "nodes.yaml").read_text(), "--kubevirt", str(EXAMPLES / "kubevirt.yaml"))
    try:
        yield cluster
    finally:
        stop_local(cluster)
