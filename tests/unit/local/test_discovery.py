"""Discovery and OpenAPI documents."""

from __future__ import annotations

from unittest.mock import Mock

import orjson
import pytest
from aiohttp import web
from aiohttp.test_utils import make_mocked_request

from virtfleet.kube.resource import Obj, Resource
from virtfleet.local.apiserver.kinds import builtin
from virtfleet.local.apiserver.kinds.crds import custom_schema
from virtfleet.local.apiserver.kinds.registry import Kind, Kinds
from virtfleet.local.apiserver.serving.discovery import Discovery, version_rank
from virtfleet.local.apiserver.serving.openapi import OpenApi

AGGREGATED = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList,application/json"


@pytest.fixture
def kinds() -> Kinds:
    registry = Kinds()
    builtin.register(registry, Mock())
    return registry


def thing(version: str) -> Kind:
    resource = Resource("example.com", version, "things", "Thing")
    schema = {"type": "object", "description": "A thing.", "properties": {"spec": {"type": "object"}}}
    return Kind(resource, "thing", "ThingList", schema=custom_schema(resource, schema), custom=True)


async def ask(documents: Discovery | OpenApi, path: str, **headers: str) -> web.Response:
    handler = documents.handler(path.partition("?")[0])
    assert handler, path
    answer = await handler(make_mocked_request("GET", path, headers=headers))
    assert isinstance(answer, web.Response)
    return answer


async def read(documents: Discovery | OpenApi, path: str, **headers: str) -> Obj:
    body = (await ask(documents, path, **headers)).body
    assert isinstance(body, bytes)
    found: Obj = orjson.loads(body)
    return found


def test_versions_are_ranked_by_stability_then_number() -> None:
    versions = ["v1beta1", "foo1", "v1", "v2alpha1", "v11beta2", "v2", "v10", "v1beta10"]
    assert sorted(versions, key=version_rank) == [
        "v10", "v2", "v1", "v11beta2", "v1beta10", "v1beta1", "v2alpha1", "foo1",
    ]  # fmt: skip


async def test_the_old_form_lists_groups_versions_and_resources(kinds: Kinds) -> None:
    kinds.add(thing("v1beta1"))
    kinds.add(thing("v1"))
    discovery = Discovery(kinds)
    assert (await read(discovery, "/api", Host="x"))["versions"] == ["v1"]
    groups = {g["name"]: g for g in (await read(discovery, "/apis"))["groups"]}
    assert "apps" in groups
    assert groups["example.com"]["preferredVersion"] == {"groupVersion": "example.com/v1", "version": "v1"}
    assert (await read(discovery, "/apis/example.com"))["kind"] == "APIGroup"
    core = {r["name"]: r for r in (await read(discovery, "/api/v1"))["resources"]}
    assert core["pods"]["shortNames"] == ["po"]
    assert core["pods/eviction"]["kind"] == "Eviction"
    assert (core["pods/eviction"]["group"], core["pods/eviction"]["version"]) == ("policy", "v1")
    assert "group" not in core["pods/status"]


async def test_both_forms_agree(kinds: Kinds) -> None:
    discovery = Discovery(kinds)
    aggregated = {g["metadata"]["name"]: g for g in (await read(discovery, "/apis", Accept=AGGREGATED))["items"]}
    legacy = [g["name"] for g in (await read(discovery, "/apis"))["groups"]]
    assert list(aggregated) == legacy
    deployments = aggregated["apps"]["versions"][0]["resources"][2]
    assert deployments["resource"] == "deployments"
    assert deployments["responseKind"] == {"group": "apps", "version": "v1", "kind": "Deployment"}
    assert [s["subresource"] for s in deployments["subresources"]] == ["scale", "status"]
    assert deployments["subresources"][0]["responseKind"]["kind"] == "Scale"


async def test_an_unchanged_document_is_not_sent_again(kinds: Kinds) -> None:
    discovery = Discovery(kinds)
    first = await ask(discovery, "/apis", Accept=AGGREGATED)
    assert first.headers["Content-Type"] == "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"
    known = {"Accept": AGGREGATED, "If-None-Match": first.headers["ETag"]}
    assert (await ask(discovery, "/apis", **known)).status == 304
    kinds.add(thing("v1"))
    assert (await ask(discovery, "/apis", **known)).status == 200


async def test_groups_of_aggregated_servers_are_listed_but_not_answered_for(kinds: Kinds) -> None:
    extra = {"metadata": {"name": "sub.example.com"}, "versions": [{"version": "v1", "resources": []}]}
    discovery = Discovery(kinds, lambda: [extra])
    assert "sub.example.com" in [g["name"] for g in (await read(discovery, "/apis"))["groups"]]
    assert discovery.handler("/apis/sub.example.com/v1") is None
    assert discovery.handler("/apis/unknown") is None


async def test_every_document_of_the_index_is_whole(kinds: Kinds) -> None:
    kinds.add(thing("v1"))
    openapi = OpenApi(kinds)
    for name, entry in (await read(openapi, "/openapi/v3"))["paths"].items():
        document = await read(openapi, entry["serverRelativeURL"])
        schemas = document["components"]["schemas"]
        for reference in _references(document):
            assert reference.removeprefix("#/components/schemas/") in schemas, name


def _references(part: object) -> list[str]:
    if isinstance(part, list):
        return [found for item in part for found in _references(item)]
    if isinstance(part, dict):
        own = [part["$ref"]] if isinstance(part.get("$ref"), str) else []
        return own + [found for item in part.values() for found in _references(item)]
    return []


async def test_hashes_change_with_the_kinds_of_their_group_only(kinds: Kinds) -> None:
    openapi = OpenApi(kinds)
    before = (await read(openapi, "/openapi/v3"))["paths"]
    kinds.add(thing("v1"))
    after = (await read(openapi, "/openapi/v3"))["paths"]
    assert {name: after[name] for name in before} == before
    kinds.add(thing("v1"))
    assert (await read(openapi, "/openapi/v3"))["paths"] == after
    url = after["apis/example.com/v1"]["serverRelativeURL"]
    assert "immutable" in (await ask(openapi, url)).headers["Cache-Control"]
    assert "Cache-Control" not in (await ask(openapi, "/openapi/v3/apis/example.com/v1")).headers


async def test_clients_learn_that_field_validation_and_merge_patches_work(kinds: Kinds) -> None:
    kinds.add(thing("v1"))
    openapi = OpenApi(kinds)
    core = (await read(openapi, "/openapi/v3/api/v1"))["paths"]
    patch = core["/api/v1/namespaces/{namespace}/pods/{name}"]["patch"]
    assert "fieldValidation" in [p["name"] for p in patch["parameters"]]
    assert "application/strategic-merge-patch+json" in patch["requestBody"]["content"]
    custom = (await read(openapi, "/openapi/v3/apis/example.com/v1"))["paths"]
    content = custom["/apis/example.com/v1/namespaces/{namespace}/things/{name}"]["patch"]["requestBody"]["content"]
    formats = ("apply-patch+yaml", "json-patch+json", "merge-patch+json")
    assert list(content) == [f"application/{name}" for name in formats]
