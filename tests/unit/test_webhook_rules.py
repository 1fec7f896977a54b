"""Which webhooks a write is shown to."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from virtfleet.kube.resource import Obj, Resource
from virtfleet.local.apiserver.extensions.admission import AdmissionRequest
from virtfleet.local.apiserver.extensions.webhook_rules import Webhook
from virtfleet.local.apiserver.kinds.registry import Kind, Kinds
from virtfleet.local.apiserver.rights.access import User


def kind(plural: str, version: str = "v1", group: str = "apps", *, namespaced: bool = True) -> Kind:
    return Kind(Resource(group, version, plural, plural.title(), namespaced), plural, plural)


DEPLOYMENTS = kind("deployments")
NODES = kind("nodes", group="", namespaced=False)
NAMESPACES = kind("namespaces", group="", namespaced=False)


def webhook(rule: Obj | None = None, **fields: Any) -> Webhook:
    everything = {"operations": ["*"], "apiGroups": ["*"], "apiVersions": ["*"], "resources": ["*/*"]}
    hook = {
        "name": "w.example.com",
        "clientConfig": {"url": "https://example.com"},
        "rules": [everything | (rule or {})],
        **fields,
    }
    [made] = Webhook.of_configuration({"webhooks": [hook]})
    return made


def write(
    kind: Kind = DEPLOYMENTS, operation: str = "CREATE", subresource: str = "", **labels: dict[str, str]
) -> AdmissionRequest:
    obj = {"metadata": {"name": "x", "labels": labels.get("new", {})}}
    old = {"metadata": {"name": "x", "labels": labels["old"]}} if "old" in labels else None
    place = "default" if kind.resource.namespaced else ""
    return AdmissionRequest(operation, kind, place, "x", User("u"), obj, old, subresource)


def registry(*kinds: Kind) -> Kinds:
    made = Kinds()
    for k in kinds:
        made.add(k)
    return made


def shown(
    hook: Webhook, request: AdmissionRequest, kinds: Kinds | None = None, labels: dict[str, str] | None = None
) -> Kind | None:
    """The kind that the webhook sees of a write in a namespace with these labels."""
    namespace = {"metadata": {"labels": labels or {}}}
    stored: Any = SimpleNamespace(read=lambda storage, _, name: namespace if name else None)
    return hook.matcher.kind_of(request, kinds or registry(request.kind), stored)


@pytest.mark.parametrize(
    ("rule", "request_", "asked"),
    [
        ({}, write(), True),
        ({"operations": ["CREATE", "UPDATE"]}, write(operation="UPDATE"), True),
        ({"operations": ["CREATE"]}, write(operation="DELETE"), False),
        ({"apiGroups": ["apps"]}, write(), True),
        ({"apiGroups": [""]}, write(), False),
        ({"apiVersions": ["v1", "v2"]}, write(), True),
        ({"apiVersions": ["v2"]}, write(), False),
        ({"resources": ["deployments"]}, write(), True),
        ({"resources": ["*"]}, write(), True),
        ({"resources": ["pods"]}, write(), False),
        ({"resources": ["*"]}, write(subresource="status"), False),
        ({"resources": ["deployments"]}, write(subresource="status"), False),
        ({"resources": ["deployments/status"]}, write(subresource="status"), True),
        ({"resources": ["deployments/status"]}, write(), False),
        ({"resources": ["deployments/*"]}, write(subresource="scale"), True),
        ({"resources": ["deployments/*"]}, write(), True),
        ({"resources": ["*/scale"]}, write(subresource="scale"), True),
        ({"resources": ["*/scale"]}, write(subresource="status"), False),
        ({"scope": "Namespaced"}, write(), True),
        ({"scope": "Cluster"}, write(), False),
        ({"scope": "Cluster"}, write(NODES), True),
        ({"scope": "Namespaced"}, write(NODES), False),
        ({"scope": "Cluster"}, write(NAMESPACES), True),
    ],
)
def test_rules_name_operations_groups_versions_resources_and_scope(
    rule: Obj, request_: AdmissionRequest, asked: bool
) -> None:
    exact = webhook(rule, matchPolicy="Exact")
    assert (shown(exact, request_) is not None) == asked


def test_an_equivalent_version_is_shown_in_the_version_that_was_asked_for() -> None:
    other = kind("deployments", "v1beta1")
    kinds = registry(DEPLOYMENTS, other)
    rule = {"apiVersions": ["v1beta1"]}
    assert shown(webhook(rule), write(), kinds) is other
    assert shown(webhook(rule, matchPolicy="Exact"), write(), kinds) is None
    assert shown(webhook({"apiVersions": ["*"]}), write(), kinds) is DEPLOYMENTS


@pytest.mark.parametrize(
    ("request_", "selected"),
    [
        (write(new={"a": "b"}), True),
        (write(new={"a": "c"}), False),
        (write(new={}, old={"a": "b"}), True),
        (write(new={"a": "b"}, old={}), True),
        (write(new={}, old={}), False),
    ],
)
def test_an_object_selector_looks_at_the_old_and_the_new_object(request_: AdmissionRequest, selected: bool) -> None:
    hook = webhook(objectSelector={"matchLabels": {"a": "b"}})
    assert (shown(hook, request_) is not None) == selected


def test_a_namespace_selector_looks_at_the_objects_namespace() -> None:
    hook = webhook(namespaceSelector={"matchExpressions": [{"key": "skip", "operator": "DoesNotExist"}]})
    assert not shown(hook, write(), labels={"skip": "yes"})
    assert shown(hook, write())


def test_a_namespace_is_selected_by_its_own_labels_and_cluster_objects_are_never_exempt() -> None:
    hook = webhook(namespaceSelector={"matchLabels": {"guarded": "yes"}})
    assert shown(hook, write(NAMESPACES, new={"guarded": "yes"}))
    assert not shown(hook, write(NAMESPACES))
    assert shown(hook, write(NODES))


@pytest.mark.parametrize(
    ("client", "url"),
    [
        ({"url": "https://example.com/x"}, "https://example.com/x"),
        ({"service": {"namespace": "n", "name": "s"}}, "https://s.n.svc:443/"),
        ({"service": {"namespace": "n", "name": "s", "port": 8443, "path": "/v"}}, "https://s.n.svc:8443/v"),
    ],
)
def test_a_webhook_is_called_by_url_or_by_the_name_of_its_service(client: Obj, url: str) -> None:
    assert webhook(clientConfig=client).url == url
