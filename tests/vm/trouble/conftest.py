"""One cluster for all tests of this directory: what they break, they see repaired."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from cluster.clusters import KUBECONFIG
from vm.trouble.fleet import Fleet, installed


@pytest.fixture(scope="package")
def fleet(request: pytest.FixtureRequest) -> Iterator[Fleet]:
    if KUBECONFIG:
        yield Fleet(request.getfixturevalue("real"))
        return
    if os.geteuid() != 0:
        pytest.skip("nodes run real containers, which needs root")
    with installed() as made:
        yield made
