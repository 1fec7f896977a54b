"""The RBAC index agrees with a naive reading of the rules, whatever roles and bindings come and go."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from examples import examples
from virtfleet.kube.resource import CLUSTER_ROLE_BINDINGS, CLUSTER_ROLES, ROLE_BINDINGS, ROLES, Obj, Resource
from virtfleet.local.apiserver.objects.store import Change, Record
from virtfleet.local.apiserver.rights.access import Attributes, User
from virtfleet.local.apiserver.rights.rbac import Authorizer


class Shelf:
    """Objects and their listeners, as the store has them, without a disk."""

    def __init__(self) -> None:
        self.records: dict[tuple[str, str, str], Record] = {}
        self.listeners: dict[str, list[Callable[[Change], None]]] = {}

    def scan(self, storage: str, namespace: str | None = None) -> Iterable[Record]:
        return [r for r in self.records.values() if r.storage == storage and namespace in (None, r.namespace)]

    def follow(self, storage: str, listener: Callable[[Change], None]) -> None:
        for record in self.scan(storage):
            listener(Change("ADDED", record, None))
        self.listeners.setdefault(storage, []).append(listener)

    def put(self, kind: Resource, name: str, namespace: str = "", **obj: Any) -> None:
        self._commit(Record(f"{kind.group}/{kind.plural}", namespace, name, 1, orjson.dumps(obj)), removed=False)

    def remove(self, kind: Resource, name: str, namespace: str = "") -> None:
        self._commit(self.records[f"{kind.group}/{kind.plural}", namespace, name], removed=True)

    def _commit(self, record: Record, *, removed: bool) -> None:
        key = (record.storage, record.namespace, record.name)
        previous = self.records.pop(key, None)
        if not removed:
            self.records[key] = record
        change = Change("DELETED" if removed else "MODIFIED" if previous else "ADDED", record, previous)
        for listener in self.listeners.get(record.storage, ()):
            listener(change)


def bind(role: str, *subjects: Obj, kind: str = "ClusterRole") -> dict[str, Any]:
    return {"roleRef": {"kind": kind, "name": role}, "subjects": list(subjects)}


def user(name: str) -> Obj:
    return {"kind": "User", "name": name}


# --- the algebra -----------------------------------------------------------------------------------------------------

VERBS, GROUPS, RESOURCES = ["get", "list"], ["", "apps"], ["pods", "pods/log", "nodes/log"]
NAMES, NAMESPACES, URLS = ["a", "b"], ["n1", "n2"], ["/livez", "/livez/ping", "/metrics"]


def some(*values: str, least: int = 0) -> st.SearchStrategy[list[str]]:
    return st.lists(st.sampled_from(values), unique=True, min_size=least, max_size=2)


resource_rules = st.fixed_dictionaries(
    {
        "verbs": some(*VERBS, "*"),
        "apiGroups": some(*GROUPS, "*"),
        "resources": some(*RESOURCES, "*", "*/log"),
        "resourceNames": some(*NAMES),
    }
)
path_rules = st.fixed_dictionaries({"verbs": some(*VERBS, "*"), "nonResourceURLs": some(*URLS, "*", "/livez/*")})
rules = st.lists(st.one_of(resource_rules, path_rules), max_size=3)
subjects = st.lists(
    st.sampled_from(
        [user("u"), {"kind": "Group", "name": "g"}, {"kind": "ServiceAccount", "name": "sa", "namespace": "n1"}]
    ),
    max_size=2,
)
steps = st.lists(
    st.one_of(
        st.tuples(st.just("role"), st.sampled_from(["", *NAMESPACES]), rules | st.none()),
        st.tuples(st.just("bind"), st.sampled_from(["", *NAMESPACES]), st.booleans(), subjects | st.none()),
    ),
    max_size=8,
)
requests = st.builds(
    Attributes,
    user=st.sampled_from(
        [User("u"), User("v", ("g",)), User("system:serviceaccount:n1:sa"), User("u", ("g", "system:authenticated"))]
    ),
    verb=st.sampled_from(VERBS),
    group=st.sampled_from(GROUPS),
    resource=st.sampled_from(["pods", "nodes", ""]),
    subresource=st.sampled_from(["", "log"]),
    namespace=st.sampled_from(["", *NAMESPACES]),
    name=st.sampled_from(["", *NAMES]),
    path=st.sampled_from(URLS),
)


def naive(shelf: Shelf, a: Attributes) -> bool:
    """Every rule of every binding, read word for word."""
    names = {("User", a.user.name), *(("Group", g) for g in a.user.groups)}
    for record in [*shelf.scan("rbac.authorization.k8s.io/clusterrolebindings"), *_role_bindings(shelf, a)]:
        binding = orjson.loads(record.data)
        if not any(_subject_name(s) in names for s in binding["subjects"]):
            continue
        kind = "clusterroles" if binding["roleRef"]["kind"] == "ClusterRole" else "roles"
        place = "" if kind == "clusterroles" else record.namespace
        role = shelf.records.get((f"rbac.authorization.k8s.io/{kind}", place, binding["roleRef"]["name"]))
        if role and any(_rule_allows(rule, a) for rule in orjson.loads(role.data)["rules"]):
            return True
    return False


def _role_bindings(shelf: Shelf, a: Attributes) -> Iterable[Record]:
    # A path belongs to no namespace.
    return shelf.scan("rbac.authorization.k8s.io/rolebindings", a.namespace) if a.resource and a.namespace else []


def _subject_name(s: Obj) -> tuple[str, str]:
    if s["kind"] == "ServiceAccount":
        return "User", f"system:serviceaccount:{s['namespace']}:{s['name']}"
    return s["kind"], s["name"]


def _rule_allows(rule: Obj, a: Attributes) -> bool:
    if not {"*", a.verb} & set(rule["verbs"]):
        return False
    if not a.resource:
        urls = rule.get("nonResourceURLs", [])
        return any(u == a.path or (u.endswith("*") and a.path.startswith(u[:-1])) for u in urls)
    combined = f"{a.resource}/{a.subresource}" if a.subresource else a.resource
    wanted = {"*", combined} | ({f"*/{a.subresource}"} if a.subresource else set())
    return bool(
        {"*", a.group} & set(rule.get("apiGroups", []))
        and wanted & set(rule.get("resources", []))
        and (not rule["resourceNames"] or a.name in rule["resourceNames"])
    )


@settings(max_examples=examples(400), deadline=None)
@given(steps, st.lists(requests, min_size=1, max_size=6))
def test_decisions_are_those_of_a_naive_reading_after_every_change(changes: list[Any], asked: list[Attributes]) -> None:
    shelf = Shelf()
    authorizer = Authorizer(shelf)  # type: ignore[arg-type]
    for change in changes:
        place = change[1]
        if change[0] == "role":
            kind, content = (ROLES if place else CLUSTER_ROLES), {"rules": change[2]}
            gone = change[2] is None
        else:
            kind = ROLE_BINDINGS if place else CLUSTER_ROLE_BINDINGS
            role_kind = "Role" if place and change[2] else "ClusterRole"
            content, gone = bind("r", *(change[3] or ()), kind=role_kind), change[3] is None
        if not gone:
            shelf.put(kind, "r", place, **content)
        elif (f"{kind.group}/{kind.plural}", place, "r") in shelf.records:
            shelf.remove(kind, "r", place)
        for attributes in asked:
            assert authorizer(attributes) == naive(shelf, attributes)
    restarted = Authorizer(shelf)  # type: ignore[arg-type]
    assert all(restarted(a) == authorizer(a) for a in asked)


@settings(max_examples=examples(300), deadline=None)
@given(rules, rules, requests)
def test_who_holds_all_of_a_role_already_gains_nothing_by_it(held: list[Obj], wanted: list[Obj], a: Attributes) -> None:
    shelf = Shelf()
    authorizer = Authorizer(shelf)  # type: ignore[arg-type]
    shelf.put(CLUSTER_ROLES, "held", rules=held)
    shelf.put(CLUSTER_ROLE_BINDINGS, "b", **bind("held", user(a.user.name)))
    if not authorizer.missing(a.user, wanted, ""):
        before = authorizer(a)
        shelf.put(CLUSTER_ROLES, "held", rules=[*held, *wanted])
        assert authorizer(a) == before


# --- examples --------------------------------------------------------------------------------------------------------


def test_masters_may_do_everything_without_any_role() -> None:
    authorizer = Authorizer(Shelf())  # type: ignore[arg-type]
    root = User("admin", ("system:masters",))
    assert authorizer(Attributes(root, "delete", resource="nodes"))
    assert authorizer(Attributes(root, "get", path="/metrics"))
    assert authorizer.missing(root, [{"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"]}], "") == []


@pytest.mark.parametrize(
    ("rule", "missing"),
    [
        ({"verbs": ["get"], "apiGroups": [""], "resources": ["pods"]}, 0),
        ({"verbs": ["get", "list"], "apiGroups": [""], "resources": ["pods"]}, 1),
        ({"verbs": ["get"], "apiGroups": [""], "resources": ["pods", "pods/log"]}, 1),
        ({"verbs": ["*"], "apiGroups": [""], "resources": ["pods"]}, 1),
        ({"verbs": ["get"], "apiGroups": ["*"], "resources": ["pods"]}, 1),
        ({"verbs": ["get"], "apiGroups": [""], "resources": ["secrets"]}, 1),
        ({"verbs": ["get"], "apiGroups": [""], "resources": ["secrets"], "resourceNames": ["a"]}, 0),
        ({"verbs": ["get"], "apiGroups": [""], "resources": ["secrets"], "resourceNames": ["a", "b"]}, 1),
        ({"verbs": ["get"], "nonResourceURLs": ["/livez/ping"]}, 0),
        ({"verbs": ["get"], "nonResourceURLs": ["/livez/*"]}, 0),
        ({"verbs": ["get"], "nonResourceURLs": ["*"]}, 1),
    ],
)
def test_only_rights_that_one_holds_can_be_passed_on(rule: Obj, missing: int) -> None:
    shelf = Shelf()
    authorizer = Authorizer(shelf)  # type: ignore[arg-type]
    shelf.put(
        CLUSTER_ROLES,
        "held",
        rules=[
            {"verbs": ["get"], "apiGroups": [""], "resources": ["pods"]},
            {"verbs": ["get"], "apiGroups": [""], "resources": ["secrets"], "resourceNames": ["a"]},
            {"verbs": ["get"], "nonResourceURLs": ["/livez/*"]},
        ],
    )
    shelf.put(CLUSTER_ROLE_BINDINGS, "b", **bind("held", user("u")))
    assert len(authorizer.missing(User("u"), [rule], "")) == missing
