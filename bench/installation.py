"""How long an installation takes on real nodes, and what an operator at rest costs.

At rest it renders the whole installation, and finds that nothing differs.
"""

from __future__ import annotations

import os

import orjson

from bench.node import cluster, install
from bench.pools import fleet_of, median_us, pool
from bench.report import Figure
from virtfleet.installation import Installation
from virtfleet.kube.resource import Obj
from virtfleet.operator.apply import difference
from virtfleet.operator.keeping import moves_nodes
from virtfleet.operator.render import render

TITLE = "installation: from nothing to Available, and the reconcile of what is as it should be"


def run() -> list[Figure]:
    kubevirt = fleet_of(*(pool(i) for i in range(20)))
    wanted = render(Installation(kubevirt))
    installed: list[Obj] = orjson.loads(orjson.dumps(wanted))
    sets = {o["metadata"]["name"]: o for o in installed if o["kind"] == "DaemonSet"}

    def reconcile() -> None:
        fresh = render(Installation(kubevirt))
        assert not any(difference(have, want) for have, want in zip(installed, fresh, strict=True))
        assert not moves_nodes(sets, {o["metadata"]["name"]: o for o in fresh if o["kind"] == "DaemonSet"})

    read = median_us(lambda: orjson.loads(orjson.dumps(wanted)), rounds=20)

    def figure(name: str, value: float) -> Figure:
        return Figure(name, value, "us", baseline=read, baseline_name=f"encoding and decoding {len(wanted)} objects")

    return [
        *_fresh(),
        figure("render everything, 20 pools", median_us(lambda: render(Installation(kubevirt)), rounds=20)),
        figure("reconcile, nothing to do, 20 pools", median_us(reconcile, rounds=20)),
    ]


def _fresh() -> list[Figure]:
    """`virtfleet up` on nodes that are ready, with the guest's image in the cache; twice."""
    if os.geteuid() != 0:
        return []
    with cluster(["a", "b", "c"]) as (data, starting):
        name = "starting the bare cluster"
        return [
            Figure(
                "a new installation on three nodes, until Available",
                install(data),
                "s",
                starting,
                name,
                "a few seconds",
            ),
            Figure("virtfleet up once more", install(data), "s", starting, name),
        ]
