"""What cannot be done for a VM is said on its VMI, whatever it is, and is tried again at a bearable rate."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import Any

import pytest
from handler_kit import handler
from handler_launcher import launcher
from kube_fixtures import eventually
from test_handler_reconcile import condition, phase, reasons, scheduled, until, vmi

from virtfleet.handler.network.networks import Networks
from virtfleet.handler.vms import preparation, tuning
from virtfleet.kube.resource import EVENTS, VMIS, Obj
from virtfleet.local.apiserver.objects.inprocess import InProcessApi
from virtfleet.protocol.messages import Status

SYNC = "Synchronized"


async def trouble(api: InProcessApi, name: str = "vm") -> str:
    """What the VMI says, as soon as it says anything."""
    found = await until(api, lambda status: condition({"status": status}, SYNC), name)
    said = condition(found, SYNC) or {}
    assert (said["status"], found["status"]["phase"]) == ("False", "Scheduled")
    assert not condition(found, "Ready") or condition(found, "Ready")["status"] == "False"  # type: ignore[index]
    return str(said["message"])


def network(cidr: str, field: str = "vmNetworkCIDR") -> Obj:
    devices = {"interfaces": [{"name": "default", "masquerade": {}}]}
    return {
        "domain": {"memory": {"guest": "64Mi"}, "devices": devices},
        "networks": [{"name": "default", "pod": {field: cidr}}],
    }


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        (
            network("10.0.0.0/33"),
            ["spec.networks[default].pod.vmNetworkCIDR", "write it like 10.0.2.0/24"],
        ),
        (network("10.0.0.0/31"), ["vmNetworkCIDR", "no room for a gateway and a guest"]),
        (network("10.0.0.0/24", "vmIPv6NetworkCIDR"), ["vmIPv6NetworkCIDR", "IPv6"]),
        ({"hypervisor": "acme"}, ["there is no hypervisor 'acme'", "give the pool of node n1 a virt-handler image"]),
    ],
)
async def test_a_spec_that_no_vm_can_be_made_of_is_told_with_its_remedy(
    api: InProcessApi, place: Path, spec: dict[str, Any], words: list[str]
) -> None:
    await scheduled(api, place, **spec)
    await scheduled(api, place, "other")
    async with handler(api, place), launcher(place / "pods/pod-vm") as real, launcher(place / "pods/pod-other"):
        said = await trouble(api)
        assert [word for word in words if word not in said] == []
        await reasons(api, "SyncFailed")
        assert real.asked == []
        await phase(api, "Running", "other")
        await api.delete(VMIS, "vm", "default")
        await eventually(lambda: real.asked == ["Shutdown"])  # it can be deleted all the same


async def test_what_nobody_thought_of_is_told_and_logged_with_its_trace(
    api: InProcessApi, place: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_: object) -> None:
        raise ZeroDivisionError("cannot count CPUs")

    monkeypatch.setattr(tuning, "before_start", broken)
    await scheduled(api, place)
    with caplog.at_level(logging.WARNING):
        async with handler(api, place), launcher(place / "pods/pod-vm"):
            said = await trouble(api)
            assert "ZeroDivisionError: cannot count CPUs" in said and "log on n1" in said
            await reasons(api, "SyncFailed")
            monkeypatch.undo()
            assert condition(await phase(api, "Running"), SYNC) is None
    assert [r for r in caplog.records if r.exc_info and r.exc_info[0] is ZeroDivisionError]


async def test_a_report_that_cannot_be_made_is_told_too(
    api: InProcessApi, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise LookupError("no such link")

    monkeypatch.setattr(Networks, "known", broken)
    await scheduled(api, place)
    async with handler(api, place), launcher(place / "pods/pod-vm"):
        assert "LookupError: no such link" in await trouble(api)
        await reasons(api, "SyncFailed")
        monkeypatch.undo()
        assert condition(await phase(api, "Running"), SYNC) is None


async def test_what_fails_after_the_start_is_done_again(
    api: InProcessApi, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tuned = 0

    def fails_once(*_: object) -> None:
        nonlocal tuned
        tuned += 1
        if tuned == 1:
            raise PermissionError("a priority needs SYS_NICE")

    monkeypatch.setattr(preparation.tuning, "after_start", fails_once)
    await scheduled(api, place)
    async with handler(api, place), launcher(place / "pods/pod-vm"):
        await phase(api, "Running")
        await until(api, lambda status: tuned == 2 and not condition({"status": status}, SYNC))


async def test_a_start_that_cannot_succeed_is_tried_again_after_growing_pauses(api: InProcessApi, place: Path) -> None:
    """Whatever happens around it: its own status changes, somebody edits labels, the launcher stirs."""
    await scheduled(api, place)
    async with handler(api, place) as vms, launcher(place / "pods/pod-vm") as real:
        real.refusal = 'Failed to get "write" lock'
        await trouble(api)
        version = (await vmi(api))["metadata"]["resourceVersion"]
        for _ in range(50):
            vms.controller.queue.add("default/vm/pod-vm")
            real.becomes(Status.ABSENT)
            await asyncio.sleep(0.01)
        assert len(real.asked) <= 2
        assert (await vmi(api))["metadata"]["resourceVersion"] == version, "nothing is written that is no news"
        await eventually(lambda: len(real.asked) == 3)
        events = [e for e in await api.list(EVENTS, "default") if e["reason"] == "SyncFailed"]
        assert [e["count"] for e in events] == [1]
        await api.patch(VMIS, "vm", {"spec": {"terminationGracePeriodSeconds": 7}}, "default")
        await eventually(lambda: len(real.asked) == 4)  # something else is wanted: at once
