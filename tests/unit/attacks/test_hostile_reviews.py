"""Admission reviews that were made to hurt: from somebody else than an API server, malformed, or far too large."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Sequence
from typing import Any

import orjson
import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer

from tests.hostile import NoObjects
from virtfleet.api import crds
from virtfleet.gateway import reviews
from virtfleet.gateway.instancetypes import TypedVms
from virtfleet.gateway.webhooks import Webhooks
from virtfleet.installation import Installation
from virtfleet.kube.component import BODY_LIMIT
from virtfleet.kube.credentials import Material

Obj = dict[str, Any]
KEY = "0123456789abcdef"
UID = "6b3e0dd3-9e9c-4a4a-a4a1-7d0d3ad1a1c9"
WEBHOOKS = ("mutate", "validate")
AT_ONCE = 0.5
"""Seconds of CPU, both ends together; others may use the machine meanwhile."""


class Known:
    def cluster(self) -> Installation:
        return Installation({"metadata": {"namespace": "kubevirt"}})

    def installed(self) -> Sequence[str]:
        return ()

    def vmis(self) -> Sequence[Obj]:
        return ()

    def vmi(self, namespace: str, name: str) -> Obj | None:
        return None

    def migrations_of(self, namespace: str, vmi: str) -> Sequence[Obj]:
        return ()


@pytest.fixture
async def virt_api() -> AsyncIterator[TestClient[Any, Any]]:
    app = web.Application(client_max_size=BODY_LIMIT)
    app.add_routes(Webhooks(Known(), Material("key", KEY.encode()), TypedVms(NoObjects())).routes())
    async with TestClient(TestServer(app)) as client:
        yield client


def review(obj: bytes, operation: str = "CREATE", kind: str = "VirtualMachineInstance") -> bytes:
    return (
        b'{"kind":"AdmissionReview","apiVersion":"admission.k8s.io/v1","request":{"uid":"%s","kind":{"kind":"%s"},'
        b'"operation":"%s","namespace":"default","userInfo":{"username":"tenant"},"object":%s,"oldObject":null}}'
        % (UID.encode(), kind.encode(), operation.encode(), obj)
    )


def vmi(devices: bytes = b"", spec: bytes = b"", metadata: bytes = b"") -> bytes:
    return (
        b'{"apiVersion":"kubevirt.io/v1","kind":"VirtualMachineInstance","metadata":{"name":"x"%s},'
        b'"spec":{"domain":{"memory":{"guest":"64Mi"},"devices":{%s}}%s}}' % (metadata, devices, spec)
    )


def many(item: bytes, count: int) -> bytes:
    return b"[" + (item + b",") * (count - 1) + item + b"]"


@pytest.mark.parametrize(
    "path", ["/mutate", "/validate", "/admission//mutate", "/admission/guess/mutate", f"/admission/{KEY[:-1]}/validate"]
)
async def test_who_does_not_know_the_path_is_sent_away_before_the_body_is_read(
    virt_api: TestClient[Any, Any], path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def unread(_: web.BaseRequest) -> bytes:
        raise AssertionError("the body was read")

    monkeypatch.setattr(web.BaseRequest, "read", unread)
    assert (await virt_api.post(path, data=review(vmi()))).status == 404


@pytest.mark.parametrize("webhook", WEBHOOKS)
@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"null",
        b"[" * 5000,
        b'{"request":{"uid":"u"}}',
        b'{"request":{"uid":3,"operation":"CREATE","kind":{"kind":"VirtualMachine"},"object":{}}}',
        review(b"null"),
        review(b'"text"'),
        review(b"{}"),
        review(b'{"kind":"VirtualMachineInstance"}'),
        review(b'{"kind":"VirtualMachineInstance","metadata":[]}'),
        review(b'{"kind":3,"metadata":{}}'),
        review(vmi(), "UPDATE"),
        review(vmi(), "DELETE"),
        review(vmi(), "CONNECT"),
        review(vmi()).replace(b'{"username":"tenant"}', b'"tenant"'),
        review(vmi()).replace(b'{"username":"tenant"}', b'{"extra":{"a":"b"}}'),
    ],
)
async def test_a_malformed_review_is_a_bad_request(virt_api: TestClient[Any, Any], webhook: str, body: bytes) -> None:
    assert (await virt_api.post(f"/admission/{KEY}/{webhook}", data=body)).status == 400


DEEP = b'{"a":' * 900 + b"1" + b"}" * 900
HUGE = {
    "disks": vmi(b'"disks":' + many(b"{}", 900_000)),
    "numbers": vmi(spec=b',"volumes":' + many(b"1", 1_000_000)),
    "labels": vmi(metadata=b',"labels":{%s}' % b",".join(b'"k%d":"v"' % i for i in range(150_000))),
    "terms": vmi(
        spec=b',"affinity":{"nodeAffinity":{"requiredDuringSchedulingIgnoredDuringExecution":{"nodeSelectorTerms":%s}}}'
        % many(b"{}", 150_000)
    ),
    "depth": vmi(spec=b',"affinity":' + DEEP),
}


@pytest.mark.parametrize("webhook", WEBHOOKS)
@pytest.mark.parametrize("name", HUGE)
async def test_an_object_without_measure_is_refused_at_once(
    virt_api: TestClient[Any, Any], webhook: str, name: str
) -> None:
    body = review(HUGE[name])
    begun = time.process_time()
    answer = await (await virt_api.post(f"/admission/{KEY}/{webhook}", data=body)).json()
    seconds = time.process_time() - begun
    assert answer["response"]["uid"] == UID and not answer["response"]["allowed"]
    assert answer["response"]["status"]["code"] == 413
    assert "make it smaller" in answer["response"]["status"]["message"]
    assert seconds < AT_ONCE, seconds


async def test_more_than_the_limit_is_not_taken_in(virt_api: TestClient[Any, Any]) -> None:
    body = review(vmi(metadata=b',"annotations":{"a":"%s"}' % (b"x" * BODY_LIMIT)))
    assert (await virt_api.post(f"/admission/{KEY}/validate", data=body)).status == 413


def largest() -> Obj:
    """A VMI that has as much of everything as its definition allows, as far as reviews take it."""
    most = crds.MOST_ITEMS
    disks = [{"name": f"d{i}", "disk": {"bus": "virtio"}, "bootOrder": i + 1, "serial": "s" * 64} for i in range(most)]
    volumes = [{"name": f"d{i}", "emptyDisk": {"capacity": "1Gi"}} for i in range(most)]
    ports = [{"name": f"p{i}", "port": i + 1, "protocol": "TCP"} for i in range(12)]
    interfaces = [{"name": f"n{i}", "masquerade": {}, "ports": ports} for i in range(most)]
    networks = [{"name": f"n{i}", "multus": {"networkName": f"net{i}"}} for i in range(most)]
    devices = {"disks": disks, "interfaces": interfaces, "inputs": [{"name": f"i{i}"} for i in range(most)]}
    spec = {
        "domain": {"memory": {"guest": "64Mi"}, "devices": devices},
        "volumes": volumes,
        "networks": networks,
        "nodeSelector": {f"k{i}": "v" for i in range(most)},
        "tolerations": [{"key": f"k{i}", "operator": "Exists"} for i in range(most)],
    }
    metadata = {"name": "x", "labels": {f"k{i}": "v" for i in range(most)}}
    return {"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstance", "metadata": metadata, "spec": spec}


@pytest.mark.parametrize("webhook", WEBHOOKS)
@pytest.mark.parametrize("operation", ["CREATE", "UPDATE"])
async def test_the_largest_object_that_is_looked_at_costs_little(
    virt_api: TestClient[Any, Any], webhook: str, operation: str
) -> None:
    obj = orjson.dumps(largest())
    body = review(obj, operation).replace(b'"oldObject":null', b'"oldObject":' + obj)
    begun = time.process_time()
    answer = await virt_api.post(f"/admission/{KEY}/{webhook}", data=body)
    seconds = time.process_time() - begun
    assert answer.status == 200 and seconds < AT_ONCE, seconds
    assert reviews.read(body), "it was not refused for its size; the rules had a look at it"
