"""Messages cut to their bounds, before they are sent. Pure.

A guest may have more file systems than anybody wants to know of, and a name in it may be a novel. A handler takes no
message beyond its bounds, so what is more is left out, and the log says so.
"""

from __future__ import annotations

import functools
import logging
from typing import Annotated, Any, TypeVar, Union, get_args, get_origin, get_type_hints

import msgspec

from virtfleet.protocol.messages import Message

logger = logging.getLogger(__name__)

M = TypeVar("M", bound=Message)
_hints = functools.cache(functools.partial(get_type_hints, include_extras=True))


def fit(message: M) -> M:
    """The message, with everything in it cut to what its type allows."""
    fitting: M = _fit(message, type(message))
    return fitting


def _fit(value: Any, kind: Any) -> Any:
    most = None
    if get_origin(kind) is Annotated:
        kind, *metas = get_args(kind)
        most = next((meta.max_length for meta in metas if isinstance(meta, msgspec.Meta)), None)
    if isinstance(value, Message):
        parts = {name: _fit(getattr(value, name), hint) for name, hint in _hints(type(value)).items()}
        return msgspec.structs.replace(value, **parts)
    if isinstance(value, str) and get_origin(kind) is Union:
        return _fit(value, next(each for each in get_args(kind) if get_origin(each) is Annotated))
    if isinstance(value, list):
        (item,) = get_args(kind)
        return [_fit(each, item) for each in _first(value, most)]
    if isinstance(value, dict):
        key, item = get_args(kind)
        return {_fit(k, key): _fit(v, item) for k, v in _first(list(value.items()), most)}
    if isinstance(value, str | bytes) and most is not None and len(value) > most:
        return value[:most] if isinstance(value, bytes) else f"{value[: most - 1]}…"
    return value


def _first(values: list[Any], most: int | None) -> list[Any]:
    if most is None or len(values) <= most:
        return values
    logger.warning("of %d things the first %d are sent, from %r on", len(values), most, values[0])
    return values[:most]
