"""A handler whose node was broken into: what its token can do to Nodes, by the roles and the policy of the operator."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from component.access_plane import Plane, plane, until
from virtfleet.api import names
from virtfleet.handler.node.heartbeat import Heartbeat
from virtfleet.handler.node.labeller import Labeller
from virtfleet.installation import Installation
from virtfleet.kube.client import Client
from virtfleet.kube.config import Config
from virtfleet.kube.credentials import Material, StoredCredentials
from virtfleet.kube.events import Recorder
from virtfleet.kube.resource import NAMESPACES, NODES, PODS, Obj, Resource
from virtfleet.operator import policies, roles
from virtfleet.operator.world import RESOURCES

NAMESPACE = "kubevirt"
INSTALLATION = Installation({"metadata": {"name": "kubevirt", "namespace": NAMESPACE}})


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[Plane]:
    async with plane(tmp_path) as made:
        await made.api.create(NAMESPACES, {"metadata": {"name": NAMESPACE}})
        for obj in [*roles.render(INSTALLATION), *policies.render(INSTALLATION)]:
            resource: Resource = RESOURCES[obj["kind"]]
            await made.api.create(resource, obj, obj["metadata"].get("namespace"))
        for node in ("node-a", "node-b"):
            labels = {"zone": "z1", "pool": "plain", "kubevirt.io/handler-pool": "gpu"}
            await made.api.create(NODES, {"metadata": {"name": node, "labels": labels, "finalizers": ["a.io/keep"]}})
            spec = {
                "containers": [{"name": "c", "image": "host"}],
                "nodeName": node,
                "serviceAccountName": roles.HANDLER,
            }
            await made.api.create(PODS, {"metadata": {"name": f"handler-{node}"}, "spec": spec}, NAMESPACE)
        yield made


async def token(server: Plane, node: str) -> str:
    bound = {"kind": "Pod", "apiVersion": "v1", "name": f"handler-{node}"}
    return await server.token(roles.HANDLER, NAMESPACE, boundObjectRef=bound)


def metadata(**fields: Any) -> Obj:
    return {"metadata": fields}


OWN = metadata(
    labels={names.SCHEDULABLE: "true", f"{names.CPU_MODEL}EPYC": "true", names.SEV: "true", "cpumanager": "false"},
    annotations={names.HANDLER_HEARTBEAT: "now", names.HANDLER_VERSION: "1"},
)
LABELS, CHANGED = "cannot add/delete non kubevirt-owned labels", "cannot update non kubevirt-owned labels"
ANNOTATIONS = "cannot add/delete non kubevirt-owned annotations"
TAINT = {"spec": {"taints": [{"key": "mine", "effect": "NoExecute"}]}}


async def test_a_handler_writes_what_is_its_own_to_its_own_node(server: Plane) -> None:
    credential = await token(server, "node-b")
    written = await server.call("PATCH", "/api/v1/nodes/node-b", OWN, token=credential)
    assert written.status == 200, written.body
    gone = metadata(labels={f"{names.CPU_MODEL}EPYC": None, names.SEV: None})
    assert (await server.call("PATCH", "/api/v1/nodes/node-b", gone, token=credential)).status == 200
    stored = await server.api.get(NODES, "node-b")
    assert names.SEV not in stored["metadata"]["labels"] and stored["metadata"]["labels"]["zone"] == "z1"


@pytest.mark.parametrize(
    ("node", "change", "why"),
    [
        ("node-a", OWN, "cannot modify this node"),
        ("node-a", metadata(labels={names.SCHEDULABLE: "false"}), "cannot modify this node"),
        ("node-a", TAINT, "cannot modify this node"),
        ("node-b", TAINT, "cannot modify spec"),
        ("node-b", {"spec": {"unschedulable": True}}, "cannot modify spec"),
        ("node-b", metadata(labels={"pool": "gpu"}), CHANGED),
        ("node-b", metadata(labels={"zone": None}), LABELS),
        ("node-b", metadata(labels={"new": "one"}), LABELS),
        (
            "node-b",
            metadata(labels={"kubevirt.io/handler-pool": "mine"}),
            CHANGED,
        ),
        (
            "node-b",
            metadata(labels={"evil.io/cpu-model.node.kubevirt.io": "x"}),
            LABELS,
        ),
        ("node-b", metadata(labels=None), LABELS),
        ("node-b", metadata(annotations={"node.alpha.kubernetes.io/ttl": "0"}), ANNOTATIONS),
        ("node-b", metadata(annotations={"kubevirt.io/heartbeat2": "x"}), ANNOTATIONS),
        ("node-b", metadata(finalizers=[]), "allowed metadata fields"),
        ("node-b", metadata(finalizers=["a.io/keep", "b.io/mine"]), "allowed metadata fields"),
        (
            "node-b",
            metadata(ownerReferences=[{"apiVersion": "v1", "kind": "Node", "name": "node-a", "uid": "1"}]),
            "allowed metadata fields",
        ),
    ],
)
async def test_a_handler_is_kept_from_everything_else(server: Plane, node: str, change: Obj, why: str) -> None:
    before = await server.api.get(NODES, node)
    answer = await server.call("PATCH", f"/api/v1/nodes/{node}", change, token=await token(server, "node-b"))
    assert answer.status == 403 and why in answer.body["message"], answer.body
    assert await server.api.get(NODES, node) == before


async def test_a_token_that_names_no_node_writes_to_none(server: Plane) -> None:
    loose = await server.token(roles.HANDLER, NAMESPACE)
    answer = await server.call("PATCH", "/api/v1/nodes/node-b", OWN, token=loose)
    assert answer.status == 403 and "does not name its node" in answer.body["message"], answer.body


async def test_others_write_to_nodes_as_before(server: Plane) -> None:
    assert (await server.call("PATCH", "/api/v1/nodes/node-a", TAINT)).status == 200
    assert (await server.call("PATCH", "/api/v1/nodes/node-a", metadata(labels={"pool": "x"}))).status == 200


async def test_the_real_sign_of_life_and_labels_are_taken(server: Plane, tmp_path: Path) -> None:
    credentials = StoredCredentials(token=Material("token", (await token(server, "node-b")).encode()))
    config = Config(server.url, credentials, ca=Material("ca", server.pki.authority.bundle))
    async with Client(config) as api:
        beat = asyncio.create_task(Heartbeat(api, "node-b", lambda: True, tmp_path / "none").run())
        try:
            recorder = Recorder(api, "virt-handler", "node-b")
            await Labeller(api, recorder, "node-b", lambda: {f"{names.HYPERVISOR_WORKS}kvm": "true"}).label()
            await until(lambda: b'"kubevirt.io/schedulable":"true"' in server.store.get("/nodes", "", "node-b").data)
        finally:
            beat.cancel()
            await asyncio.wait([beat])
    labels = (await server.api.get(NODES, "node-b"))["metadata"]["labels"]
    assert labels[names.SCHEDULABLE] == "false" and labels[f"{names.HYPERVISOR_WORKS}kvm"] == "true"
