"""Conditions in CEL, the language of admission policies: checked and compiled once, evaluated without side effects."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any

VARIABLES = ("request", "object", "oldObject")


class ExpressionError(Exception):
    """What does not compile, or has no answer for these objects."""


@cache
def _language() -> Any:
    from cel_expr_python import cel  # a large library that a cluster without policies has no use for

    return cel.NewEnv(variables=dict.fromkeys(VARIABLES, cel.Type.DYN)), cel.Type.BOOL


def all_hold(conditions: Iterable[Condition], values: Mapping[str, Any]) -> bool:
    """Whether all conditions hold. One that does not counts more than one that has no answer."""
    unanswered: ExpressionError | None = None
    for condition in conditions:
        try:
            if not condition.holds(values):
                return False
        except ExpressionError as error:
            unanswered = error
    if unanswered:
        raise unanswered
    return True


class Condition:
    """One expression whose value is true or false. Undeclared names and wrong types are found here already."""

    def __init__(self, text: str) -> None:
        self.text = text
        environment, boolean = _language()
        try:
            self._compiled = environment.compile(text)
        except RuntimeError as error:
            why = str(error).removeprefix("INVALID_ARGUMENT: ").removesuffix(" [INVALID_ARGUMENT]")
            raise ExpressionError(f"compilation failed: {why}") from error
        if self._compiled.return_type() != boolean:
            raise ExpressionError("must evaluate to bool")

    def holds(self, values: Mapping[str, Any]) -> bool:
        """`values` of all VARIABLES."""
        try:
            answer = self._compiled.eval(data=values)
        except RuntimeError as error:
            raise ExpressionError(f"expression '{self.text}' resulted in error: {error}") from error
        if answer.type() != _language()[1]:
            raise ExpressionError(f"expression '{self.text}' resulted in error: {answer.value()}")
        return answer.value() is True
