"""Rules of admission policies and their bindings: expressions compile, and nothing is asked for that is not done."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from virtfleet.api.selectors import SelectorError, from_label_selector
from virtfleet.kube.resource import Obj
from virtfleet.local.apiserver.extensions.expressions import Condition, ExpressionError
from virtfleet.local.apiserver.kinds.registry import Cause, Rules, WriteContext
from virtfleet.local.apiserver.kinds.rules_policies import rule_faults
from virtfleet.local.apiserver.objects import causes

_REASONS = ["Unauthorized", "Forbidden", "Invalid", "RequestEntityTooLarge"]
_MOST_EXPRESSIONS = 64


class AdmissionPolicyRules(Rules):
    def prepare_create(self, obj: Obj, ctx: WriteContext) -> None:
        obj["status"] = {}

    def faults(self, obj: Obj) -> Iterator[Cause]:
        spec = obj.get("spec") or {}
        yield from _left_out(spec, "spec", ("paramKind", "auditAnnotations", "variables"))
        match, at = spec.get("matchConstraints") or {}, "spec.matchConstraints"
        yield from _left_out(match, at, ("excludeResourceRules",))
        if not match.get("resourceRules"):
            yield causes.required(f"{at}.resourceRules")
        for index, rule in enumerate(match.get("resourceRules") or ()):
            yield from _left_out(rule, f"{at}.resourceRules[{index}]", ("resourceNames",))
            yield from rule_faults(rule, f"{at}.resourceRules[{index}]")
        for selector in ("namespaceSelector", "objectSelector"):
            try:
                from_label_selector(match.get(selector) or {})
            except SelectorError as error:
                yield causes.invalid(f"{at}.{selector}", match[selector], str(error))
        yield from _expression_faults(spec, "matchConditions")
        if not spec.get("validations"):
            yield causes.required("spec.validations", "validations or auditAnnotations must contain at least one item")
        yield from _expression_faults(spec, "validations")
        for index, validation in enumerate(spec.get("validations") or ()):
            yield from _left_out(validation, f"spec.validations[{index}]", ("messageExpression",))
            if (reason := validation.get("reason")) not in (None, *_REASONS):
                yield causes.unsupported(f"spec.validations[{index}].reason", reason, _REASONS)


class AdmissionBindingRules(Rules):
    def faults(self, obj: Obj) -> Iterator[Cause]:
        spec = obj.get("spec") or {}
        yield from _left_out(spec, "spec", ("paramRef", "matchResources"))
        if not spec.get("policyName"):
            yield causes.required("spec.policyName")
        if not spec.get("validationActions"):
            yield causes.required("spec.validationActions")
        for index, action in enumerate(spec.get("validationActions") or ()):
            if action != "Deny":
                yield causes.unsupported(f"spec.validationActions[{index}]", action, ["Deny"])


def _left_out(section: Obj, at: str, fields: Iterable[str]) -> Iterator[Cause]:
    for field in fields:
        if section.get(field):
            yield causes.forbidden(f"{at}.{field}", "this API server does not do that; leave it out")


def _expression_faults(spec: Obj, field: str) -> Iterator[Cause]:
    found = spec.get(field) or []
    if len(found) > _MOST_EXPRESSIONS:
        yield causes.too_many(f"spec.{field}", len(found), _MOST_EXPRESSIONS)
    for index, each in enumerate(found[:_MOST_EXPRESSIONS]):
        text, at = (each.get("expression") or "").strip(), f"spec.{field}[{index}].expression"
        if not text:
            yield causes.required(at)
            continue
        try:
            Condition(text)
        except ExpressionError as error:
            yield causes.invalid(at, text, str(error))
