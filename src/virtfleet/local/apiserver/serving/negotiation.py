"""Content negotiation: what clients may send (JSON, protobuf) and which forms of an answer they may ask for."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

import orjson

from virtfleet.local.apiserver.objects import refusals
from virtfleet.local.apiserver.serving import protobuf

JSON = "application/json"
_TABLE, _GROUP, _VERSION = "Table", "meta.k8s.io", "v1"


def media_type(content_type: str) -> str:
    """Without parameters."""
    return content_type.partition(";")[0].strip().lower()


def decode(content_type: str, body: bytes, *, find_duplicates: bool) -> tuple[Any, list[str]]:
    """The body, and the faults `duplicate field "x"` that JSON hides."""
    media = media_type(content_type) or JSON
    if media == JSON or media.endswith("+json"):
        try:
            document = orjson.loads(body)
            return document, _duplicates(body) if find_duplicates and _may_repeat(body, document) else []
        except orjson.JSONDecodeError as error:
            raise refusals.bad_request(f"couldn't get version/kind; json parse error: {error}") from error
        except TypeError:  # orjson reads deeper than it writes
            raise refusals.bad_request("the object is nested too deeply") from None
    if media == protobuf.MEDIA_TYPE:
        return protobuf.decode(body), []
    raise refusals.unknown_format((JSON, protobuf.MEDIA_TYPE))


@lru_cache(256)
def wants_table(header: str) -> bool:
    """Whether the first form in the client's order that we can give is a Table, and not the objects themselves."""
    if not header:
        return False
    for media, params, quality in sorted(map(_clause, header.split(",")), key=lambda clause: -clause[2]):
        if quality == 0 or media not in (JSON, "application/*", "*/*"):
            continue
        form = params.get("as", "")
        if not form:
            return False
        if form == _TABLE and params.get("g") == _GROUP and params.get("v") == _VERSION:
            return True
    raise refusals.not_acceptable((JSON,))


def _clause(text: str) -> tuple[str, dict[str, str], float]:
    media, *rest = (part.strip() for part in text.split(";"))
    params = {key.strip(): value.strip() for key, _, value in (part.partition("=") for part in rest)}
    try:
        quality = float(params.get("q", "1"))
    except ValueError:
        quality = 1.0
    return media.lower(), params, quality


_KEY = b'":'
_UNUSUAL = (b" :", b"\t:", b"\n:", b"\r:", b"\\u0022")


def _may_repeat(body: bytes, document: Any) -> bool:
    """A quick look that nearly always spares the slow one: a repeated key is one more in the body than in the document.

    Counting `":` counts the keys, and strings that contain it alike on both sides, unless the body is written oddly.
    """
    return body.count(_KEY) != orjson.dumps(document).count(_KEY) or any(sign in body for sign in _UNUSUAL)


class _Object(dict[str, Any]):
    """An object of the document that remembers which keys it has twice."""

    twice: tuple[str, ...] = ()

    def __init__(self, pairs: list[tuple[str, Any]]) -> None:
        super().__init__(pairs)
        if len(self) < len(pairs):
            counted = Counter(key for key, _ in pairs)
            self.twice = tuple(key for key in self if counted[key] > 1)


def _duplicates(body: bytes) -> list[str]:
    return list(_where(json.loads(body, object_pairs_hook=_Object), ""))


def _where(value: Any, path: str) -> Iterator[str]:
    if isinstance(value, _Object):
        for key, inner in value.items():
            below = f"{path}.{key}" if path else key
            if key in value.twice:
                yield f'duplicate field "{below}"'
            yield from _where(inner, below)
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield from _where(inner, f"{path}[{index}]")
