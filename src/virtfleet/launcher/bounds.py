"""Messages cut to their bounds, before they are sent. Pure.

A guest may have more file systems than anybody wants to know of, and a name in it may be a novel. A handler takes no
message beyond its bounds, so what is more is left out, and the log says so.
"""

from __future__ import annotations

import functools
import logging
from typing import Any, TypeVar

import msgspec
from msgspec import inspect

from virtfleet.launcher.messages import Message

logger = logging.getLogger(__name__)

M = TypeVar("M", bound=Message)
_shape = functools.cache(inspect.type_info)


def fit(message: M) -> M:
    """The message, with everything in it cut to what its type allows."""
    fitting: M = _fit(message, _shape(type(message)))
    return fitting


def _fit(value: Any, shape: inspect.Type) -> Any:
    match shape:
        case inspect.StructType(fields=fields):
            parts = {f.name: (getattr(value, f.name), f.type) for f in fields}
            return msgspec.structs.replace(value, **{name: _fit(*part) for name, part in parts.items()})
        case inspect.StrType(max_length=int(most)) if len(value) > most:
            return f"{value[: most - 1]}…"
        case inspect.BytesType(max_length=int(most)) if len(value) > most:
            return value[:most]
        case inspect.ListType(item_type=item, max_length=most):
            return [_fit(each, item) for each in _first(list(value), most)]
        case inspect.DictType(key_type=key, value_type=item, max_length=most):
            return {_fit(k, key): _fit(v, item) for k, v in _first(list(value.items()), most)}
        case inspect.UnionType(types=types):
            return next((_fit(value, each) for each in types if _is(value, each)), value)
    return value


def _first(values: list[Any], most: int | None) -> list[Any]:
    if most is None or len(values) <= most:
        return values
    logger.warning("of %d things the first %d are told, from %r on", len(values), most, values[0])
    return values[:most]


def _is(value: Any, shape: inspect.Type) -> bool:
    """Whether a value is of this one of several types."""
    return isinstance(value, str if isinstance(shape, inspect.StrType) else getattr(shape, "cls", ()))
