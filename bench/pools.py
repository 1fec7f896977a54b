"""How long pool decisions take: matching a VMI, the affinities of a large fleet, and checking a KubeVirt object.

What a launcher Pod costs is measured by `pods`, what the operator does by `installation`.
"""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter_ns
from typing import Any

import orjson

from bench.report import Figure
from virtfleet.admission.review import review
from virtfleet.installation import Installation
from virtfleet.pools import terms
from virtfleet.pools.launcher import Fleet
from virtfleet.pools.matching import match
from virtfleet.pools.model import pools_of
from virtfleet.pools.placement import handler_placement

TITLE = "pools: matching and placement"


def fleet_of(*entries: dict[str, Any]) -> dict[str, Any]:
    configuration = {"developerConfiguration": {"featureGates": ["VirtHandlerPools"]}}
    return {
        "apiVersion": "kubevirt.io/v1",
        "kind": "KubeVirt",
        "metadata": {"name": "kubevirt", "namespace": "kubevirt"},
        "spec": {"configuration": configuration, "virtHandlerPools": list(entries)},
    }


def pool(i: int, **node_selector: str) -> dict[str, Any]:
    return {
        "name": f"pool-{i}",
        "virtLauncherImage": f"launcher:{i}",
        "nodeSelector": node_selector or {"pool": f"p{i}"},
        "selector": {"deviceNames": [f"x.io/device-{i}"], "vmLabels": {"matchLabels": {"team": f"team-{i}"}}},
    }


def median_us(action: Callable[[], object], rounds: int = 200) -> float:
    times = []
    for _ in range(rounds):
        start = perf_counter_ns()
        action()
        times.append(perf_counter_ns() - start)
    return sorted(times)[rounds // 2] / 1000


def run() -> list[Figure]:
    fifty = fleet_of(*(pool(i) for i in range(50)))
    pools = pools_of(fifty)
    fleet = Fleet.of(fifty, "launcher:default")
    devices = {"hostDevices": [{"name": "d", "deviceName": "x.io/device-49"}]}
    last = {"metadata": {"name": "vm", "labels": {"app": "web"}}, "spec": {"domain": {"devices": devices}}}
    none = {"metadata": {"name": "vm", "labels": {"app": "web"}}, "spec": {"domain": {"devices": {}}}}
    shared = pools_of(fleet_of(*(pool(i, gpu=f"m{i}", zone=f"z{i % 4}") for i in range(20))))
    apart = fleet_of(*(pool(i, **{f"{key}{i}": "1" for key in "abc"}) for i in range(40)))
    read = median_us(lambda: orjson.loads(orjson.dumps(fifty)))

    def figure(name: str, value: float, aim: str = "") -> Figure:
        return Figure(
            name, value, "us", baseline=read, baseline_name="reading the KubeVirt object of 50 pools", aim=aim
        )

    def affinities() -> None:
        terms._solved.cache_clear()  # what is worked out is kept, and the first time is what counts here
        for handler in (None, *shared):
            handler_placement(shared, handler)

    def check(kubevirt: dict[str, Any]) -> float:
        def once() -> None:
            terms._solved.cache_clear()
            review(kubevirt, Installation(kubevirt))

        return median_us(once, rounds=20)

    return [
        figure("match, 50 pools, none matches", median_us(lambda: match(pools, none))),
        figure("match, 50 pools, the last one", median_us(lambda: match(pools, last))),
        figure(
            "pool, hypervisor, image and affinity, 50 pools",
            median_us(lambda: fleet.affinity(last, fleet.launcher(last).pool)),
        ),
        figure(
            "all 21 handler affinities, 20 pools that share two keys",
            median_us(affinities, rounds=20),
        ),
        figure("check a KubeVirt object of 50 pools", check(fifty), "under 50,000"),
        figure("refuse 40 pools of three keys each", check(apart), "under 50,000"),
    ]
