"""How long admission thinks about one VMI: defaults and rules, in the process, without a network."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter_ns
from typing import Any

import orjson

from bench.report import Figure
from virtfleet.admission.review import complete, review
from virtfleet.installation import Installation

TITLE = "admission: defaults and rules of one VMI"

SMALL: dict[str, Any] = {
    "apiVersion": "kubevirt.io/v1",
    "kind": "VirtualMachineInstance",
    "metadata": {"name": "vm", "namespace": "default"},
    "spec": {
        "domain": {
            "memory": {"guest": "1Gi"},
            "devices": {
                "disks": [{"name": "root", "disk": {"bus": "virtio"}}],
                "interfaces": [{"name": "default", "masquerade": {}}],
            },
        },
        "networks": [{"name": "default", "pod": {}}],
        "volumes": [{"name": "root", "containerDisk": {"image": "registry.example.com/disk:v1"}}],
    },
}
LARGE: dict[str, Any] = {
    **SMALL,
    "spec": {
        "domain": {
            "cpu": {"cores": 4, "features": [{"name": f"f{i}", "policy": "require"} for i in range(10)]},
            "memory": {"guest": "16Gi"},
            "features": {"hyperv": {name: {} for name in ("relaxed", "vapic", "spinlocks", "synictimer", "tlbflush")}},
            "devices": {
                "disks": [{"name": f"d{i}", "disk": {"bus": "virtio"}} for i in range(20)],
                "interfaces": [{"name": "n0", "masquerade": {}, "ports": [{"port": p} for p in range(1, 20)]}]
                + [{"name": f"n{i}", "bridge": {}} for i in range(1, 8)],
                "gpus": [{"name": f"g{i}", "deviceName": "nvidia.com/A100"} for i in range(4)],
            },
        },
        "networks": [{"name": "n0", "pod": {}}]
        + [{"name": f"n{i}", "multus": {"networkName": f"net{i}"}} for i in range(1, 8)],
        "volumes": [{"name": f"d{i}", "persistentVolumeClaim": {"claimName": f"c{i}"}} for i in range(20)],
        "affinity": {
            "nodeAffinity": {
                "requiredDuringSchedulingIgnoredDuringExecution": {
                    "nodeSelectorTerms": [
                        {"matchExpressions": [{"key": "zone", "operator": "In", "values": ["a", "b"]}]}
                    ]
                }
            }
        },
    },
}


def percentiles(action: Callable[[], object], rounds: int = 500) -> tuple[float, float]:
    """Median and 99th percentile in microseconds."""
    times = []
    for _ in range(rounds):
        start = perf_counter_ns()
        action()
        times.append(perf_counter_ns() - start)
    times.sort()
    return times[rounds // 2] / 1000, times[rounds * 99 // 100] / 1000


def run() -> list[Figure]:
    cluster = Installation({"spec": {"configuration": {}}})
    figures = []
    for name, vmi in (("small", SMALL), ("large", LARGE)):

        def admit(vmi: dict[str, Any] = vmi) -> object:
            completed, _ = complete(vmi, cluster)
            return review(completed, cluster)

        assert review(complete(vmi, cluster)[0], cluster).allowed
        read, _ = percentiles(lambda vmi=vmi: orjson.loads(orjson.dumps(vmi)))  # type: ignore[misc]
        median, high = percentiles(admit)
        figures += [
            Figure(
                f"{name} VMI, p50",
                median,
                "us",
                baseline=read,
                baseline_name="reading and writing it",
                aim="< 1000",
                reference="1700 to 3900 (Go)",
            ),
            Figure(f"{name} VMI, p99", high, "us"),
        ]
    return figures
