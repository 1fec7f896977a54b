"""Rules of admission policies: what they say can be read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from virtfleet.kube.resource import Obj
from virtfleet.local.apiserver.extensions.expressions import Condition, ExpressionError
from virtfleet.local.apiserver.kinds.registry import Rules
from virtfleet.local.apiserver.kinds.rules_policies import selector_faults
from virtfleet.local.apiserver.objects import causes
from virtfleet.local.apiserver.objects.causes import Cause


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
            for index, each in enumerate(spec.get(field) or ()):
                try:
                    Condition(each.get("expression", ""))
                except ExpressionError as error:
                    yield causes.invalid(f"spec.{field}[{index}].expression", each.get("expression"), str(error))
