"""Objects with more in them than anybody could mean: refused before anybody else has to look at them."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import orjson
import pytest

from component.access_plane import Plane, plane
from component.defined import define
from virtfleet.api import crds
from virtfleet.api.kinds import KINDS
from virtfleet.kube.resource import MUTATING_WEBHOOKS, Obj

VMIS = "/apis/kubevirt.io/v1/namespaces/default/virtualmachineinstances"
VMS = "/apis/kubevirt.io/v1/namespaces/default/virtualmachines"
AT_ONCE = 0.5
"""Seconds of CPU, both ends together. It takes a twentieth; without bounds, it took several seconds."""


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[Plane]:
    define(tmp_path / "store")
    async with plane(tmp_path) as made:
        yield made


async def ask_an_absent_webhook(server: Plane) -> None:
    """From here on, a VMI that gets as far as webhooks is refused with 500."""
    rule = {"operations": ["*"], "apiGroups": ["kubevirt.io"], "apiVersions": ["v1"], "resources": ["*"]}
    service = {"namespace": "default", "name": "nobody", "path": "/"}
    hook = {
        "name": "nobody.example.com",
        "clientConfig": {"service": service},
        "rules": [rule],
        "sideEffects": "None",
        "admissionReviewVersions": ["v1"],
    }
    await server.api.create(MUTATING_WEBHOOKS, {"metadata": {"name": "nobody"}, "webhooks": [hook]})


async def send(server: Plane, path: str, body: bytes, method: str = "POST") -> tuple[int, str, float]:
    session = await server.session(server.pki.admin)
    media = "application/merge-patch+json" if method == "PATCH" else "application/json"
    begun = time.process_time()
    async with session.request(method, path, data=body, headers={"Content-Type": media}) as answer:
        message = (await answer.json()).get("message", "")
        return answer.status, message, time.process_time() - begun


def vmi(devices: bytes = b"", spec: bytes = b"", metadata: bytes = b"") -> bytes:
    return (
        b'{"apiVersion":"kubevirt.io/v1","kind":"VirtualMachineInstance","metadata":{"name":"x"%s},'
        b'"spec":{"domain":{"devices":{%s}}%s}}' % (metadata, devices, spec)
    )


def many(item: bytes, count: int) -> bytes:
    return b"[" + (item + b",") * (count - 1) + item + b"]"


@pytest.mark.parametrize(
    ("body", "status", "why"),
    [
        (vmi(b'"disks":' + many(b"{}", 900_000)), 413, "lists and objects"),
        (vmi(b'"disks":' + many(b"{}", 90_000)), 422, "spec.domain.devices.disks: Too many: 90000"),
        (vmi(b'"disks":' + many(b"[]", 900_000)), 413, "lists and objects"),
        (vmi(spec=b',"volumes":' + many(b"0", 1_000_000)), 422, "spec.volumes: Too many"),
        (vmi(spec=b',"nodeSelector":{%s}' % b",".join(b'"k%d":"v"' % i for i in range(100_000))), 422, "nodeSelector"),
        (vmi(spec=b',"affinity":{%s}' % b",".join(b'"k%d":"v"' % i for i in range(100_000))), 422, "spec.affinity"),
    ],
    ids=["disks", "fewer-disks", "lists", "numbers", "map", "raw"],
)
async def test_too_many_parts_are_refused_before_webhooks_run(
    server: Plane, body: bytes, status: int, why: str
) -> None:
    await ask_an_absent_webhook(server)
    await send(server, VMIS, vmi(b'"disks":' + many(b"{}", 300)))  # what is made at first use is made
    found, message, seconds = await send(server, VMIS, body)
    assert found == status and why in message, (found, message[:300])
    assert seconds < AT_ONCE, seconds


async def test_a_patch_is_bounded_as_well(server: Plane) -> None:
    made = await server.call("POST", VMS, {"metadata": {"name": "vm"}, "spec": template()})
    assert made.status == 201, made.body
    await ask_an_absent_webhook(server)
    for count, expected in ((900_000, 413), (90_000, 422)):
        disks = b'{"spec":{"template":{"spec":{"domain":{"devices":{"disks":%s}}}}}}' % many(b"{}", count)
        status, message, seconds = await send(server, f"{VMS}/vm", disks, "PATCH")
        assert status == expected and seconds < AT_ONCE, (status, message[:300], seconds)


def template(**spec: Any) -> Obj:
    return {"runStrategy": "Halted", "template": {"spec": {"domain": {"devices": {}}, **spec}}}


async def test_texts_and_numbers_have_an_end(server: Plane) -> None:
    data = "x" * (crds.LONGEST_TEXT + 1)
    volume = {"name": "v", "cloudInitNoCloud": {"userData": data}}
    long = await server.call("POST", VMS, {"metadata": {"name": "long"}, "spec": template(volumes=[volume])})
    assert long.status == 422 and "userData: Too long" in long.body["message"]
    digits = template()
    digits["template"]["spec"]["domain"]["memory"] = {"guest": "9" * 5000}
    number = await server.call("POST", VMS, {"metadata": {"name": "number"}, "spec": digits})
    assert number.status == 422 and "memory.guest: Too long" in number.body["message"]


def test_everything_in_every_kind_is_bounded() -> None:
    def unbounded(schema: Obj, path: str) -> list[str]:
        found = []
        if schema.get("type") == "array" and "maxItems" not in schema:
            found.append(path)
        if schema.get("type") == "string" and not {"maxLength", "enum"} & schema.keys():
            found.append(path)
        maps = "additionalProperties" in schema or schema.get("x-kubernetes-preserve-unknown-fields")
        if maps and "maxProperties" not in schema:
            found.append(path)
        if schema.get("x-kubernetes-int-or-string") and "maxLength" not in schema:
            found.append(path)
        for name, part in schema.get("properties", {}).items():
            found += unbounded(part, f"{path}.{name}")
        for part in (schema.get("items"), schema.get("additionalProperties")):
            if isinstance(part, dict):
                found += unbounded(part, f"{path}[]")
        return found

    assert [path for each in KINDS for path in unbounded(crds.schema(each.view), each.kind)] == []
    sizes = {each.kind: len(orjson.dumps(crds.definition(each))) for each in KINDS}
    assert max(sizes.values()) < 1 << 18, "kubectl apply keeps a copy in an annotation, which ends at 256 KiB"
