"""The JSONPath of printer columns."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from virtfleet.local.apiserver.tables.jsonpath import JsonPathError, find

OBJ = {
    "metadata": {"labels": {"a.b/c": "d"}},
    "status": {"conditions": [{"type": "Ready", "status": "True", "n": 3}, {"type": "Old", "status": "False", "n": 1}]},
    "list": [1, 2, 3],
}


@pytest.mark.parametrize(
    ("path", "values"),
    [
        (".list", [[1, 2, 3]]),
        ("{.list[0]}", [1]),
        (".list[-1]", [3]),
        (".list[7]", []),
        (".list[*]", [1, 2, 3]),
        (".status.conditions[*].type", ["Ready", "Old"]),
        ('.status.conditions[?(@.type=="Ready")].status', ["True"]),
        (".status.conditions[?(@.type == 'Old')].status", ["False"]),
        (".status.conditions[?(@.type != 'Ready')].type", ["Old"]),
        (".status.conditions[?(@.missing)].type", []),
        (r".metadata.labels.a\.b/c", ["d"]),
        (".metadata.labels['a.b/c']", ["d"]),
        (".nothing.here", []),
        (".list.field", []),
    ],
)
def test_paths_find(path: str, values: list[Any]) -> None:
    assert find(path, OBJ) == values


@pytest.mark.parametrize("path", [".a[", ".a[?(@.b==c)]", "..", ".a[b]"])
def test_paths_that_are_not_understood_are_refused(path: str) -> None:
    with pytest.raises(JsonPathError):
        find(path, OBJ)


@given(st.lists(st.text(min_size=1, max_size=5), min_size=1, max_size=4))
def test_any_field_can_be_named_in_quotes(names: list[str]) -> None:
    obj: Any = "found"
    for name in reversed(names):
        obj = {name: obj}
    path = "".join("['" + name.replace("\\", "\\\\").replace("'", "\\'") + "']" for name in names)
    assert find(path, obj) == ["found"]
