"""`virtfleet validate` says what the API server says: of every reference input, and of some hundred random objects.

The API server is the real one, and asks virt-api's webhooks over TLS; both get the same objects and the same KubeVirt.
"""

from __future__ import annotations

import asyncio
import json
import random
import re
from pathlib import Path
from typing import Any

import orjson
import pytest
import yaml
from click.testing import CliRunner

from component.gateway.gateway_kit import Kit
from examples import examples
from reference import GOLDEN
from unit.admission.test_fuzz import CLUSTER, SEEDS, places
from unit.admission.test_templates import MIGRATION, REPLICA_SET, VM
from virtfleet.api.kinds import BY_NAME, KINDS
from virtfleet.api.subresources import GROUP
from virtfleet.cli.main import main
from virtfleet.kube.resource import of_kind

CASES = sorted(GOLDEN.glob("*/input.yaml"))
GATES = ("HostDevices", "HostDisk", "DownwardMetrics", "VSOCK", "WorkloadEncryptionTDX", "VirtHandlerPools")
VALUES: tuple[Any, ...] = (
    None, True, False, -2, 0, 1, 70000, 1.5, "", "x", "-1", "1e99", "Not_Valid", "1Gi", "-1Gi", "virtio", "é\n",
    "a" * 300, [], {}, [{}], {"enabled": False}, ["x"], {"a": {"b": "c"}},
)  # fmt: skip
Said = tuple[bool, frozenset[tuple[str, str]]]


def loaded(path: Path) -> Any:
    return yaml.load(path.read_text(), Loader=yaml.CSafeLoader)


def copied(value: Any) -> Any:
    return orjson.loads(orjson.dumps(value))


# --- what both say


async def told_by_server(kit: Kit, obj: dict[str, Any]) -> Said:
    path = of_kind(BY_NAME[obj["kind"]]).path("default")
    answer = await kit.server.call("POST", f"{path}?dryRun=All&fieldValidation=Strict", obj)
    if answer.status == 201:
        return True, frozenset()
    assert answer.status in (400, 422), answer.body
    if "strict decoding error" in answer.body["message"]:
        return False, frozenset(
            (field, "unknown") for field in re.findall(r'unknown field "(.*?)"', answer.body["message"])
        )
    causes = (answer.body.get("details") or {}).get("causes") or [{"message": answer.body["message"]}]
    return False, frozenset((cause.get("field", ""), worded(cause["message"])) for cause in causes)


def told_by_validate(described: dict[str, Any]) -> Said:
    causes = described["causes"]
    unknown = frozenset((c["field"], "unknown") for c in causes if c["message"].startswith("unknown field"))
    every = frozenset((cause["field"], worded(cause["message"])) for cause in causes)
    return described["verdict"] == "allowed", unknown or every


def worded(message: str) -> str:
    """Without what is made up anew for every object."""
    return re.sub(r"[0-9a-f]{8}-[0-9a-f-]{27}", "UUID", message)


async def validated(tmp_path: Path, objects: list[Any], spec: dict[str, Any]) -> list[dict[str, Any]]:
    """What one run of the command says of all of them."""
    manifests, kubevirt = tmp_path / "manifests.json", tmp_path / "kubevirt.json"
    # Documents and not a list, which would have kinds of its own.
    manifests.write_bytes(b"\n---\n".join(orjson.dumps(obj) for obj in objects))
    kubevirt.write_bytes(orjson.dumps({"apiVersion": "kubevirt.io/v1", "kind": "KubeVirt", "spec": spec}))
    command = ["validate", "-f", str(manifests), "--kubevirt", str(kubevirt), "-o", "json"]
    done = await asyncio.to_thread(CliRunner().invoke, main, command, catch_exceptions=False)
    assert done.exit_code in (0, 1), done.output
    described: list[dict[str, Any]] = json.loads(done.stdout)["objects"]
    assert len(described) == len(objects)
    return described


async def compare(kit: Kit, tmp_path: Path, objects: list[Any], spec: dict[str, Any]) -> int:
    """How many were refused, by both."""
    await kit.configure(spec)
    refused = 0
    for obj, described in zip(objects, await validated(tmp_path, objects, spec), strict=True):
        server, own = await told_by_server(kit, obj), told_by_validate(described)
        assert own == server, obj
        refused += not server[0]
    return refused


# --- what they are asked


def mutated(seed: int, objects: list[dict[str, Any]]) -> dict[str, Any]:
    chance = random.Random(seed)
    obj = copied(chance.choice(objects))
    for _ in range(chance.randint(1, 3)):
        at = chance.choice([place for place in places(obj) if place[0] in ("spec", "metadata")] or [("spec",)])
        parent = obj
        for step in at[:-1]:
            parent = parent[step]
        match chance.choice(("replace", "replace", "remove", "repeat", "misspell")):
            case "replace":
                parent[at[-1]] = copied(chance.choice(VALUES))
            case "remove":
                parent.pop(at[-1], None) if isinstance(parent, dict) else parent.pop(at[-1])
            case "repeat" if isinstance(parent, list):
                parent.append(copied(parent[at[-1]]))
            case "misspell" if isinstance(parent, dict):
                parent[f"{at[-1]}s"] = parent.pop(at[-1])
    metadata = obj.get("metadata")
    if isinstance(metadata, dict):  # in which namespace a request is made is no part of the object
        metadata["namespace"] = "default"
    return obj


def kinds(inputs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """VMIs, and the same as templates of others."""
    found = [*inputs]
    for i, vmi in enumerate(inputs):
        owner = copied((VM, REPLICA_SET)[i % 2])
        owner["spec"]["template"]["spec"] = copied(vmi["spec"])
        found.append(owner)
    return [*found, {**copied(CLUSTER), "apiVersion": "kubevirt.io/v1"}, copied(VM), copied(REPLICA_SET)]


@pytest.mark.slow
@pytest.mark.timeout(300)
async def test_reference_inputs_have_one_verdict(kit: Kit, tmp_path: Path) -> None:
    await kit.guard()
    by_installation: dict[str, list[Any]] = {}
    for path in CASES:
        spec = loaded(path.with_name("kubevirt.yaml"))["spec"]
        by_installation.setdefault(json.dumps(spec), []).append(loaded(path))
    refused = [await compare(kit, tmp_path, objs, json.loads(spec)) for spec, objs in by_installation.items()]
    assert 10 < sum(refused) < 20, "as many as KubeVirt refuses"


@pytest.mark.slow
@pytest.mark.timeout(300)
async def test_random_objects_have_one_verdict(kit: Kit, tmp_path: Path) -> None:
    await kit.guard()
    seeds = [{**seed, "apiVersion": "kubevirt.io/v1"} for seed in copied(SEEDS)]
    inputs = kinds([*seeds, *(loaded(path) for path in CASES)])
    number = examples(500)
    gates = {"configuration": {"developerConfiguration": {"featureGates": list(GATES)}}}
    first = [mutated(seed, inputs) for seed in range(number // 2)]
    second = [mutated(seed, inputs) for seed in range(number // 2, number)]
    refused = await compare(kit, tmp_path, first, {}) + await compare(kit, tmp_path, second, gates)
    assert number * 0.2 < refused < number * 0.98, "both verdicts are tried"


async def test_kinds_that_are_not_built_have_one_verdict(kit: Kit, tmp_path: Path) -> None:
    await kit.guard()
    unbuilt = [kind for kind in KINDS if kind.refusal]
    objects = [
        {"apiVersion": kind.api_version, "kind": kind.kind, "metadata": {"name": "one"}, "spec": spec, **more}
        for kind in unbuilt
        for spec in ({}, {"source": {"kind": "VirtualMachine"}, "domain": 1}, "text")
        for more in ({}, {"status": {"phase": "Ready"}, "elsewhere": 1})
    ]
    assert await compare(kit, tmp_path, objects, {}) == len(objects)


async def test_a_migration_has_one_verdict(kit: Kit, tmp_path: Path) -> None:
    await kit.started("vm")
    await kit.guard()
    await kit.configure({})
    migration = copied(MIGRATION)
    (described,) = await validated(tmp_path, [migration], {})
    async with asyncio.timeout(20):  # until virt-api has seen the VMI
        while told_by_validate(described) != await told_by_server(kit, migration):  # noqa: ASYNC110
            await asyncio.sleep(0.02)


async def test_the_clusters_gates_and_kinds_decide(kit: Kit, tmp_path: Path) -> None:
    vsock = next(seed for seed in copied(SEEDS) if "autoattachVSOCK" in json.dumps(seed))
    foreign = {"apiVersion": f"{GROUP}/v1", "kind": "Something", "metadata": {"name": "x"}}
    file = tmp_path / "manifests.json"
    file.write_bytes(orjson.dumps({**vsock, "apiVersion": "kubevirt.io/v1"}) + b"\n---\n" + orjson.dumps(foreign))
    command = ["validate", "-f", str(file), "--kubeconfig", str(tmp_path / "virt-api.kubeconfig"), "-o", "json"]
    for gates, verdict in (([], "refused"), (["VSOCK"], "allowed")):
        await kit.configure({"configuration": {"developerConfiguration": {"featureGates": gates}}})
        done = await asyncio.to_thread(CliRunner().invoke, main, command, catch_exceptions=False)
        said = json.loads(done.stdout)
        assert [obj["verdict"] for obj in said["objects"]] == [verdict, "unchecked"], (
            "others serve a group of that name"
        )
        assert said["configuration"] == f"the configuration of the cluster at {kit.server.url}"
