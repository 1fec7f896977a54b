"""Admission policies of the local API server: what is refused when they are made, and what they refuse."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from access_plane import Plane, plane

from virtfleet.kube.resource import Obj

POLICIES = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies"
BINDINGS = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicybindings"
MAPS = "/api/v1/namespaces/default/configmaps"


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[Plane]:
    async with plane(tmp_path) as made:
        yield made


def policy(*expressions: str, **spec: Any) -> Obj:
    rule = {"operations": ["CREATE", "UPDATE"], "apiGroups": [""], "apiVersions": ["v1"], "resources": ["configmaps"]}
    return {
        "metadata": {"name": "careful"},
        "spec": {
            "matchConstraints": {"resourceRules": [rule]},
            "validations": [{"expression": text, "message": "that is too much"} for text in expressions],
            **spec,
        },
    }


def binding(**spec: Any) -> Obj:
    return {
        "metadata": {"name": "everywhere"},
        "spec": {"policyName": "careful", "validationActions": ["Deny"], **spec},
    }


async def install(server: Plane, made: Obj) -> None:
    for path, obj in ((POLICIES, made), (BINDINGS, binding())):
        answer = await server.call("POST", path, obj)
        assert answer.status == 201, answer.body


async def write(server: Plane, name: str, **data: str) -> tuple[int, str]:
    answer = await server.call("POST", MAPS, {"metadata": {"name": name}, "data": data})
    return answer.status, answer.body.get("message", "")


async def test_a_bound_policy_decides(server: Plane) -> None:
    assert (await server.call("POST", POLICIES, policy("object.data.size() < 2"))).status == 201
    assert (await write(server, "unbound", a="1", b="2"))[0] == 201
    assert (await server.call("POST", BINDINGS, binding())).status == 201
    assert (await write(server, "small", a="1"))[0] == 201
    assert await write(server, "large", a="1", b="2") == (
        422,
        "configmaps \"large\" is forbidden: ValidatingAdmissionPolicy 'careful' with binding 'everywhere' "
        "denied request: that is too much",
    )
    grown = await server.call("PATCH", f"{MAPS}/small", {"data": {"b": "2"}})
    assert grown.status == 422
    assert (await server.call("DELETE", f"{BINDINGS}/everywhere")).status == 200
    assert (await write(server, "large", a="1", b="2"))[0] == 201


async def test_conditions_choose_and_reasons_are_given(server: Plane) -> None:
    made = policy("false", matchConditions=[{"name": "named", "expression": "request.name == 'mine'"}])
    made["spec"]["validations"][0]["reason"] = "Forbidden"
    await install(server, made)
    assert (await write(server, "other"))[0] == 201
    assert (await write(server, "mine"))[0] == 403


@pytest.mark.parametrize(("failure", "status"), [("Fail", 422), ("Ignore", 201)])
async def test_an_expression_without_an_answer_counts_as_the_policy_says(
    server: Plane, failure: str, status: int
) -> None:
    await install(server, policy("object.data.absent == 'x'", failurePolicy=failure))
    found, message = await write(server, "map", a="1")
    assert found == status and (status == 201 or "resulted in error" in message)


@pytest.mark.parametrize(
    ("made", "field"),
    [
        (policy("object.metadata."), "spec.validations[0].expression"),
        (policy("nonsense.name == 'x'"), "spec.validations[0].expression"),
        (policy("object.metadata.name"), "spec.validations[0].expression"),
        (policy("nofunction(object)"), "spec.validations[0].expression"),
        (policy("true", matchConditions=[{"name": "a", "expression": "1 +"}]), "spec.matchConditions[0].expression"),
        (policy(), "spec.validations"),
        (policy("true", matchConstraints={}), "spec.matchConstraints.resourceRules"),
        (policy("true", paramKind={"apiVersion": "v1", "kind": "ConfigMap"}), "spec.paramKind"),
        (policy("true", variables=[{"name": "a", "expression": "1"}]), "spec.variables"),
        (policy("true", auditAnnotations=[{"key": "a", "valueExpression": "'b'"}]), "spec.auditAnnotations"),
    ],
)
async def test_a_policy_that_cannot_be_checked_is_refused_when_it_is_made(server: Plane, made: Obj, field: str) -> None:
    answer = await server.call("POST", POLICIES, made)
    assert answer.status == 422, answer.body
    assert field in [cause["field"] for cause in answer.body["details"]["causes"]]


@pytest.mark.parametrize(
    ("made", "field"),
    [
        (binding(validationActions=["Audit"]), "spec.validationActions[0]"),
        (binding(validationActions=[]), "spec.validationActions"),
        (binding(policyName=""), "spec.policyName"),
        (binding(paramRef={"name": "x"}), "spec.paramRef"),
    ],
)
async def test_a_binding_that_would_do_nothing_is_refused(server: Plane, made: Obj, field: str) -> None:
    answer = await server.call("POST", BINDINGS, made)
    assert answer.status == 422 and field in answer.body["message"], answer.body
