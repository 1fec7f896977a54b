"""Bad input gets the status code and the reason that Kubernetes gives, and harms nobody."""

from __future__ import annotations

import json
from typing import Any

import pytest
from clusters import KUBECONFIG, Kubectl
from rawapi import RawApi


def config_map(name: str = "a", **extra: Any) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, **extra}


@pytest.fixture
def path(kubectl: Kubectl) -> str:
    return f"/api/v1/namespaces/{kubectl.namespace}/configmaps"


@pytest.mark.parametrize(
    ("body", "code", "reason"),
    [
        (b"{", 400, "BadRequest"),
        (b"", 400, "BadRequest"),
        (b"[]", 400, "BadRequest"),
        (b"null", 422, "Invalid"),
        (b'"text"', 400, "BadRequest"),
        (b'{"kind": "ConfigMap"', 400, "BadRequest"),
        (b"\xff\xfe", 400, "BadRequest"),
        (json.dumps({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "a"}}).encode(), 400, "BadRequest"),
        (json.dumps(config_map(data={"a": 1})).encode(), 400, "BadRequest"),
        (json.dumps(config_map(data=["a"])).encode(), 400, "BadRequest"),
        (json.dumps(config_map("Not_A_Name")).encode(), 422, "Invalid"),
        (json.dumps(config_map("a" * 254)).encode(), 422, "Invalid"),
        (json.dumps({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {}}).encode(), 422, "Invalid"),
        (json.dumps(config_map(metadata={"name": "a", "namespace": "other"})).encode(), 400, "BadRequest"),
        (json.dumps(config_map(metadata={"name": "a", "labels": {"-": "x"}})).encode(), 422, "Invalid"),
        (json.dumps(config_map(data={"../x": "y"})).encode(), 422, "Invalid"),
        (json.dumps(config_map(metadata={"name": "a", "resourceVersion": "1"})).encode(), 500, ""),
    ],
)
def test_a_body_that_is_no_such_object_is_refused(raw: RawApi, path: str, body: bytes, code: int, reason: str) -> None:
    answer = raw("POST", path, body)
    assert (answer.code, answer.reason) == (code, reason), answer.body
    assert answer.json["kind"] == "Status"
    assert answer.message


def test_a_body_over_the_limit_is_refused(raw: RawApi, path: str) -> None:
    answer = raw("POST", path, config_map(data={"a": "x" * (4 << 20)}))
    assert (answer.code, answer.reason) == (413, "RequestEntityTooLarge")
    assert raw("GET", path).code == 200


def test_an_object_over_the_limit_of_its_kind_is_refused(raw: RawApi, path: str) -> None:
    answer = raw("POST", path, config_map(data={"a": "x" * (1 << 20), "b": "y"}))
    assert answer.code == 422
    assert "1048576" in answer.message


@pytest.mark.parametrize(
    ("method", "suffix", "code"),
    [
        ("GET", "/absent", 404),
        ("PUT", "/absent", 404),
        ("DELETE", "/absent", 404),
        ("POST", "/named", 405),
        ("PUT", "", 405),
        ("GET", "/a/status", 404),
        ("GET", "/a/b/c", 404),
        ("TRACE", "", 405),
    ],
)
def test_requests_for_what_is_not_there(raw: RawApi, path: str, method: str, suffix: str, code: int) -> None:
    body = config_map("absent") if method in ("PUT", "POST") else None
    answer = raw(method, path + suffix, body)
    assert answer.code == code, answer.body


@pytest.mark.parametrize(
    "trick",
    [
        "/api/v1/namespaces/default/../../../etc/passwd",
        "/api/v1/namespaces/%2e%2e/configmaps",
        "/api/v1/namespaces/default/configmaps/..%2f..%2fsecrets",
        "/api/v1//namespaces",
        "/apis/apps/v9/deployments",
        "/apis/nonexistent.example/v1/things",
        "/api/v2/pods",
        "/etc/passwd",
        "/api/v1/namespaces/default/configmaps/a%00b",
    ],
)
def test_tricks_with_paths_find_nothing(raw: RawApi, trick: str) -> None:
    answer = raw("GET", trick)
    # A real Kubernetes lets `..` get as far as its storage, which fails.
    failing = (500,) if KUBECONFIG else ()
    assert answer.code in (301, 400, 404, *failing), answer.body
    assert b"root:" not in answer.body


def test_not_found_reads_as_in_kubernetes(kubectl: Kubectl) -> None:
    assert kubectl.fails("get", "configmap", "absent").strip() == (
        'Error from server (NotFound): configmaps "absent" not found'
    )
    assert 'namespaces "absent" not found' in kubectl.fails("get", "namespace", "absent")
    assert "the server doesn't have a resource type" in kubectl.fails("get", "nonsense")


def test_a_second_creation_reads_as_in_kubernetes(kubectl: Kubectl) -> None:
    kubectl("create", "configmap", "a")
    assert 'configmaps "a" already exists' in kubectl.fails("create", "configmap", "a")


def test_an_unknown_field_is_refused_warned_of_or_dropped_as_asked(raw: RawApi, path: str) -> None:
    body = config_map("strict", dataa={"a": "b"})
    strict = raw("POST", f"{path}?fieldValidation=Strict", body)
    assert (strict.code, strict.reason) == (400, "BadRequest")
    assert 'unknown field "dataa"' in strict.message
    warned = raw("POST", f"{path}?fieldValidation=Warn", body)
    assert warned.code == 201
    assert warned.headers["warning"] == r'299 - "unknown field \"dataa\""'
    assert "dataa" not in warned.json
    ignored = raw("POST", f"{path}?fieldValidation=Ignore", config_map("ignored", dataa={}))
    assert ignored.code == 201
    assert "warning" not in ignored.headers
    assert raw("POST", f"{path}?fieldValidation=Perhaps", config_map("perhaps")).code == 422


@pytest.mark.parametrize(
    ("content_type", "body", "code"),
    [
        ("application/merge-patch+json", b"{", 400),
        ("application/merge-patch+json", b"[]", 400),
        ("application/json-patch+json", b'{"op": "add"}', 400),
        ("application/json-patch+json", b'[{"op": "remove", "path": "/data/absent"}]', 422),
        ("application/json-patch+json", b'[{"op": "test", "path": "/data/k", "value": "other"}]', 422),
        ("text/plain", b"{}", 415),
        ("application/merge-patch+json", b'{"metadata": {"resourceVersion": "1"}}', 409),
        ("application/merge-patch+json", b'{"metadata": {"name": "other"}}', 400),
        ("application/merge-patch+json", b'{"metadata": {"uid": "other"}}', 422),
        ("application/merge-patch+json", b'{"data": {"k": 1}}', 422),
    ],
)
def test_bad_patches(raw: RawApi, path: str, content_type: str, body: bytes, code: int) -> None:
    assert raw("POST", path, config_map("p", data={"k": "v"})).code == 201
    answer = raw("PATCH", f"{path}/p", body, Content_Type=content_type)
    assert answer.code == code, answer.body
    assert raw("GET", f"{path}/p").json["data"] == {"k": "v"}


@pytest.mark.parametrize(
    ("query", "code"),
    [
        ("labelSelector=a%3Db%2C", 400),
        ("fieldSelector=spec.nonsense%3Dx", 400),
        ("limit=x", 400),
        ("continue=nonsense", 400),
        ("resourceVersion=x", 400),
        ("resourceVersionMatch=Exact", 422),
    ],
)
def test_bad_questions(raw: RawApi, path: str, query: str, code: int) -> None:
    answer = raw("GET", f"{path}?{query}")
    assert answer.code == code, answer.body


def test_an_old_version_of_an_object_is_not_written_over_a_newer_one(raw: RawApi, path: str) -> None:
    first = raw("POST", path, config_map("c")).json
    second = raw("PUT", f"{path}/c", {**first, "data": {"a": "1"}})
    assert second.code == 200
    lost = raw("PUT", f"{path}/c", {**first, "data": {"a": "2"}})
    assert (lost.code, lost.reason) == (409, "Conflict")
    assert lost.message == (
        'Operation cannot be fulfilled on configmaps "c": the object has been modified; '
        "please apply your changes to the latest version and try again"
    )


def test_a_server_side_apply_makes_what_is_not_there(raw: RawApi, path: str) -> None:
    config = config_map("ssa", data={"a": "1"})
    answer = raw("PATCH", f"{path}/ssa?fieldManager=t", config, Content_Type="application/apply-patch+yaml")
    assert (answer.code, answer.json["metadata"]["managedFields"][0]["manager"]) == (201, "t")
