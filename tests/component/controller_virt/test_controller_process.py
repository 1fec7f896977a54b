"""virt-controller as a process over HTTPS: one of two leads, the other takes over, both can be probed."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path

import aiohttp
import orjson
import pytest
from prometheus_client.parser import text_string_to_metric_families
from virt_plane import Plane, a_vmi

from bench.controller import controller_process, kubeconfig_of, leads, served
from bench.simulator import simulation
from virtfleet.kube.resource import KUBEVIRTS, VMIS


async def page(url: str) -> str:
    async with aiohttp.ClientSession() as session, session.get(url, ssl=False) as answer:
        assert answer.status == 200
        return await answer.text()


@pytest.mark.slow
async def test_the_second_of_two_takes_over_when_the_first_is_told_to_end(tmp_path: Path) -> None:
    async with (
        simulation(tmp_path / "store") as cluster,
        served(cluster) as url,
        controller_process(kubeconfig_of(url, tmp_path), tmp_path, "a") as (first, first_page),
    ):
        virt = Plane(cluster)
        await virt.until(lambda: leads(first_page))
        async with controller_process(kubeconfig_of(url, tmp_path), tmp_path, "b") as (_, second_page):
            await virt.create(VMIS, a_vmi("one"))
            await virt.phase("Running", "one")
            (kubevirt,) = await virt.api.list(KUBEVIRTS)
            version = await virt.until(lambda: _configuration(second_page))
            assert version == kubevirt["metadata"]["resourceVersion"], "the one that waits knows it, too"
            assert not await leads(second_page)
            first.send_signal(signal.SIGTERM)
            assert await asyncio.wait_for(first.wait(), 20) == 0
            await virt.until(lambda: leads(second_page))
            await virt.create(VMIS, a_vmi("two"))
            await virt.phase("Running", "two")


async def _configuration(url: str) -> str:
    try:
        return str(orjson.loads(await page(url.replace("/metrics", "/healthz")))["config-resource-version"])
    except aiohttp.ClientError:
        return ""


@pytest.mark.slow
async def test_metrics_count_vmis_by_node_phase_and_hypervisor(tmp_path: Path) -> None:
    async with (
        simulation(tmp_path / "store") as cluster,
        served(cluster) as url,
        controller_process(kubeconfig_of(url, tmp_path), tmp_path) as (_, metrics),
    ):
        virt = Plane(cluster)
        await virt.until(lambda: leads(metrics))
        for name in ("one", "two"):
            await virt.create(VMIS, a_vmi(name))
            await virt.phase("Running", name)

        async def counted() -> bool:
            samples = [s for f in text_string_to_metric_families(await page(metrics)) for s in f.samples]
            count = [s for s in samples if s.name == "kubevirt_vmi_phase_count"]
            info = {s.labels["name"]: s.labels for s in samples if s.name == "kubevirt_vmi_info"}
            [outdated] = [s.value for s in samples if s.name == "kubevirt_vmi_number_of_outdated"]
            assert outdated == sum(labels["outdated"] == "true" for labels in info.values())
            names = {s.name for s in samples}
            return (
                sum(s.value for s in count) == 2
                and {(s.labels["phase"], s.labels["hypervisor"]) for s in count} == {("Running", "qemu-kvm")}
                and {s.labels["node"] for s in count} <= set(cluster.nodes)
                and info["one"]["vmi_pod"].startswith("virt-launcher-one-")
                and "kubevirt_vmi_phase_transition_time_from_creation_seconds_count" in names
                and "kubevirt_workqueue_adds_total" in names
                and "kubevirt_rest_client_requests_total" in names
            )

        await virt.until(counted)
