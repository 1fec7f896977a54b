"""Console blocks of the documentation, as they stand there, on the cluster that `make up` starts."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from cluster.clusters import VIRTFLEET, Cluster, Kubectl
from docblocks import Block, blocks, run

pytestmark = [
    pytest.mark.timeout(600),
    pytest.mark.local_home("the pages show the cluster of `make up`"),
]


@pytest.fixture(scope="module")
def tidied(fleet: Cluster) -> Iterator[Cluster]:
    yield fleet
    Kubectl(fleet)("delete", "pod", "try", "--ignore-not-found", "--now")


@pytest.mark.parametrize("block", [block for block in blocks() if block.mark == "run: fleet"], ids=str)
def test_the_page_shows_what_is_printed(block: Block, tidied: Cluster, tmp_path: Path) -> None:
    path = f"{Path(VIRTFLEET).parent}{os.pathsep}{os.environ['PATH']}"
    run(block, tmp_path, {"PATH": path, "KUBECONFIG": str(tidied.kubeconfig), "VIRTFLEET_DATA": str(tidied.data)})
