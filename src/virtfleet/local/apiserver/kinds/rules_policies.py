"""Rules of the kinds that govern others: RBAC, disruption budgets, webhooks, admission policies, aggregated APIs."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from virtfleet.api.selectors import SelectorError, from_label_selector
from virtfleet.kube.resource import ADMISSION, RBAC, Obj
from virtfleet.local.apiserver.extensions.expressions import Condition, ExpressionError
from virtfleet.local.apiserver.kinds.registry import Rules
from virtfleet.local.apiserver.objects import causes
from virtfleet.local.apiserver.objects.causes import Cause


def _selector_faults(of: Obj, field: str, *names: str) -> Iterator[Cause]:
    """Label selectors that cannot be read."""
    for name in names:
        try:
            from_label_selector(of.get(name))
        except SelectorError as error:
            yield causes.invalid(f"{field}.{name}", of.get(name), str(error))


def _condition_faults(of: Obj, field: str, name: str) -> Iterator[Cause]:
    """Expressions that cannot be asked."""
    for index, each in enumerate(of.get(name) or ()):
        try:
            Condition(each.get("expression", ""))
        except ExpressionError as error:
            yield causes.invalid(f"{field}{name}[{index}].expression", each.get("expression"), str(error))


def _complete_role(obj: Obj) -> None:
    """A role always has rules, be there none."""
    obj.setdefault("rules", [])


def _role_faults(obj: Obj) -> Iterator[Cause]:
    for index, rule in enumerate(obj.get("rules", ())):
        at = f"rules[{index}]"
        urls = rule.get("nonResourceURLs")
        if urls and "namespace" in obj["metadata"]:
            yield causes.invalid(f"{at}.nonResourceURLs", urls, "namespaced rules cannot apply to non-resource URLs")
        elif not urls:
            if not rule.get("apiGroups"):
                yield causes.required(f"{at}.apiGroups", "resource rules must supply at least one api group")
            if not rule.get("resources"):
                yield causes.required(f"{at}.resources", "resource rules must supply at least one resource")


def _complete_binding(obj: Obj) -> None:
    """Users and groups are RBAC's own."""
    obj.setdefault("roleRef", {})
    for subject in obj.get("subjects", ()):
        if subject.get("kind") in ("User", "Group"):
            subject.setdefault("apiGroup", RBAC)


def _binding_faults(roles: list[str], obj: Obj) -> Iterator[Cause]:
    role = obj["roleRef"]
    if role.get("kind") not in roles:
        yield causes.unsupported("roleRef.kind", role.get("kind", ""), roles)
    for index, subject in enumerate(obj.get("subjects", ())):
        at = f"subjects[{index}]"
        group = "" if subject.get("kind") == "ServiceAccount" else RBAC
        if subject.get("apiGroup", group) != group:
            yield causes.unsupported(f"{at}.apiGroup", subject["apiGroup"], [group])
        if not group and not subject.get("namespace"):
            yield causes.required(f"{at}.namespace")


def _budget_faults(obj: Obj) -> Iterator[Cause]:
    spec = obj.get("spec", {})
    if "minAvailable" in spec and "maxUnavailable" in spec:
        yield causes.invalid("spec", spec, "minAvailable and maxUnavailable cannot be both set")
    yield from _selector_faults(spec, "spec", "selector")


def _webhook_faults(obj: Obj) -> Iterator[Cause]:
    """Webhooks of a configuration have names of their own, and one address each."""
    seen: set[str] = set()
    for index, hook in enumerate(obj.get("webhooks", ())):
        at, name, client = f"webhooks[{index}]", hook.get("name", ""), hook.get("clientConfig", {})
        if name in seen:
            yield causes.duplicate(f"{at}.name", name)
        seen.add(name)
        if ("url" in client) == ("service" in client):
            yield causes.required(f"{at}.clientConfig", "exactly one of url or service is required")
        yield from _selector_faults(hook, at, "namespaceSelector", "objectSelector")
        yield from _condition_faults(hook, f"{at}.", "matchConditions")


def _policy_faults(obj: Obj) -> Iterator[Cause]:
    spec = obj.get("spec") or {}
    match = spec.get("matchConstraints") or {}
    yield from _selector_faults(match, "spec.matchConstraints", "namespaceSelector", "objectSelector")
    for field in ("matchConditions", "validations"):
        yield from _condition_faults(spec, "spec.", field)


def _api_service_faults(obj: Obj) -> Iterator[Cause]:
    spec = obj.get("spec", {})
    name = f"{spec.get('version', '')}.{spec.get('group', '')}"
    if obj["metadata"].get("name") != name:
        why = f'must be `spec.version+"."+spec.group`: {causes.quoted(name)}'
        yield causes.invalid("metadata.name", obj["metadata"].get("name"), why)
    if spec.get("insecureSkipTLSVerify") and spec.get("caBundle"):
        yield causes.invalid("spec.insecureSkipTLSVerify", True, "may not be true if caBundle is present")


def _binding(*roles: str) -> Rules:
    return Rules(
        fixed={"roleRef": "cannot change roleRef"},
        complete=_complete_binding,
        faults=partial(_binding_faults, list(roles)),
    )


_ROLES, _WEBHOOKS = Rules(complete=_complete_role, faults=_role_faults), Rules(faults=_webhook_faults)
_BUDGET = dict.fromkeys(("currentHealthy", "desiredHealthy", "disruptionsAllowed", "expectedPods"), 0)

RULES = {
    f"{ADMISSION}/mutatingwebhookconfigurations": _WEBHOOKS,
    f"{ADMISSION}/validatingadmissionpolicies": Rules(status={}, faults=_policy_faults),
    f"{ADMISSION}/validatingwebhookconfigurations": _WEBHOOKS,
    "apiregistration.k8s.io/apiservices": Rules(status={}, faults=_api_service_faults),
    "policy/poddisruptionbudgets": Rules(status=_BUDGET, faults=_budget_faults),
    f"{RBAC}/clusterrolebindings": _binding("ClusterRole"),
    f"{RBAC}/clusterroles": _ROLES,
    f"{RBAC}/rolebindings": _binding("Role", "ClusterRole"),
    f"{RBAC}/roles": _ROLES,
}
