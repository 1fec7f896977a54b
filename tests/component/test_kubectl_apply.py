"""The real kubectl's server-side apply, on a server with nothing but kinds."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from test_kubectl_kinds import CRONTABS, Kubectl, kubectl

__all__ = ["kubectl"]

SSA = ("apply", "--server-side", "-f", "-")


def config(data: dict[str, str], **metadata: Any) -> str:
    return json.dumps({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c", **metadata}, "data": data})


def deployment(*containers: dict[str, Any], **spec: Any) -> str:
    template = {"metadata": {"labels": {"app": "x"}}, "spec": {"containers": containers}}
    whole = {"selector": {"matchLabels": {"app": "x"}}, "template": template, **spec}
    return json.dumps({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "d"}, "spec": whole})


async def shown(kubectl: Kubectl, *what: str) -> Any:
    return json.loads(await kubectl("get", *what, "-o", "json", "--show-managed-fields"))


@pytest.mark.slow
async def test_what_an_applier_no_longer_names_goes_and_the_rest_stays(kubectl: Kubectl) -> None:
    first = config({"a": "1", "b": "1"})
    assert await kubectl(*SSA, stdin=first) == "configmap/c serverside-applied\n"
    before = await shown(kubectl, "cm", "c")
    assert await kubectl(*SSA, stdin=first) == "configmap/c serverside-applied\n"
    assert await shown(kubectl, "cm", "c") == before, "an apply that changes nothing writes nothing"
    await kubectl("patch", "cm", "c", "--field-manager=other", "-p", '{"data": {"o": "1"}}')
    await kubectl(*SSA, stdin=config({"b": "2"}))
    after = await shown(kubectl, "cm", "c")
    assert after["data"] == {"b": "2", "o": "1"}
    assert [(m["manager"], m["operation"], m["fieldsV1"]) for m in after["metadata"]["managedFields"]] == [
        ("kubectl", "Apply", {"f:data": {"f:b": {}}}),
        ("other", "Update", {"f:data": {"f:o": {}}}),
    ]


@pytest.mark.slow
async def test_a_conflict_is_told_and_can_be_forced(kubectl: Kubectl) -> None:
    await kubectl(*SSA, "--field-manager=first", stdin=config({"a": "1", "b": "1"}))
    code, said = await kubectl.run(*SSA, "--field-manager=second", stdin=config({"a": "2", "b": "2"}))
    assert code == 1
    assert 'Apply failed with 2 conflicts: conflicts with "first":\n- .data.a\n- .data.b' in said
    assert "--force-conflicts" in said, "kubectl knows the answer for what it is, and advises"
    dry = await kubectl(
        *SSA, "--field-manager=second", "--force-conflicts", "--dry-run=server", stdin=config({"a": "2"})
    )
    assert dry == "configmap/c serverside-applied (server dry run)\n"
    assert (await shown(kubectl, "cm", "c"))["data"] == {"a": "1", "b": "1"}
    await kubectl(*SSA, "--field-manager=second", "--force-conflicts", stdin=config({"a": "2"}))
    assert (await shown(kubectl, "cm", "c"))["data"] == {"a": "2", "b": "1"}
    await kubectl(*SSA, "--field-manager=first", stdin=config({"b": "1"}))
    assert (await shown(kubectl, "cm", "c"))["data"] == {"a": "2", "b": "1"}, "what was taken over stays"


@pytest.mark.slow
async def test_lists_go_by_their_keys_and_values_by_their_owner(kubectl: Kubectl) -> None:
    await kubectl(*SSA, stdin=deployment({"name": "one", "image": "i"}, {"name": "two", "image": "i"}, replicas=2))
    await kubectl("scale", "deployment/d", "--replicas=5")
    sidecar = deployment({"name": "side", "image": "s", "ports": [{"containerPort": 80}]})
    await kubectl(*SSA, "--field-manager=mesh", stdin=sidecar)
    code, said = await kubectl.run(*SSA, stdin=deployment({"name": "one", "image": "j"}, replicas=2))
    assert (code, ".spec.replicas" in said) == (1, True)
    await kubectl(*SSA, stdin=deployment({"name": "one", "image": "j"}))
    spec = (await shown(kubectl, "deployment", "d"))["spec"]
    assert spec["replicas"] == 5
    assert [(c["name"], c["image"]) for c in spec["template"]["spec"]["containers"]] == [("one", "j"), ("side", "s")]
    code, said = await kubectl.run(*SSA, stdin=deployment({"name": "side", "image": "j"}))
    assert 'conflict with "mesh": .spec.template.spec.containers[name="side"].image' in said


@pytest.mark.slow
async def test_an_object_of_client_side_apply_goes_over_to_server_side(kubectl: Kubectl) -> None:
    await kubectl("apply", "-f", "-", stdin=config({"a": "1", "b": "1"}))
    await kubectl("patch", "cm", "c", "-p", '{"data": {"o": "1"}}')
    await kubectl(*SSA, stdin=config({"a": "2"}))
    after = await shown(kubectl, "cm", "c")
    assert after["data"] == {"a": "2", "o": "1"}, "what the client-side apply had set and nobody wants goes"
    assert "kubectl-client-side-apply" not in {m["manager"] for m in after["metadata"]["managedFields"]}
    await kubectl("apply", "-f", "-", stdin=config({"a": "3"}))
    assert (await shown(kubectl, "cm", "c"))["data"] == {"a": "3", "o": "1"}


async def test_what_others_made_is_told_apart_only_from_the_first_apply_on(kubectl: Kubectl) -> None:
    await kubectl("create", "cm", "c", "--from-literal=a=1")
    assert "managedFields" not in (await shown(kubectl, "cm", "c"))["metadata"]
    _, said = await kubectl.run(*SSA, stdin=config({"a": "2"}))
    assert 'conflict with "before-first-apply" using v1: .data.a' in said
    await kubectl(*SSA, stdin=config({"b": "1"}))
    assert (await shown(kubectl, "cm", "c"))["data"] == {"a": "1", "b": "1"}


@pytest.mark.slow
async def test_custom_kinds_are_applied_by_their_schema(kubectl: Kubectl) -> None:
    await kubectl("create", "-f", "-", stdin=CRONTABS)
    tab = {"apiVersion": "example.com/v1", "kind": "CronTab", "metadata": {"name": "t"}, "spec": {"cronSpec": "x"}}
    await kubectl(*SSA, stdin=json.dumps(tab))
    after = await shown(kubectl, "crontab", "t")
    assert after["spec"] == {"cronSpec": "x", "replicas": 1}
    assert after["metadata"]["managedFields"][0]["fieldsV1"] == {"f:spec": {"f:cronSpec": {}}}
    assert after["metadata"]["generation"] == 1
    code, said = await kubectl.run(
        *SSA, "--validate=false", stdin=json.dumps({**tab, "spec": {"cronSpec": "x", "nope": 1}})
    )
    assert (code, ".spec.nope: field not declared in schema" in said) == (1, True)


async def test_diff_shows_what_a_server_side_apply_would_do(kubectl: Kubectl) -> None:
    await kubectl(*SSA, stdin=config({"a": "1"}))
    code, said = await kubectl.run("diff", "--server-side", "-f", "-", stdin=config({"a": "2"}))
    assert code == 1
    assert '-  a: "1"\n+  a: "2"' in said


@pytest.mark.slow
async def test_the_operators_manifest_is_applied_and_applying_it_again_writes_nothing(kubectl: Kubectl) -> None:
    manifest = str(Path(__file__).parents[2] / "deploy/operator.yaml")
    command = ("apply", "--server-side", "--force-conflicts", "-f", manifest)
    made = await kubectl(*command)
    assert "customresourcedefinition.apiextensions.k8s.io/kubevirts.kubevirt.io serverside-applied" in made
    versions = ("get", "-f", manifest, "-o", "jsonpath={.items[*].metadata.resourceVersion}")
    before = await kubectl(*versions)
    assert await kubectl(*command) == made
    assert await kubectl(*versions) == before
