"""Rules of the kinds that govern others: RBAC, disruption budgets, webhooks, aggregated APIs."""

from __future__ import annotations

import re
from collections.abc import Iterator

from virtfleet.api.selectors import SelectorError, from_label_selector
from virtfleet.kube.resource import Obj
from virtfleet.local.apiserver.kinds.registry import Cause, Rules, WriteContext
from virtfleet.local.apiserver.kinds.rules_workloads import amount_faults
from virtfleet.local.apiserver.objects import causes

RBAC_GROUP = "rbac.authorization.k8s.io"
OPERATIONS = ["*", "CONNECT", "CREATE", "DELETE", "UPDATE"]
_QUALIFIED = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?){2,}")


class RoleRules(Rules):
    def __init__(self, *, namespaced: bool) -> None:
        self._namespaced = namespaced

    def prepare_create(self, obj: Obj, ctx: WriteContext) -> None:
        obj.setdefault("rules", [])

    def faults(self, obj: Obj) -> Iterator[Cause]:
        for index, rule in enumerate(obj.get("rules", ())):
            at = f"rules[{index}]"
            urls = rule.get("nonResourceURLs")
            if not rule.get("verbs"):
                yield causes.required(f"{at}.verbs", "verbs must contain at least one value")
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
    def __init__(self, roles: list[str]) -> None:
        self._roles = roles

    def prepare_create(self, obj: Obj, ctx: WriteContext) -> None:
        obj.setdefault("roleRef", {})
        for subject in obj.get("subjects", ()):
            if subject.get("kind") in ("User", "Group"):
                subject.setdefault("apiGroup", RBAC_GROUP)

    def prepare_update(self, obj: Obj, old: Obj, ctx: WriteContext) -> None:
        self.prepare_create(obj, ctx)

    def validate_update(self, obj: Obj, old: Obj, ctx: WriteContext) -> list[Cause]:
        found = super().validate_update(obj, old, ctx)
        if obj["roleRef"] != old["roleRef"]:
            found.append(causes.invalid("roleRef", obj["roleRef"], "cannot change roleRef"))
        return found

    def faults(self, obj: Obj) -> Iterator[Cause]:
        role = obj["roleRef"]
        if role.get("apiGroup") != RBAC_GROUP:
            yield causes.unsupported("roleRef.apiGroup", role.get("apiGroup", ""), [RBAC_GROUP])
        if role.get("kind") not in self._roles:
            yield causes.unsupported("roleRef.kind", role.get("kind", ""), self._roles)
        if not role.get("name"):
            yield causes.required("roleRef.name")
        for index, subject in enumerate(obj.get("subjects", ())):
            at = f"subjects[{index}]"
            if not subject.get("name"):
                yield causes.required(f"{at}.name")
            if subject.get("kind") == "ServiceAccount":
                if subject.get("apiGroup"):
                    yield causes.unsupported(f"{at}.apiGroup", subject["apiGroup"], [""])
                if not subject.get("namespace"):
                    yield causes.required(f"{at}.namespace")
            elif subject.get("kind") in ("User", "Group"):
                if subject.get("apiGroup") != RBAC_GROUP:
                    yield causes.unsupported(f"{at}.apiGroup", subject["apiGroup"], [RBAC_GROUP])
            else:
                kinds = ["ServiceAccount", "User", "Group"]
                yield causes.unsupported(f"{at}.kind", subject.get("kind", ""), kinds)


class DisruptionBudgetRules(Rules):
    def prepare_create(self, obj: Obj, ctx: WriteContext) -> None:
        obj.setdefault("spec", {})
        counts = ("currentHealthy", "desiredHealthy", "disruptionsAllowed", "expectedPods")
        obj["status"] = dict.fromkeys(counts, 0)

    def faults(self, obj: Obj) -> Iterator[Cause]:
        spec = obj["spec"]
        if "minAvailable" in spec and "maxUnavailable" in spec:
            yield causes.invalid("spec", spec, "minAvailable and maxUnavailable cannot be both set")
        for name in ("minAvailable", "maxUnavailable"):
            if name in spec:
                yield from amount_faults(spec[name], f"spec.{name}")
        try:
            from_label_selector(spec.get("selector"))
        except SelectorError as error:
            yield causes.invalid("spec.selector", spec.get("selector"), str(error))


class WebhookRules(Rules):
    def faults(self, obj: Obj) -> Iterator[Cause]:
        seen: set[str] = set()
        for index, hook in enumerate(obj.get("webhooks", ())):
            at, name = f"webhooks[{index}]", hook.get("name", "")
            if not _QUALIFIED.fullmatch(name):
                why = "should be a domain with at least three segments separated by dots"
                yield causes.invalid(f"{at}.name", name, why)
            if name in seen:
                yield causes.duplicate(f"{at}.name", name)
            seen.add(name)
            yield from self._hook_faults(hook, at)

    def _hook_faults(self, hook: Obj, at: str) -> Iterator[Cause]:
        if not hook.get("sideEffects"):
            yield causes.required(f"{at}.sideEffects", "must specify one of None, NoneOnDryRun")
        if not hook.get("admissionReviewVersions"):
            yield causes.required(f"{at}.admissionReviewVersions", "must specify one of v1, v1beta1")
        if not 1 <= hook.get("timeoutSeconds", 10) <= 30:
            why = "the timeout value must be between 1 and 30 seconds"
            yield causes.invalid(f"{at}.timeoutSeconds", hook["timeoutSeconds"], why)
        client = hook.get("clientConfig", {})
        if ("url" in client) == ("service" in client):
            yield causes.required(f"{at}.clientConfig", "exactly one of url or service is required")
        elif not client.get("url", "https://").startswith("https://"):
            why = "'https' is the only allowed URL scheme; desired format: https://host[/path]"
            yield causes.invalid(f"{at}.clientConfig.url", client["url"].partition(":")[0], why)
        if "matchConditions" in hook:
            why = "conditions in CEL are not evaluated here; select with rules, namespaceSelector and objectSelector"
            yield causes.forbidden(f"{at}.matchConditions", why)
        for index, rule in enumerate(hook.get("rules", ())):
            yield from rule_faults(rule, f"{at}.rules[{index}]")


def rule_faults(rule: Obj, at: str) -> Iterator[Cause]:
    """What is wrong with a rule that says which writes admission is about."""
    for name in ("operations", "apiGroups", "apiVersions", "resources"):
        if not rule.get(name):
            yield causes.required(f"{at}.{name}")
    for number, operation in enumerate(rule.get("operations", ())):
        if operation not in OPERATIONS:
            yield causes.unsupported(f"{at}.operations[{number}]", operation, OPERATIONS)


class APIServiceRules(Rules):
    def prepare_create(self, obj: Obj, ctx: WriteContext) -> None:
        obj.setdefault("spec", {})
        obj["status"] = {}

    def faults(self, obj: Obj) -> Iterator[Cause]:
        spec = obj.get("spec", {})
        name = f"{spec.get('version', '')}.{spec.get('group', '')}"
        if obj["metadata"].get("name") != name:
            why = f'must be `spec.version+"."+spec.group`: {causes.quoted(name)}'
            yield causes.invalid("metadata.name", obj["metadata"].get("name"), why)
        for field, limit in (("groupPriorityMinimum", 20000), ("versionPriority", 1000)):
            if not 0 < spec.get(field, 0) <= limit:
                why = f"must be positive and less than {limit}"
                yield causes.invalid(f"spec.{field}", spec.get(field, 0), why)
        for field in ("namespace", "name"):
            if not spec.get("service", {}).get(field):
                yield causes.required(f"spec.service.{field}")
        if spec.get("insecureSkipTLSVerify") and spec.get("caBundle"):
            yield causes.invalid("spec.insecureSkipTLSVerify", True, "may not be true if caBundle is present")
