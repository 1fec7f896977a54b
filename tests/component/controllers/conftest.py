"""A running cluster without its HTTP face, one for each test."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from local_cluster import Cluster, Kubelets, local_cluster


@pytest.fixture
async def running(tmp_path: Path) -> AsyncIterator[tuple[Cluster, Kubelets]]:
    async with local_cluster(tmp_path) as parts:
        yield parts


@pytest.fixture
def cluster(running: tuple[Cluster, Kubelets]) -> Cluster:
    return running[0]


@pytest.fixture
def kubelets(running: tuple[Cluster, Kubelets]) -> Kubelets:
    return running[1]
