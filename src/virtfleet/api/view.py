"""Typed views of Kubernetes objects, and what their fields can say beyond a type.

An object is a plain dict and stays one; a view is made from it for reading (`msgspec.convert`), ignores what it does
not know, and is never written back. Every field may be missing: `None`, "" or an empty list then. The same classes are
the one source of the CRD schemas: a string below a field is its description there, `Required` and `OneOf` become
constraints of the schema, but do not hinder reading, so that objects of another version can still be read.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from typing import Annotated, Any, Final, NamedTuple, TypeVar, get_args, get_type_hints

import msgspec

T = TypeVar("T")


class View(msgspec.Struct, rename="camel", omit_defaults=True):
    """Base of all views: fields in Python's spelling, camelCase in the object."""


class Empty(View):
    """An object without fields, whose presence is what counts: `masquerade: {}`."""


class OneOf:
    """Values that the API accepts."""

    def __init__(self, *values: str) -> None:
        self.values = values


class MapKey(NamedTuple):
    """The field that identifies an item of a list."""

    name: str


REQUIRED: Final = "required"

Required = Annotated[T, REQUIRED]
"""A field that must be there when an object is created."""

Raw = Annotated[dict[str, Any], "raw"]
"""A Kubernetes type that is handed on as it is, such as affinity."""


class Field(NamedTuple):
    """What a view says of one of its fields beyond its type."""

    attribute: str
    required: bool
    values: tuple[str, ...]
    """Values that the API accepts; none where it accepts all."""
    inside: type[View] | None
    """The view of the objects that are in it."""


def _parts(hint: Any) -> Iterator[Any]:
    """Everything inside the type of a field: classes, and what they are annotated with."""
    if not (arguments := get_args(hint)):
        yield hint
    for argument in arguments:
        yield from _parts(argument)


@cache
def fields(view: type[View]) -> Mapping[str, Field]:
    """The fields of a view by the API's names."""
    hints, known = get_type_hints(view, include_extras=True), {}
    for name, attribute in zip(view.__struct_encode_fields__, view.__struct_fields__, strict=True):
        marks = list(_parts(hints[attribute]))
        values = next((mark.values for mark in marks if isinstance(mark, OneOf)), ())
        inside = next((mark for mark in marks if isinstance(mark, type) and issubclass(mark, View)), None)
        known[name] = Field(attribute, REQUIRED in marks, values, inside)
    return known


def part(view: View, path: str) -> Any:
    """What stands at a path that is written as in the API, `secretRef.name`; None where something on it is missing."""
    value: Any = view
    for name in path.split("."):
        if value is None:
            break
        of: type[View] = type(value)
        value = getattr(value, fields(of)[name].attribute)
    return value


def given(view: View, names: Iterable[str]) -> list[str]:
    """Those of the fields, called as in the API, that are there."""
    return [name for name in names if part(view, name) is not None]


def read(view: type[T], obj: object) -> T:
    """A view of an object. Raises msgspec.ValidationError, whose message names the field, where a type is wrong."""
    return msgspec.convert(obj, view)
