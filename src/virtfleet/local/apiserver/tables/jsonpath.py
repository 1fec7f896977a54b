r"""The JSONPath that printer columns are written in: `.status.conditions[?(@.type=="Ready")].status`.

Kubernetes' dialect, as far as CRDs use it: fields (with `\.` for a dot in a name, or `['name']`), indexes, `[*]`, and
filters that compare one field with a constant.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import Any

import orjson

Step = Callable[[Any], Iterable[Any]]

_STEP = re.compile(
    r"""\.?\*|\[\*\]                                                             # everything in it
      | \.(?P<field>(?:\\.|[^.\[\\])+)
      | \[\s*'(?P<quoted>(?:\\.|[^'\\])+)'\s*\]
      | \[\s*"(?P<doubly>(?:\\.|[^"\\])+)"\s*\]
      | \[\s*(?P<index>-?\d+)\s*\]
      | \[\?\(\s*@(?P<path>[^=!<>]*?)\s*(?:(?P<operator>==|!=)\s*(?P<value>.+?))?\s*\)\]
    """,
    re.VERBOSE,
)


class JsonPathError(ValueError):
    """A path that cannot be read."""


def find(path: str, obj: Any) -> list[Any]:
    """All values at a path; none where something on the way is missing."""
    values = [obj]
    for step in steps(path):
        values = [each for value in values for each in step(value)]
    return values


@lru_cache(maxsize=1024)
def steps(path: str) -> tuple[Step, ...]:
    """The steps of a path; raises JsonPathError."""
    rest = path.strip()
    if rest.startswith("{") and rest.endswith("}"):
        rest = rest[1:-1]
    rest = rest.removeprefix("$")
    if rest and rest[0] not in ".[":
        rest = f".{rest}"
    taken: list[Step] = []
    position = 0
    while position < len(rest):
        match = _STEP.match(rest, position)
        if match is None:
            raise JsonPathError(f"{path!r} is not a JSONPath that is understood here: see {rest[position:]!r}")
        taken.append(_step(match))
        position = match.end()
    return tuple(taken)


def _step(match: re.Match[str]) -> Step:
    name = match["field"] or match["quoted"] or match["doubly"]
    if name is not None:
        key = re.sub(r"\\(.)", r"\1", name)
        return lambda value: [value[key]] if isinstance(value, dict) and key in value else []
    if match["index"] is not None:
        index = int(match["index"])
        return lambda value: [value[index]] if isinstance(value, list) and -len(value) <= index < len(value) else []
    if match["path"] is not None:
        return _filter(match["path"].strip(), match["operator"], match["value"])
    return _everything


def _everything(value: Any) -> Iterable[Any]:
    return value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()


def _filter(path: str, operator: str | None, constant: str | None) -> Step:
    wanted = _constant(constant) if constant is not None else None

    def holds(item: Any) -> bool:
        values = find(path, item)
        return bool(values) if operator is None else any((value == wanted) is (operator == "==") for value in values)

    return lambda value: [item for item in _everything(value) if holds(item)]


def _constant(text: str) -> Any:
    if len(text) > 1 and text[0] == text[-1] and text[0] in "'\"":
        return text[1:-1]
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise JsonPathError(f"{text!r} in a filter is neither a number nor a quoted text") from error
