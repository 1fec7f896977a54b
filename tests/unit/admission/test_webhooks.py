"""virt-api's webhooks on the wire: every review gets an answer, and a patch makes of an object what admission did."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Any

import jsonpatch
import orjson
import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer
from hypothesis import given, settings
from hypothesis import strategies as st

from examples import examples
from tests.hostile import NoObjects
from virtfleet.admission.review import complete
from virtfleet.gateway.instancetypes import TypedVms
from virtfleet.gateway.knowledge import NotYet
from virtfleet.gateway.webhooks import Webhooks
from virtfleet.installation import Installation
from virtfleet.kube.credentials import Material

from .machines import BASE
from .test_fuzz import WHERE, mutated

Obj = dict[str, Any]


class Known:
    """A cluster that is known, or not yet."""

    def __init__(self, cluster: Installation | None = WHERE, vmis: Sequence[Obj] = ()) -> None:
        self._cluster, self._vmis = cluster, vmis

    def cluster(self) -> Installation:
        if self._cluster is None:
            raise NotYet("not yet")
        return self._cluster

    def installed(self) -> list[str]:
        return ["kubevirt/k"]

    def vmis(self) -> Sequence[Obj]:
        return self._vmis

    def vmi(self, namespace: str, name: str) -> Obj | None:
        return None

    def migrations_of(self, namespace: str, vmi: str) -> Sequence[Obj]:
        return ()


def webhooks(known: Known) -> Webhooks:
    return Webhooks(known, Material("key", b"secret"), TypedVms(NoObjects()))


def request(obj: Obj | None, operation: str = "CREATE", old: Obj | None = None) -> Obj:
    kind = (obj or old or {}).get("kind", "VirtualMachineInstance")
    asked: Obj = {"uid": "u1", "operation": operation, "kind": {"kind": kind}, "namespace": "default"}
    return {**asked, "object": obj, "oldObject": old, "userInfo": {"username": "somebody"}}


def patched(obj: Obj, answer: Obj) -> Obj:
    patch = orjson.loads(base64.b64decode(answer.get("patch", "W10=")))
    changed: Obj = jsonpatch.apply_patch(obj, patch)
    return changed


def test_the_patch_makes_what_admission_made() -> None:
    answer = webhooks(Known()).mutate(request(BASE))
    completed, _ = complete(BASE, WHERE)
    made = patched(BASE, answer)
    for each in (made, completed):
        each["spec"]["domain"]["firmware"].pop("uuid", None)
        each["spec"]["domain"]["firmware"].pop("serial", None)
        each["status"].pop("phaseTransitionTimestamps")  # the second of each
    assert made == completed


def test_an_object_that_needs_nothing_is_not_patched() -> None:
    completed, _ = complete(BASE, WHERE)
    controller = {"userInfo": {"username": "system:serviceaccount:kubevirt:kubevirt-controller"}}
    assert webhooks(Known()).mutate(request(completed) | controller) == {"allowed": True}


@settings(max_examples=examples(200))
@given(mutated(), st.sampled_from(["CREATE", "UPDATE"]))
def test_every_review_gets_an_answer_that_can_be_sent(obj: Obj, operation: str) -> None:
    asked_of = webhooks(Known())
    asked = request(obj, operation, BASE)
    changed = asked_of.mutate(asked)
    orjson.dumps(changed)
    if changed["allowed"]:
        orjson.dumps(asked_of.validate({**asked, "object": patched(obj, changed)}))


def test_uninstalling_waits_for_vmis_where_that_is_the_strategy() -> None:
    kubevirt = {
        "kind": "KubeVirt",
        "metadata": {"name": "k"},
        "spec": {"uninstallStrategy": "BlockUninstallIfWorkloadsExist"},
    }
    vmis = [{"metadata": {"namespace": "default", "name": f"vm{n:02}"}} for n in range(12)]
    refused = webhooks(Known(vmis=vmis)).validate(request(None, "DELETE", kubevirt))
    assert not refused["allowed"]
    assert "there are still Virtual Machine Instances present: default/vm00" in refused["status"]["message"]
    assert "and 2 more" in refused["status"]["message"]
    assert webhooks(Known()).validate(request(None, "DELETE", kubevirt))["allowed"]
    assert webhooks(Known(vmis=vmis)).validate(request(None, "DELETE", {**kubevirt, "spec": {}}))["allowed"]


def test_there_is_one_kubevirt_object_only() -> None:
    second = {"apiVersion": "kubevirt.io/v1", "kind": "KubeVirt", "metadata": {"name": "2nd", "namespace": "kubevirt"}}
    refused = webhooks(Known()).validate(request({**second, "spec": {}}))
    assert "Kubevirt is already created: kubevirt/k" in refused["status"]["message"]
    assert webhooks(Known()).validate(request({**second, "spec": {}}, "UPDATE", {**second, "spec": {}}))["allowed"]


def test_warnings_go_to_the_requester() -> None:
    gates = {"developerConfiguration": {"featureGates": ["NoSuchGate"]}}
    kubevirt = {
        "apiVersion": "kubevirt.io/v1",
        "kind": "KubeVirt",
        "metadata": {"name": "k", "namespace": "kubevirt"},
        "spec": {"configuration": gates},
    }
    answer = webhooks(Known()).validate(request(kubevirt))
    assert answer["allowed"]
    assert any("NoSuchGate" in warning for warning in answer["warnings"])


@pytest.mark.parametrize("path", ["/admission/secret/mutate", "/admission/secret/validate"])
@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"{}", b'{"request": {}}', b'{"request": 3}'])
async def test_a_body_that_is_no_review_is_a_bad_request(path: str, body: bytes) -> None:
    app = web.Application()
    app.add_routes(webhooks(Known()).routes())
    async with TestClient(TestServer(app)) as client:
        assert (await client.post(path, data=body)).status == 400


@pytest.mark.parametrize("path", ["/admission/secret/mutate", "/admission/secret/validate"])
async def test_while_nothing_is_known_everything_is_refused_with_the_reason(path: str) -> None:
    app = web.Application()
    app.add_routes(webhooks(Known(cluster=None)).routes())
    async with TestClient(TestServer(app)) as client:
        answer = await (await client.post(path, data=orjson.dumps({"request": request(BASE)}))).json()
    assert answer["response"]["uid"] == "u1"
    assert answer["response"]["allowed"] is False
    assert answer["response"]["status"]["code"] == 503
