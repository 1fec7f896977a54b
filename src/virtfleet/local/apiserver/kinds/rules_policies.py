"""Rules of the kinds that govern others: RBAC, disruption budgets, webhooks, admission policies, aggregated APIs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from virtfleet.api.selectors import SelectorError, from_label_selector
from virtfleet.kube.resource import RBAC, Obj
from virtfleet.local.apiserver.extensions.webhook_rules import Condition, ExpressionError
from virtfleet.local.apiserver.kinds.registry import Rules
from virtfleet.local.apiserver.objects import causes
from virtfleet.local.apiserver.objects.causes import Cause


def selector_faults(selector: Obj | None, field: str) -> Iterator[Cause]:
    """What is wrong with a label selector."""
    try:
        from_label_selector(selector)
    except SelectorError as error:
        yield causes.invalid(field, selector, str(error))


def condition_faults(listed: list[Obj] | None, field: str) -> Iterator[Cause]:
    """Expressions that cannot be asked."""
    for index, each in enumerate(listed or ()):
        try:
            Condition(each.get("expression", ""))
        except ExpressionError as error:
            yield causes.invalid(f"{field}[{index}].expression", each.get("expression"), str(error))


class RoleRules(Rules):
    """What somebody may do."""

    def __init__(self, *, namespaced: bool) -> None:
        self._namespaced = namespaced

    def complete(self, obj: Obj) -> None:
        """A role always has rules, be there none."""
        obj.setdefault("rules", [])

    def faults(self, obj: Obj) -> Iterator[Cause]:
        """What is wrong with one."""
        for index, rule in enumerate(obj.get("rules", ())):
            at = f"rules[{index}]"
            urls = rule.get("nonResourceURLs")
            if urls and self._namespaced:
                why = "namespaced rules cannot apply to non-resource URLs"
                yield causes.invalid(f"{at}.nonResourceURLs", urls, why)
            elif urls and (rule.get("apiGroups") or rule.get("resources") or rule.get("resourceNames")):
                why = "rules cannot apply to both regular resources and non-resource URLs"
                yield causes.invalid(f"{at}.nonResourceURLs", urls, why)
            elif not urls:
                if not rule.get("apiGroups"):
                    yield causes.required(f"{at}.apiGroups", "resource rules must supply at least one api group")
                if not rule.get("resources"):
                    yield causes.required(f"{at}.resources", "resource rules must supply at least one resource")


class BindingRules(Rules):
    """Who may do it."""

    def __init__(self, roles: list[str]) -> None:
        self._roles = roles

    fixed: Mapping[str, str] = {"roleRef": "cannot change roleRef"}

    def complete(self, obj: Obj) -> None:
        """Users and groups are RBAC's own."""
        obj.setdefault("roleRef", {})
        for subject in obj.get("subjects", ()):
            if subject.get("kind") in ("User", "Group"):
                subject.setdefault("apiGroup", RBAC)

    def faults(self, obj: Obj) -> Iterator[Cause]:
        """What is wrong with one."""
        role = obj["roleRef"]
        if role.get("kind") not in self._roles:
            yield causes.unsupported("roleRef.kind", role.get("kind", ""), self._roles)
        for index, subject in enumerate(obj.get("subjects", ())):
            at = f"subjects[{index}]"
            if subject.get("kind") == "ServiceAccount":
                if subject.get("apiGroup"):
                    yield causes.unsupported(f"{at}.apiGroup", subject["apiGroup"], [""])
                if not subject.get("namespace"):
                    yield causes.required(f"{at}.namespace")
            elif subject.get("apiGroup", RBAC) != RBAC:
                yield causes.unsupported(f"{at}.apiGroup", subject["apiGroup"], [RBAC])


class DisruptionBudgetRules(Rules):
    """How many pods must stay."""

    initial_status: Mapping[str, Any] = dict.fromkeys(
        ("currentHealthy", "desiredHealthy", "disruptionsAllowed", "expectedPods"), 0
    )

    def faults(self, obj: Obj) -> Iterator[Cause]:
        """What is wrong with one."""
        spec = obj.get("spec", {})
        if "minAvailable" in spec and "maxUnavailable" in spec:
            yield causes.invalid("spec", spec, "minAvailable and maxUnavailable cannot be both set")
        yield from selector_faults(spec.get("selector"), "spec.selector")


class WebhookRules(Rules):
    """Webhooks of a configuration have names of their own, and one address each."""

    def faults(self, obj: Obj) -> Iterator[Cause]:
        """What is wrong with a configuration."""
        seen: set[str] = set()
        for index, hook in enumerate(obj.get("webhooks", ())):
            at, name, client = f"webhooks[{index}]", hook.get("name", ""), hook.get("clientConfig", {})
            if name in seen:
                yield causes.duplicate(f"{at}.name", name)
            seen.add(name)
            if ("url" in client) == ("service" in client):
                yield causes.required(f"{at}.clientConfig", "exactly one of url or service is required")
            for selector in ("namespaceSelector", "objectSelector"):
                yield from selector_faults(hook.get(selector), f"{at}.{selector}")
            yield from condition_faults(hook.get("matchConditions"), f"{at}.matchConditions")


class AdmissionPolicyRules(Rules):
    """Conditions that can be asked."""

    initial_status: Mapping[str, Any] = {}

    def faults(self, obj: Obj) -> Iterator[Cause]:
        """Selectors and expressions that cannot be read."""
        spec = obj.get("spec") or {}
        match = spec.get("matchConstraints") or {}
        for selector in ("namespaceSelector", "objectSelector"):
            yield from selector_faults(match.get(selector), f"spec.matchConstraints.{selector}")
        for field in ("matchConditions", "validations"):
            yield from condition_faults(spec.get(field), f"spec.{field}")


class APIServiceRules(Rules):
    """A group that another server answers for."""

    initial_status: Mapping[str, Any] = {}

    def faults(self, obj: Obj) -> Iterator[Cause]:
        """What is wrong with one."""
        spec = obj.get("spec", {})
        name = f"{spec.get('version', '')}.{spec.get('group', '')}"
        if obj["metadata"].get("name") != name:
            why = f'must be `spec.version+"."+spec.group`: {causes.quoted(name)}'
            yield causes.invalid("metadata.name", obj["metadata"].get("name"), why)
        if spec.get("insecureSkipTLSVerify") and spec.get("caBundle"):
            yield causes.invalid("spec.insecureSkipTLSVerify", True, "may not be true if caBundle is present")
