"""Paths: read as Kubernetes reads them, and in one way only."""

from __future__ import annotations

import pytest

from virtfleet.kube.errors import ApiError
from virtfleet.local.apiserver.rights.access import Attributes
from virtfleet.local.apiserver.serving.requestinfo import read


def about(path: str, method: str = "GET", watch: str = "", fields: str = "") -> dict[str, str]:
    info = read(method, path, watch, fields)
    return {k: getattr(info, k) for k in Attributes.__slots__ if k not in ("path", "user") and getattr(info, k)}


@pytest.mark.parametrize(
    ("method", "path", "expected"),
    [
        ("GET", "/api/v1/pods", {"verb": "list", "version": "v1", "resource": "pods"}),
        ("GET", "/api/v1/namespaces", {"verb": "list", "version": "v1", "resource": "namespaces"}),
        (
            "GET",
            "/api/v1/namespaces/a",
            {"verb": "get", "version": "v1", "resource": "namespaces", "namespace": "a", "name": "a"},
        ),
        (
            "PUT",
            "/api/v1/namespaces/a/finalize",
            {
                "verb": "update",
                "version": "v1",
                "resource": "namespaces",
                "namespace": "a",
                "name": "a",
                "subresource": "finalize",
            },
        ),
        (
            "POST",
            "/api/v1/namespaces/a/pods",
            {"verb": "create", "version": "v1", "resource": "pods", "namespace": "a"},
        ),
        (
            "DELETE",
            "/api/v1/namespaces/a/pods",
            {"verb": "deletecollection", "version": "v1", "resource": "pods", "namespace": "a"},
        ),
        (
            "PATCH",
            "/apis/apps/v1/namespaces/a/deployments/d/scale",
            {
                "verb": "patch",
                "group": "apps",
                "version": "v1",
                "resource": "deployments",
                "namespace": "a",
                "name": "d",
                "subresource": "scale",
            },
        ),
        (
            "GET",
            "/api/v1/nodes/n/proxy/metrics/a%2Fb",
            {
                "verb": "get",
                "version": "v1",
                "resource": "nodes",
                "name": "n",
                "subresource": "proxy",
                "subpath": "metrics/a%2Fb",
            },
        ),
        (
            "GET",
            "/apis/rbac.authorization.k8s.io/v1/clusterroles/system%3Anode",
            {
                "verb": "get",
                "group": "rbac.authorization.k8s.io",
                "version": "v1",
                "resource": "clusterroles",
                "name": "system:node",
            },
        ),
    ],
)
def test_a_path_names_a_verb_on_a_resource(method: str, path: str, expected: dict[str, str]) -> None:
    assert about(path, method) == expected


@pytest.mark.parametrize(
    "path", ["/", "/version", "/api", "/apis", "/apis/apps/v1", "/openapi/v3", "/livez/ping", "/api/v1"]
)
def test_other_paths_are_about_no_resource(path: str) -> None:
    assert about(path) == {"verb": "get"}
    assert about(path, "POST") == {"verb": "post"}


@pytest.mark.parametrize(
    ("value", "verb"), [("true", "watch"), ("1", "watch"), ("false", "list"), ("0", "list"), ("", "list")]
)
def test_watch_is_a_parameter_of_list(value: str, verb: str) -> None:
    assert about("/api/v1/pods", watch=value)["verb"] == verb


def test_a_list_by_name_is_authorized_for_that_name() -> None:
    assert about("/api/v1/pods", fields="metadata.name=x,spec.nodeName=y")["name"] == "x"
    assert "name" not in about("/api/v1/pods", fields="metadata.name!=x")


@pytest.mark.parametrize(
    "path",
    [
        "/api/v1/namespaces/a%2Fb/pods",
        "/api/v1/namespaces/a/pods/..",
        "/api/v1/namespaces/a/pods/%2e%2e",
        "/api/v1/namespaces//pods",
        "/api/v1/namespaces/a/pods/x%00y",
        "/api/v1/namespaces/a/pods/x%2525",
        "/apis/../v1/pods/x/y",
        "/api/v1/namespaces/a/pods/%ff",
    ],
)
def test_there_is_no_second_spelling_of_a_path(path: str) -> None:
    with pytest.raises(ApiError) as refused:
        read("GET", path)
    assert refused.value.code == 400
