"""Nobody gives away rights that they do not have: the check on writes of roles and bindings.

Whoever may write roles could otherwise write one that allows everything. Kubernetes lets a writer grant what they hold
themselves, and anything with the verbs `escalate` (on roles) or `bind` (on the role that a binding refers to).
"""

from __future__ import annotations

from collections.abc import Iterable

from virtfleet.kube.resource import CLUSTER_ROLES, ROLES, Obj, Resource
from virtfleet.local.apiserver.extensions.admission import Admission, AdmissionRequest
from virtfleet.local.apiserver.objects import refusals
from virtfleet.local.apiserver.objects.causes import quoted
from virtfleet.local.apiserver.rights.access import Attributes
from virtfleet.local.apiserver.rights.rbac import EVERYTHING, GROUP, Authorizer, Rule

_ROLES = ("roles", "clusterroles")
_BINDINGS = ("rolebindings", "clusterrolebindings")
_TITLES = {  # of a rule's fields, as Kubernetes prints them
    "nonResourceURLs": "NonResourceURLs",
    "apiGroups": "APIGroups",
    "resources": "Resources",
    "resourceNames": "ResourceNames",
}


class EscalationGuard(Admission):
    """The part of admission that guards roles and bindings."""

    def __init__(self, authorizer: Authorizer) -> None:
        self._authorizer = authorizer

    async def validate(self, request: AdmissionRequest) -> None:
        """Refuse a role or binding that gives more than its writer has."""
        if request.kind.resource.group != GROUP or request.obj is None:
            return
        plural = request.kind.resource.plural
        if plural in _ROLES and _changed(request, "rules", "aggregationRule"):
            self._guard_role(request, request.obj)
        elif plural in _BINDINGS and _changed(request, "roleRef", "subjects"):
            self._guard_binding(request, request.obj)

    def _guard_role(self, request: AdmissionRequest, role: Obj) -> None:
        if not self._may(request, "escalate", request.kind.resource, request.name):
            # An aggregated role may come to hold anything.
            self._confirm(request, EVERYTHING if role.get("aggregationRule") else role.get("rules") or ())

    def _guard_binding(self, request: AdmissionRequest, binding: Obj) -> None:
        ref = binding["roleRef"]
        kind, place = (CLUSTER_ROLES, "") if ref["kind"] == "ClusterRole" else (ROLES, request.namespace)
        if self._may(request, "bind", kind, ref["name"]):
            return
        rules = self._authorizer.role_rules(place, ref["name"])
        if rules is None:
            raise refusals.not_found(kind, ref["name"])
        self._confirm(request, rules)

    def _may(self, request: AdmissionRequest, verb: str, res: Resource, name: str) -> bool:
        return self._authorizer(Attributes(request.user, verb, GROUP, "", res.plural, "", request.namespace, name))

    def _confirm(self, request: AdmissionRequest, rules: Iterable[Rule]) -> None:
        missing = self._authorizer.missing(request.user, rules, request.namespace)
        if missing:
            user = request.user
            groups = " ".join(quoted(g) for g in user.groups)
            who, listed = f"user {quoted(user.name)} (groups=[{groups}])", "\n".join(sorted(_compact(missing)))
            why = f"{who} is attempting to grant RBAC permissions not currently held:\n{listed}"
            raise refusals.not_allowed(request.kind.resource, request.name, why)


def _changed(request: AdmissionRequest, *fields: str) -> bool:
    old, new = request.old or {}, request.obj or {}
    return any(old.get(f) != new.get(f) for f in fields)


def _compact(atoms: Iterable[Rule]) -> set[str]:
    """Rules as Kubernetes prints them, those that differ in their verb alone as one."""
    verbs: dict[str, list[str]] = {}
    for atom in atoms:
        parts = [f"{_TITLES[field]}:[{quoted(atom[field][0])}]" for field in _TITLES if field in atom]
        verbs.setdefault(", ".join(parts), []).append(quoted(atom["verbs"][0]))
    return {f"{{{what}, Verbs:[{' '.join(dict.fromkeys(v))}]}}" for what, v in verbs.items()}
