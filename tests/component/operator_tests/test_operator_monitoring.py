"""Prometheus is told of the components where ServiceMonitors are served, and nowhere else."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from hollow import NAMESPACE, Hollow, hollow, missing

from virtfleet.kube.resource import CRDS, KUBEVIRTS, NAMESPACES, ROLE_BINDINGS, SERVICE_MONITORS, SERVICES
from virtfleet.operator.monitoring import MONITOR, READER

DEFINITION = {
    "metadata": {"name": "servicemonitors.monitoring.coreos.com"},
    "spec": {
        "group": SERVICE_MONITORS.group,
        "names": {"kind": SERVICE_MONITORS.kind, "plural": SERVICE_MONITORS.plural, "singular": "servicemonitor"},
        "scope": "Namespaced",
        "versions": [
            {
                "name": "v1",
                "served": True,
                "storage": True,
                "schema": {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}},
            }
        ],
    },
}


@pytest.fixture
async def fleet(tmp_path: Path) -> AsyncIterator[Hollow]:
    async with hollow(tmp_path) as cluster:
        yield cluster


async def monitors(fleet: Hollow, *namespaces: str) -> list[dict[str, Any]]:
    """Wait until those of the operator are in these namespaces only."""

    async def found() -> list[dict[str, Any]] | None:
        there = await fleet.api.list(SERVICE_MONITORS)
        return there if [m["metadata"]["namespace"] for m in there] == [*namespaces] else None

    seen: list[dict[str, Any]] = await fleet.until(found)
    return seen


@pytest.mark.slow
async def test_the_monitor_comes_with_the_kind_and_finds_the_metrics(fleet: Hollow) -> None:
    await fleet.install()
    await fleet.api.create(CRDS, DEFINITION)
    [monitor] = await monitors(fleet, NAMESPACE)
    assert monitor["metadata"]["name"] == MONITOR
    [endpoint] = monitor["spec"]["endpoints"]
    assert monitor["spec"]["namespaceSelector"] == {"matchNames": [NAMESPACE]}
    chosen = monitor["spec"]["selector"]["matchLabels"]
    services = [
        s for s in await fleet.api.list(SERVICES, NAMESPACE) if chosen.items() <= s["metadata"]["labels"].items()
    ]
    assert [p["name"] for s in services for p in s["spec"]["ports"]] == [endpoint["port"]]
    assert await fleet.idle_writes() == []
    fleet.start_operator()
    await fleet.api.delete(SERVICE_MONITORS, MONITOR, NAMESPACE)
    await monitors(fleet, NAMESPACE)


@pytest.mark.slow
async def test_the_kind_may_go_and_come_back(fleet: Hollow) -> None:
    await fleet.api.create(CRDS, DEFINITION)
    await fleet.install()
    await monitors(fleet, NAMESPACE)
    await fleet.api.delete(SERVICE_MONITORS, MONITOR, NAMESPACE)
    await fleet.api.delete(CRDS, DEFINITION["metadata"]["name"])
    await fleet.until(lambda: missing(fleet.api, CRDS, DEFINITION["metadata"]["name"]))
    await fleet.settled()
    await fleet.api.create(CRDS, DEFINITION)
    await monitors(fleet, NAMESPACE)


@pytest.mark.slow
async def test_the_monitor_follows_its_namespace_and_prometheus_may_look(fleet: Hollow) -> None:
    for name in ("monitoring", "watched"):
        await fleet.api.create(NAMESPACES, {"metadata": {"name": name}})
    await fleet.api.create(CRDS, DEFINITION)
    await fleet.install(monitorNamespace="monitoring")
    await monitors(fleet, "monitoring")
    [subject] = (await fleet.api.get(ROLE_BINDINGS, READER, NAMESPACE))["subjects"]
    assert subject == {"kind": "ServiceAccount", "name": "prometheus-k8s", "namespace": "monitoring"}
    await fleet.configure(serviceMonitorNamespace="watched", monitorAccount="mine")
    await monitors(fleet, "watched")

    async def bound() -> bool:
        return (await fleet.api.get(ROLE_BINDINGS, READER, NAMESPACE))["subjects"][0]["name"] == "mine"

    await fleet.until(bound)
    await fleet.configure(serviceMonitorNamespace=None, monitorNamespace=None, monitorAccount=None)
    await monitors(fleet, NAMESPACE)
    await fleet.until(lambda: missing(fleet.api, ROLE_BINDINGS, READER))


async def test_a_namespace_that_is_not_there_is_told_and_vms_are_served(fleet: Hollow) -> None:
    await fleet.api.create(CRDS, DEFINITION)
    await fleet.install(serviceMonitorNamespace="nowhere")
    degraded = await fleet.condition("Degraded", reason="NotMonitored")
    assert "nowhere" in degraded["message"] and "spec.serviceMonitorNamespace" in degraded["message"]
    assert (await fleet.condition("Available"))["reason"] == "AllComponentsReady"


@pytest.mark.slow
async def test_the_monitor_goes_with_the_installation(fleet: Hollow) -> None:
    await fleet.api.create(NAMESPACES, {"metadata": {"name": "monitoring"}})
    await fleet.api.create(CRDS, DEFINITION)
    await fleet.install(serviceMonitorNamespace="monitoring")
    await monitors(fleet, "monitoring")
    await fleet.api.delete(KUBEVIRTS, "kubevirt", NAMESPACE)
    await fleet.until(lambda: missing(fleet.api, KUBEVIRTS, "kubevirt"), 40.0)
    assert await fleet.api.list(SERVICE_MONITORS) == []
    assert DEFINITION["metadata"]["name"] in [crd["metadata"]["name"] for crd in await fleet.api.list(CRDS)]
