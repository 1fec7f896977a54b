"""The RBAC authorizer: roles and bindings compiled into an index that follows the store.

The store calls back on every commit before the write is answered, so whoever creates a binding can use it with the next
request. What a user may do is looked up once per (user, verb, resource, namespace) and remembered until any role or
binding changes; a check then costs one look-up in a dictionary.

There is no node authorizer that follows which pods a node runs: members of system:nodes have the fixed role
system:node, which lets a node agent do to every node's objects what it needs to do to its own.

ClusterRoles with an aggregationRule are the sum of others. `admin`, `edit` and `view` are such roles: what an operator
labels as aggregated to them, their holders may do.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from typing import Any

import orjson

from virtfleet.api.selectors import from_label_selector
from virtfleet.kube.api import KubeApi
from virtfleet.kube.controller import Controller
from virtfleet.kube.resource import CLUSTER_ROLE_BINDINGS, CLUSTER_ROLES, ROLE_BINDINGS, ROLES, Obj
from virtfleet.local.apiserver.objects.store import Change, Record, Store
from virtfleet.local.apiserver.rights.access import Attributes, User

MASTERS = "system:masters"
GROUP = CLUSTER_ROLES.group
Rule = Mapping[str, Any]  # a PolicyRule

# Remembered look-ups; the index itself answers a hundred times slower but fast enough to start over.
_MEMORY = 16384
EVERYTHING = ({"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"]}, {"verbs": ["*"], "nonResourceURLs": ["*"]})


class _Role:
    """One role's rules, by what they are about."""

    def __init__(self, rules: Iterable[Rule]) -> None:
        self.rules = tuple(rules)
        # (group, resource or resource/subresource) -> verbs, and names where the rule is limited to some
        self.resources: dict[tuple[str, str], list[tuple[frozenset[str], frozenset[str]]]] = {}
        self.paths: list[tuple[frozenset[str], tuple[str, ...]]] = []
        for rule in self.rules:
            verbs = frozenset(rule.get("verbs") or ())
            names = frozenset(rule.get("resourceNames") or ())
            for group in rule.get("apiGroups") or ():
                for resource in rule.get("resources") or ():
                    self.resources.setdefault((group, resource), []).append((verbs, names))
            if urls := rule.get("nonResourceURLs"):
                self.paths.append((verbs, tuple(urls)))

    def names(self, verb: str, keys: Iterable[tuple[str, str]]) -> Iterator[frozenset[str]]:
        """The names that each matching rule is limited to; an empty set stands for every name."""
        for key in keys:
            for verbs, names in self.resources.get(key, ()):
                if verb in verbs or "*" in verbs:
                    yield names

    def allows_path(self, verb: str, path: str) -> bool:
        return any((verb in verbs or "*" in verbs) and any(_under(path, u) for u in urls) for verbs, urls in self.paths)


def _under(path: str, url: str) -> bool:
    return path == url or (url.endswith("*") and path.startswith(url[:-1]))


def _keys(group: str, resource: str, subresource: str) -> list[tuple[str, str]]:
    """What a rule may call this resource."""
    resources = [f"{resource}/{subresource}", f"*/{subresource}", "*"] if subresource else [resource, "*"]
    return [(g, r) for g in dict.fromkeys((group, "*")) for r in dict.fromkeys(resources)]


_RoleKey = tuple[str, str]  # (namespace, name); the namespace of a ClusterRole is ""


def _binding(record: Record) -> tuple[_RoleKey, list[tuple[str, str]]]:
    """The role that a binding gives, and its subjects."""
    binding = orjson.loads(record.data)
    ref = binding["roleRef"]
    role = ("" if ref["kind"] == "ClusterRole" else record.namespace, ref["name"])
    return role, [_subject(s, record.namespace) for s in binding.get("subjects") or ()]


def _subject(subject: Obj, namespace: str) -> tuple[str, str]:
    if subject["kind"] == "ServiceAccount":
        return "User", f"system:serviceaccount:{subject.get('namespace') or namespace}:{subject['name']}"
    return subject["kind"], subject["name"]


class Authorizer:
    """Decides on requests. Follows the store from the moment it is made."""

    def __init__(self, store: Store) -> None:
        self._roles: dict[_RoleKey, _Role] = {}
        # By subject, then by namespace ("" everywhere) and name of the binding: the role.
        self._bindings: dict[tuple[str, str], dict[tuple[str, str], _RoleKey]] = {}
        self._remembered = lru_cache(_MEMORY)(self._grants)
        for kind in (CLUSTER_ROLES, ROLES):
            store.follow(kind.storage, self._role_changed)
        for kind in (CLUSTER_ROLE_BINDINGS, ROLE_BINDINGS):
            store.follow(kind.storage, self._binding_changed)

    def _role_changed(self, change: Change) -> None:
        record = change.record
        self._roles.pop((record.namespace, record.name), None)
        if change.type != "DELETED":
            self._roles[record.namespace, record.name] = _Role(orjson.loads(record.data).get("rules") or ())
        self._remembered.cache_clear()

    def _binding_changed(self, change: Change) -> None:
        key = (change.record.namespace, change.record.name)
        for subject in _binding(change.previous)[1] if change.previous else ():
            self._bindings.get(subject, {}).pop(key, None)
        if change.type != "DELETED":
            role, subjects = _binding(change.record)
            for subject in subjects:
                self._bindings.setdefault(subject, {})[key] = role
        self._remembered.cache_clear()

    # --- decisions ---------------------------------------------------------------------------------------------------

    def __call__(self, a: Attributes) -> bool:
        if MASTERS in a.user.groups:
            return True
        if not a.resource:
            return any(role.allows_path(a.verb, a.path) for role in self._granted(a.user.name, a.user.groups, ""))
        resource = (a.group, a.resource, a.subresource)
        grants = self._remembered(a.user.name, a.user.groups, a.namespace, a.verb, resource)
        return any(not names or a.name in names for names in grants)

    def _grants(
        self, user: str, groups: tuple[str, ...], namespace: str, verb: str, resource: tuple[str, str, str]
    ) -> tuple[frozenset[str], ...]:
        """Each grant of the verb on the resource: the names that it is limited to (none: all)."""
        keys = _keys(*resource)
        roles = self._granted(user, groups, namespace)
        return tuple(names for role in roles for names in role.names(verb, keys))

    def _granted(self, user: str, groups: tuple[str, ...], namespace: str) -> Iterator[_Role]:
        """The user's roles in a namespace, those that hold everywhere included."""
        for subject in (("User", user), *(("Group", group) for group in groups)):
            for (place, _), key in self._bindings.get(subject, {}).items():
                if place in ("", namespace) and (role := self._roles.get(key)):
                    yield role

    # --- what a user may do altogether -------------------------------------------------------------------------------

    def rules(self, user: User, namespace: str) -> list[Rule]:
        """Every rule that holds for the user in the namespace."""
        if MASTERS in user.groups:
            return list(EVERYTHING)
        return [rule for role in self._granted(user.name, user.groups, namespace) for rule in role.rules]

    def role_rules(self, namespace: str, name: str) -> tuple[Rule, ...] | None:
        """The rules of a role; of a ClusterRole where the namespace is empty."""
        role = self._roles.get((namespace, name))
        return role.rules if role else None

    def missing(self, user: User, rules: Iterable[Rule], namespace: str) -> list[Rule]:
        """Those of `rules`, one verb on one thing each, that the user does not hold in the namespace."""
        if MASTERS in user.groups:
            return []
        held = _Role(self.rules(user, namespace))
        return [atom for rule in rules for atom in _atoms(rule) if not _holds(held, atom)]


def _atoms(rule: Rule) -> Iterator[Rule]:
    """A rule taken apart into one verb on one thing each."""
    for verb in rule.get("verbs") or ():
        for group in rule.get("apiGroups") or ():
            for resource in rule.get("resources") or ():
                atom = {"verbs": [verb], "apiGroups": [group], "resources": [resource]}
                for name in rule.get("resourceNames") or ():
                    yield {**atom, "resourceNames": [name]}
                if not rule.get("resourceNames"):
                    yield atom
        for url in rule.get("nonResourceURLs") or ():
            yield {"verbs": [verb], "nonResourceURLs": [url]}


def _holds(held: _Role, atom: Rule) -> bool:
    verb = atom["verbs"][0]
    if "nonResourceURLs" in atom:
        return held.allows_path(verb, atom["nonResourceURLs"][0])
    resource, _, subresource = atom["resources"][0].partition("/")
    wanted = atom.get("resourceNames", [None])[0]
    grants = held.names(verb, _keys(atom["apiGroups"][0], resource, subresource))
    return any(not names or wanted in names for names in grants)


class AggregatedRoles:
    """Keeps the rules of every role with an aggregationRule. Run `controller`."""

    def __init__(self, store: Store, api: KubeApi) -> None:
        self._store, self._api = store, api
        self.controller = Controller("aggregated-roles", self.reconcile)
        # Which sums a role is part of may have changed with it; all are looked at, there are few.
        store.listen(CLUSTER_ROLES.storage, lambda _: self.controller.queue.add("all"))
        self.controller.queue.add("all")

    async def reconcile(self, _: str) -> None:
        """Give every sum the rules of its parts."""
        roles = self._store.objects(CLUSTER_ROLES.storage)
        for role in roles:
            if role.get("aggregationRule"):
                rules = _summed(role, roles)
                if rules != (role.get("rules") or []):
                    meta = role["metadata"]
                    patch = {"metadata": {"resourceVersion": meta["resourceVersion"]}, "rules": rules}
                    await self._api.patch(CLUSTER_ROLES, meta["name"], patch)


def _summed(role: Obj, roles: list[Obj]) -> list[Obj]:
    """The rules that an aggregated role should have: those of all roles that it selects, each once, by role name."""
    selectors = [from_label_selector(s) for s in role["aggregationRule"].get("clusterRoleSelectors") or ()]
    rules: list[Obj] = []
    for part in sorted(roles, key=lambda r: str(r["metadata"]["name"])):
        meta = part["metadata"]
        if meta["name"] != role["metadata"]["name"] and any(s.matches(meta.get("labels")) for s in selectors):
            rules += [rule for rule in part.get("rules") or () if rule not in rules]
    return rules
