"""A kind is declared in `api/kinds.py` and nowhere else: its record is complete, and all else follows from it."""

from __future__ import annotations

import re
from collections import Counter
from itertools import product
from typing import Any

import pytest

from source import modules
from virtfleet.admission.review import RULES, complete, review
from virtfleet.api import crds
from virtfleet.api.kinds import BUILT, KINDS, OwnKind
from virtfleet.installation import Installation
from virtfleet.operator import endpoints, roles

INSTALLATION = Installation({"metadata": {"name": "kubevirt", "namespace": "kubevirt"}})
UNBUILT = [kind for kind in KINDS if kind.refusal]
# What else has a kind's name: the maker that guests are told, as KubeVirt has it.
ALSO_NAMED = {
    ("domain/context.py", "KubeVirt"),
    ("launcher/vm/hooks.py", "DataSource"),  # a field of what hook sidecars are told of cloud-init
}


def named(kind: OwnKind) -> str:
    return kind.kind


def obj(kind: OwnKind, **spec: Any) -> dict[str, Any]:
    return {"apiVersion": kind.api_version, "kind": kind.kind, "metadata": {"name": "one"}, "spec": spec}


def test_names_are_given_once() -> None:
    names = [name for kind in KINDS for name in (kind.kind, kind.plural, kind.singular, *kind.short_names)]
    assert [name for name, count in Counter(names).items() if count > 1] == []


@pytest.mark.parametrize("kind", BUILT, ids=named)
def test_a_kind_that_is_built_has_a_view_rules_and_somebody_to_use_it(kind: OwnKind) -> None:
    assert (kind.view.__name__, kind.view.__module__) == (kind.kind, f"virtfleet.api.{kind.module}")
    rules = RULES[kind]
    assert bool(rules.complete) == ("CREATE" in kind.completed)
    assert bool(rules.complete_update) == ("UPDATE" in kind.completed)
    assert bool(kind.mutator) == bool(kind.completed)
    assert {"CREATE", "UPDATE"} <= set(kind.checked)
    assert {right.holder for right in kind.rights} >= {"virt-controller", "view", "edit", "admin"}
    assert kind.columns


def test_every_holder_of_a_right_gets_it() -> None:
    known = {"virt-api", "virt-controller", "virt-handler", "virt-operator", "everybody", *roles.PEOPLE}
    assert {right.holder for kind in KINDS for right in kind.rights} - known == set()


@pytest.mark.parametrize("kind", UNBUILT, ids=named)
def test_creating_what_is_not_built_is_refused_with_what_to_do(kind: OwnKind) -> None:
    assert kind not in RULES
    assert re.match(r"VirtFleet does not .+; .+ instead", kind.refusal)
    for spec in ({}, {"domain": 1, "template": [], "volumes": {"a": 1}}):
        found = review(obj(kind, **spec), Installation({}))
        assert [(cause.field, cause.message) for cause in found.causes] == [("kind", kind.refusal)]
        assert complete(obj(kind, **spec), Installation({}))[1].causes == found.causes


@pytest.mark.parametrize("kind", UNBUILT, ids=named)
def test_people_have_kubevirts_rights_to_what_is_not_built_and_are_told_why_it_cannot_be_created(kind: OwnKind) -> None:
    """Tools ask for their rights before they act."""

    def verbs(role: str) -> set[str]:
        rules = [rule for rule in roles.PEOPLE[role] if rule["apiGroups"] == [kind.group]]
        return {verb for rule in rules if kind.plural in rule["resources"] for verb in rule["verbs"]}

    read = {"get", "list", "watch"}
    edit = {"create", "delete", "update", "patch"}
    admin = {*edit, "deletecollection"}
    assert (verbs("view"), verbs("edit"), verbs("admin")) == (read, read | edit, read | admin)
    controller = {resource for rule in roles.CLUSTER_RULES[roles.CONTROLLER] for resource in rule["resources"]}
    assert kind.plural not in controller


def test_admission_sees_every_kind() -> None:
    _, validating, *_ = endpoints.admission(INSTALLATION, b"", "")
    seen: dict[tuple[str, str, str], set[str]] = {}
    for webhook in validating["webhooks"]:
        for rule in webhook["rules"]:
            for shown in product(rule["apiGroups"], rule["apiVersions"], rule["resources"]):
                assert not seen.setdefault(shown, set()) & {*rule["operations"]}, "nothing is asked twice"
                seen[shown] |= {*rule["operations"]}
    assert seen.pop(("", "v1", "pods/eviction")) == {"CREATE"}
    assert seen == {
        (kind.group, version, kind.plural): set(kind.checked) for kind in KINDS for version in kind.versions
    }


@pytest.mark.parametrize("kind", UNBUILT, ids=named)
def test_what_is_not_built_is_served_with_a_schema_that_says_nothing(kind: OwnKind) -> None:
    definition = crds.definition(kind)
    assert definition["metadata"]["name"] == f"{kind.plural}.{kind.group}"
    assert [v["name"] for v in definition["spec"]["versions"] if v["storage"]] == [kind.versions[0]]
    for version in definition["spec"]["versions"]:
        schema = version["schema"]["openAPIV3Schema"]
        assert schema["properties"]["spec"]["x-kubernetes-preserve-unknown-fields"] is True
        assert "required" not in schema


@pytest.mark.slow
def test_no_other_module_spells_a_kind() -> None:
    kinds = {kind.kind for kind in KINDS}
    lower = {name for kind in KINDS for name in (kind.plural, kind.singular)} - {"kubevirt"}  # a word of its own
    resource = re.compile(rf"(?<![\w-])({'|'.join(sorted(lower, key=len, reverse=True))})(?![\w-])")
    found = set()
    for place, module in modules().items():
        for _, text in module.texts:
            spelled = text if text in kinds else "".join(resource.findall(text)[:1])
            if spelled and place != "api/kinds.py":
                found.add((place, spelled))
    assert found == ALSO_NAMED
