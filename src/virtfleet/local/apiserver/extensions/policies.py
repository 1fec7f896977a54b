"""Admission policies: conditions that administrators set and the API server checks itself, without asking anybody.

A ValidatingAdmissionPolicy says which writes it is about and what must hold of them; it counts where a binding names
it. Messages are those of Kubernetes. What is left out here is refused when a policy is made (builtin_notes.json).
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from virtfleet.kube.errors import CODES, ApiError
from virtfleet.kube.resource import POLICIES, POLICY_BINDINGS, Obj
from virtfleet.local.apiserver.extensions.admission import Admission, AdmissionRequest
from virtfleet.local.apiserver.extensions.webhook_rules import Condition, ExpressionError, Matcher, all_hold, follow
from virtfleet.local.apiserver.extensions.webhooks import asked_of
from virtfleet.local.apiserver.kinds.registry import Kinds
from virtfleet.local.apiserver.objects.store import Store

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Policy:
    """One policy, its expressions compiled."""

    name: str
    matcher: Matcher
    failure_policy: str  # Fail, Ignore
    conditions: tuple[Condition, ...]
    validations: tuple[tuple[Condition, str, str], ...]  # what must hold, the message and the reason if it does not

    @classmethod
    def of(cls, policy: Obj) -> Policy:
        """From the object, which its rules let pass."""
        spec = policy["spec"]
        match = spec["matchConstraints"]
        return cls(
            policy["metadata"]["name"],
            Matcher.of(match, match["resourceRules"]),
            spec.get("failurePolicy") or "Fail",
            tuple(Condition(each["expression"]) for each in spec.get("matchConditions") or ()),
            tuple(
                (Condition(each["expression"]), each.get("message") or "", each.get("reason") or "Invalid")
                for each in spec["validations"]
            ),
        )

    def denies(self, values: Mapping[str, Any]) -> tuple[str, str] | None:
        """Why the policy refuses the write, and the reason by name; None where it does not."""
        try:
            if not all_hold(self.conditions, values):
                return None
            for condition, message, reason in self.validations:
                if not condition.holds(values):
                    return message or f"failed expression: {condition.text}", reason
        except ExpressionError as error:
            if self.failure_policy == "Fail":
                return str(error), "Invalid"
            log.warning("policy %s: %s; its failurePolicy is Ignore, so the request goes on", self.name, error)
        return None


class Policies(Admission):
    """The part of admission that checks policies, as they are in the store."""

    def __init__(self, store: Store, kinds: Kinds) -> None:
        self._store, self._kinds = store, kinds
        self._policies: dict[str, Policy] = {}
        self._bindings: list[tuple[str, str]] = []  # name, and that of the policy
        follow(store, POLICIES, self._read_policies)
        follow(store, POLICY_BINDINGS, self._read_bindings)

    def _read_policies(self, policies: list[Obj]) -> None:
        self._policies = {policy["metadata"]["name"]: Policy.of(policy) for policy in policies}

    def _read_bindings(self, bindings: list[Obj]) -> None:
        self._bindings = [(binding["metadata"]["name"], binding["spec"]["policyName"]) for binding in bindings]

    async def validate(self, request: AdmissionRequest) -> None:
        """Refuse what a bound policy denies."""
        for binding, name in self._bindings:
            policy = self._policies.get(name)
            kind = policy.matcher.kind_of(request, self._kinds, self._store) if policy else None
            if policy and kind and (denied := policy.denies(asked_of(kind, request))):
                raise _refusal(request, f"'{name}' with binding '{binding}' denied request: {denied[0]}", denied[1])


def _refusal(request: AdmissionRequest, why: str, reason: str) -> ApiError:
    message = f"ValidatingAdmissionPolicy {why}"
    details = {"name": request.name, "kind": request.kind.resource.plural, "causes": [{"message": message}]}
    text = f'{request.kind.resource} "{request.name}" is forbidden: {message}'
    return ApiError(reason, text, code=CODES[reason], details=details)
