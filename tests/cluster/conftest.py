"""A cluster to test against: the one that KUBECONFIG names, else a local one of our own.

The tests here are written once and run against both, so that the local cluster can be compared with a real Kubernetes.
What only a local cluster can show (killing its server, filling its disk) asks for the fixture `local_cluster`, or has
the mark `local_home` and starts one itself.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from clusters import KUBECONFIG, NODES, Cluster, Kubectl, start_local, stop_local
from rawapi import RawApi


@pytest.hookimpl(tryfirst=True)  # before xdist reads the groups
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.parent != Path(__file__).parent:
            continue
        # Who shares a cluster is tested by one process.
        used = getattr(item, "fixturenames", ())
        shared = "cluster" in used and not KUBECONFIG
        item.add_marker(pytest.mark.xdist_group("cluster" if shared else item.path.name))
        if "node" in used:
            item.add_marker(pytest.mark.alone)  # it takes a node away for a while, which VMs would notice
        if "local_cluster" in used:
            item.add_marker(pytest.mark.local_home("it breaks the cluster"))


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    if KUBECONFIG:
        yield Cluster(Path(KUBECONFIG))
        return
    local = start_local(NODES)
    yield local
    stop_local(local)


@pytest.fixture
def local_cluster() -> Iterator[Cluster]:
    """A local cluster for one test, which may do with it as it likes."""
    local = start_local("nodes: []")
    yield local
    stop_local(local)


@pytest.fixture
def kubectl(cluster: Cluster) -> Iterator[Kubectl]:
    """kubectl in a namespace that exists for one test."""
    everywhere = Kubectl(cluster)
    namespace = f"t-{uuid.uuid4().hex[:8]}"
    everywhere("create", "namespace", namespace)
    yield Kubectl(cluster, namespace)
    everywhere("delete", "namespace", namespace, "--wait=false")


@pytest.fixture
def raw(cluster: Cluster) -> RawApi:
    """Plain HTTP with an administrator's certificate, for what no client would send."""
    return RawApi(cluster.kubeconfig)
