"""Every test here boots a real guest. Those of a whole installation share one cluster, that of the examples.

It is the local one that `make up` starts, or, where KUBECONFIG names a cluster, VirtFleet installed on that one.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from cluster.clusters import KUBECONFIG, Cluster, start_local, stop_local
from vm import kubehome

HERE = Path(__file__).parent
EXAMPLES = HERE.parents[1] / "examples"
# Tests that take nodes, handlers or launchers away; they take about as long as all others of a fleet.
UPKEEP = ("test_drain", "test_pools_live", "test_streams", "test_updates", "test_upgrade")


@pytest.hookimpl(tryfirst=True)  # before xdist reads the groups
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(HERE):
            item.add_marker(pytest.mark.vm)
            shared = "fleet" in getattr(item, "fixturenames", ())
            if not shared and not item.get_closest_marker("both_homes"):
                item.add_marker(pytest.mark.local_home("no cluster takes part"))
            item.add_marker(pytest.mark.xdist_group(_group(item.path) if shared else item.path.name))


def _group(path: Path) -> str:
    """At home one process tests all that share a cluster, and there are several. Elsewhere all processes share one."""
    if KUBECONFIG:
        return path.stem
    if path.parent.name == "trouble":
        return "trouble"
    return "upkeep" if path.stem in UPKEEP else "fleet"


@pytest.fixture(scope="session")
def real() -> Iterator[Cluster]:
    """VirtFleet on the cluster that KUBECONFIG names, and of all processes that test there."""
    cluster = Cluster(Path(KUBECONFIG))
    if os.environ.get(kubehome.SHARED):
        yield cluster
        return
    with kubehome.installed(cluster):
        yield cluster


@pytest.fixture(scope="session")
def fleet(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """Three nodes, VirtFleet, two pools."""
    if KUBECONFIG:
        yield request.getfixturevalue("real")
        return
    if os.geteuid() != 0:
        pytest.skip("nodes run real containers, which needs root")
    cluster = start_local((EXAMPLES / "nodes.yaml").read_text(), "--kubevirt", str(EXAMPLES / "kubevirt.yaml"))
    try:
        yield cluster
    finally:
        stop_local(cluster)
