"""docs/metrics.md lists what the components expose: every metric with its labels, and nothing else."""

from __future__ import annotations

import importlib
import pkgutil
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from prometheus_client import REGISTRY
from prometheus_client.metrics import MetricWrapperBase
from prometheus_client.metrics_core import Metric

from virtfleet.controller import metrics as controller
from virtfleet.controller.migration.records import decode_migration
from virtfleet.controller.records.instance import decode_instance
from virtfleet.controller.records.vm import decode_vm
from virtfleet.handler import metrics as handler
from virtfleet.handler.pods.launchers import Presence
from virtfleet.protocol.messages import MigrationReport, Stats

PAGE = Path(__file__).parents[2] / "docs" / "metrics.md"
COMPONENTS = ("kube", "operator", "controller", "gateway", "handler")
_ROW = re.compile(r"^\| `(kubevirt_\w+)` \|(.*?)\|(.+)\|$", re.MULTILINE)


def documented() -> dict[str, set[str]]:
    return {name: set(re.findall(r"`(\w+)`", labels)) for name, labels, _ in _ROW.findall(PAGE.read_text())}


def of_modules() -> dict[str, set[str]]:
    """What the components count in variables."""
    for component in COMPONENTS:
        package = importlib.import_module(f"virtfleet.{component}")
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            importlib.import_module(module.name)
    metrics = [c for c in REGISTRY._collector_to_names if isinstance(c, MetricWrapperBase)]
    return {_shown(metric.describe()[0]): set(metric._labelnames) for metric in metrics}


def of_collectors(*families: Metric) -> dict[str, set[str]]:
    """What is put together when somebody asks."""
    return {_shown(family): set().union(*(sample.labels for sample in family.samples)) for family in families}


def _shown(family: Metric) -> str:
    return f"{family.name}_total" if family.type == "counter" else family.name


def fleet() -> controller.Fleet:
    def cache(*values: Any) -> Any:
        return SimpleNamespace(list=lambda: list(values), on_change=lambda _: None)

    named = b'{"metadata": {"name": "a", "namespace": "b"}}'
    pods: Any = SimpleNamespace(of=lambda _: [])
    ended = [decode_migration(named[:-1] + b', "status": {"phase": "%s"}}' % p) for p in (b"Succeeded", b"Failed")]
    times = b'"startTimestamp": "2026-01-01T00:00:00Z", "endTimestamp": "2026-01-01T00:00:01Z"'
    moved = decode_instance(named[:-1] + b', "status": {"migrationState": {%s}}}' % times)
    return controller.Fleet(cache(decode_vm(named)), cache(moved), pods, cache(*ended))


async def usage() -> handler.Usage:
    async def call(_: object) -> Stats:
        return Stats(values={key.replace("N", "0"): 1 for key in handler.METRICS})

    record = SimpleNamespace(namespace="b", name="a")
    report = MigrationReport(uid="m", total_bytes=3, left_bytes=1)
    launcher = SimpleNamespace(presence=Presence.HERE, call=call, report=lambda _: report)
    vm: Any = SimpleNamespace(record=record, launcher=launcher, outgoing=SimpleNamespace(uid="m"))
    made = handler.Usage("n1", lambda: [vm])
    await made.gather()
    return made


async def test_every_metric_is_listed_with_its_labels() -> None:
    exposed = of_modules() | of_collectors(*fleet().collect(), *(await usage()).collect())
    assert documented() == {name: labels for name, labels in exposed.items() if name.startswith("kubevirt_")}


@pytest.mark.parametrize("name", ["kubevirt_vmi_phase_count", "kubevirt_vmi_cpu_usage_seconds_total"])
def test_the_page_is_read_as_it_is_written(name: str) -> None:
    assert "node" in documented()[name]
