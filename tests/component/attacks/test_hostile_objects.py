"""2,000 random and mutated objects: each is admitted or refused with a reason, and what is admitted can be made.

The API server is on loopback and virt-api's decisions are taken in the same process, as its webhooks would take them.
What would run of an admitted object is then made by the functions that make it: Pods, domains, networks, status,
installations. An error of ours (an `Unrenderable`, a `DomainError`) becomes a condition; any other exception is a bug.
"""

from __future__ import annotations

import asyncio
import base64
import logging
import os
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import cached_property
from pathlib import Path
from typing import Any

import jsonpatch
import orjson
import pytest

import hostile
from component.apiserver_kit import Client, serving
from component.handler_kit import api_server
from tests.hostile import NoObjects
from virtfleet.admission.review import complete, review
from virtfleet.cli.look.render import pretend_node
from virtfleet.controller import disruption, lifecycle
from virtfleet.controller.records.instance import decode_instance
from virtfleet.domain import xml
from virtfleet.domain.errors import DomainError
from virtfleet.gateway.instancetypes import TypedVms
from virtfleet.gateway.webhooks import Webhooks
from virtfleet.handler.network import networks as network
from virtfleet.handler.network import plan as netplan
from virtfleet.handler.network.networks import requests
from virtfleet.handler.network.plan import Link
from virtfleet.handler.pods.launchers import Presence
from virtfleet.handler.vms import instances, status
from virtfleet.handler.vms.status import Situation
from virtfleet.installation import Installation
from virtfleet.kube.credentials import Material
from virtfleet.kube.errors import ApiError
from virtfleet.kube.resource import Obj
from virtfleet.local.apiserver.extensions.admission import AdmissionRequest
from virtfleet.operator.render import render as installed
from virtfleet.pods.launcher import Unrenderable, render
from virtfleet.protocol.messages import DomainState, GuestInfo, Status
from virtfleet.reasons.instances import instance

NUMBER = int(os.environ.get("HOSTILE_OBJECTS", "2000"))
SEED = int(os.environ.get("HOSTILE_SEED", "20260516"))
AT_ONCE = 16
GATES = (
    "HostDevices",
    "HostDisk",
    "DownwardMetrics",
    "VSOCK",
    "PortRangesSpec",
    "Sidecar",
    "CPUManager",
    "HypervStrictCheck",
)
KUBEVIRT: Obj = {
    "apiVersion": "kubevirt.io/v1",
    "kind": "KubeVirt",
    "metadata": {"name": "kubevirt", "namespace": "kubevirt"},
    "spec": {"configuration": {"developerConfiguration": {"featureGates": list(GATES), "useEmulation": True}}},
}
PLURALS = {kind: f"{kind.lower()}s" for kind in hostile.VIEWS}


class Known:
    """The cluster that virt-api knows."""

    def cluster(self) -> Installation:
        return Installation(KUBEVIRT)

    def installed(self) -> list[str]:
        return []

    def vmis(self) -> list[Obj]:
        return []

    def vmi(self, namespace: str, name: str) -> Obj | None:
        return None

    def migrations_of(self, namespace: str, vmi: str) -> list[Obj]:
        return []


class InProcess:
    """virt-api's webhooks without the wire."""

    def __init__(self) -> None:
        self._webhooks = Webhooks(Known(), Material("key", b"key"), TypedVms(NoObjects()))

    async def mutate(self, request: AdmissionRequest) -> Obj | None:
        if request.kind.resource.group != "kubevirt.io" or request.kind.resource.kind == "KubeVirt":
            return request.obj
        answer = self._answer(self._webhooks.mutate, request)
        patch = orjson.loads(base64.b64decode(answer.get("patch", "W10=")))
        changed: Obj = jsonpatch.apply_patch(request.obj, patch)
        return changed

    async def validate(self, request: AdmissionRequest) -> None:
        if request.kind.resource.group == "kubevirt.io":
            self._answer(self._webhooks.validate, request)

    def _answer(self, decide: Any, request: AdmissionRequest) -> Obj:
        asked = {
            "uid": "u",
            "operation": request.operation,
            "kind": {"kind": request.kind.resource.kind},
            "namespace": request.namespace,
            "object": orjson.loads(orjson.dumps(request.obj)),  # as it comes over the wire
            "oldObject": request.old,
            "userInfo": {"username": "somebody"},
        }
        answer: Obj = decide(asked)
        if not answer["allowed"]:
            told = answer["status"]
            raise ApiError(told["reason"], told["message"], code=told["code"], details=told["details"])
        orjson.dumps(answer)
        return answer


@asynccontextmanager
async def server(directory: Path) -> AsyncIterator[Client]:
    async with api_server(directory) as api:
        operations = api._operations
        operations.admission = InProcess()
        async with serving(operations) as client:
            yield client


async def answers(client: Client) -> AsyncIterator[tuple[hostile.Sent, int, Any]]:
    """What the server says to each, several at once."""
    waiting = hostile.sent(SEED, NUMBER)

    async def post(sent: hostile.Sent) -> tuple[hostile.Sent, int, Any]:
        path = f"/apis/kubevirt.io/v1/namespaces/default/{PLURALS[sent.kind]}"
        headers = {"Content-Type": "application/json"}
        url = f"http://127.0.0.1:{client.port}{path}"
        async with client.session.post(url, data=sent.text, headers=headers) as answer:
            return sent, answer.status, orjson.loads(await answer.read())

    under_way: set[asyncio.Task[tuple[hostile.Sent, int, Any]]] = set()
    for sent in waiting:
        under_way.add(asyncio.create_task(post(sent)))
        if len(under_way) >= AT_ONCE:
            done, under_way = await asyncio.wait(under_way, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                yield task.result()
    for task in under_way:
        yield await task


def names_a_field(answer: Obj) -> bool:
    """Whether a refusal says what to change."""
    if answer["code"] in (400, 413):  # no object at all: broken JSON, too deep or too large, numbers nobody can read
        return bool(answer["message"])
    causes = (answer.get("details") or {}).get("causes") or []
    return bool(causes) and all(c.get("message") and (c.get("field") or "spec." in c["message"]) for c in causes)


@pytest.mark.slow
@pytest.mark.timeout(300)
async def test_every_object_is_admitted_or_refused_and_what_is_admitted_can_be_made(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    codes: Counter[int] = Counter()
    wrong: dict[str, str] = {}
    explained: Counter[str] = Counter()
    async with server(tmp_path) as client:
        async for sent, code, answer in answers(client):
            codes[code] += 1
            if code >= 500:
                wrong[f"{code} {answer['message'][:160]}"] = sent.text.decode()[:3000]
            elif code >= 400 and code != 409 and not names_a_field(answer):
                wrong[f"no field: {answer['message'][:160]}"] = sent.text.decode()[:3000]
            elif code == 201:
                try:
                    why, pod = make(sent.kind, answer)
                    explained[why or (await refused(client, pod) if pod else "")] += 1
                except Exception as error:
                    wrong[f"{sent.kind}: {type(error).__name__}: {str(error)[:160]} {_where(error)}"] = (
                        sent.text.decode()[:3000]
                    )
    if report := os.environ.get("HOSTILE_REPORT"):
        found = {"codes": {str(code): count for code, count in codes.items()}, "explained": explained, "wrong": wrong}
        await asyncio.to_thread(Path(report).write_bytes, orjson.dumps(found, option=orjson.OPT_INDENT_2))
    assert not wrong, "\n".join(sorted(wrong))
    assert codes[201] > NUMBER / 10 and codes[422] > NUMBER / 10, codes
    errors = [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR]
    assert not errors, errors[:10]


def _where(error: BaseException) -> str:
    trace = error.__traceback__
    while trace and trace.tb_next:
        trace = trace.tb_next
    return f"{Path(trace.tb_frame.f_code.co_filename).name}:{trace.tb_lineno}" if trace else ""


async def refused(client: Client, pod: Obj) -> str:
    """Why the API server does not take a launcher's Pod, if so; the VMI shows that."""
    path = "/api/v1/namespaces/default/pods?dryRun=All"
    answer = await client.ask("POST", path, pod)
    if answer["kind"] == "Pod":
        return ""
    assert answer["code"] == 403, answer["message"]  # a PriorityClass or ServiceAccount that does not exist here
    return "Pod refused"


def make(kind: str, obj: Obj) -> tuple[str, Obj | None]:
    """Make what would run of an admitted object: why nothing can, if so, and the Pod."""
    match kind:
        case "KubeVirt":
            return _install(obj), None
        case "VirtualMachineInstance":
            return _run(obj)
        case "VirtualMachine" | "VirtualMachineInstanceReplicaSet":
            cluster = Installation(KUBEVIRT)
            completed, found = complete(instance(obj), cluster)
            found = review(completed, cluster) if found.allowed else found
            if not found.allowed:
                return f"its VMI: {found.causes[0].field}", None
            completed["metadata"] |= {"uid": "b1c9-1", "namespace": "default", "resourceVersion": "1"}
            return _run(orjson.loads(orjson.dumps(completed)))
    return "", None


def _run(obj: Obj) -> tuple[str, Obj | None]:
    """The Pod, the domain, the network and every status of a VMI."""
    raw = orjson.dumps(obj)
    try:
        pod = render(obj, Installation(KUBEVIRT))
    except Unrenderable as error:
        return f"no Pod: {error}"[:60], None
    vmi = decode_instance(raw)
    disruption.budget(vmi, Installation(KUBEVIRT))
    lifecycle.change(lifecycle.Situation(vmi, (), {}), 1e9)
    found = instances.decode_instance(raw)
    context = pretend_node(found.vmi, Installation(KUBEVIRT))
    hypervisor = found.hypervisor
    hypervisor.tuning(found.vmi, context)
    link = Link("eth0", "0a:00:00:00:00:01", 1450, ["10.244.1.7/24", "fd00::7/64"])
    wanted = requests(found.vmi)
    links = {nic.link: link for nic in wanted}
    netplan.plan(wanted, links, ["eth0"])
    wired = network.wired(found.vmi, links)
    for state in (
        None,
        DomainState(),
        DomainState(status=Status.RUNNING, agent=True),
        DomainState(status=Status.SHUTOFF),
    ):
        for presence in Presence:
            status.change(
                Situation(obj, found.vmi, hypervisor, presence, state, wired, GuestInfo(), True, "trouble"), 1e9
            )
    try:
        document = hypervisor.adapt(hypervisor.build(found.vmi, context), context)
    except DomainError as error:
        return f"no domain: {error}"[:60], pod
    xml.text(document)
    return "", pod


def _install(obj: Obj) -> str:
    where = Installation(obj)
    for name, asked in vars(Installation).items():
        if isinstance(asked, property | cached_property):
            getattr(where, name)
    completed, _ = complete({"kind": "VirtualMachineInstance", "spec": hostile.RICH}, where)
    review(completed, where)
    installed(where)
    return ""
