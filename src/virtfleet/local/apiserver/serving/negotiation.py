"""Content negotiation: what clients may send (JSON, YAML, protobuf) and which forms of an answer they may ask for."""

from __future__ import annotations

import json
from functools import lru_cache
from typing import Any

import orjson
import yaml

from virtfleet.kube.api import Patch
from virtfleet.local.apiserver.objects import refusals
from virtfleet.local.apiserver.serving import protobuf

JSON, YAML = "application/json", "application/yaml"
_LARGEST_YAML = 64 * 1024
_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # with libyaml, where there is one
TABLE, _GROUP, _VERSION = "Table", "meta.k8s.io", "v1"


def media_type(content_type: str) -> str:
    return content_type.partition(";")[0].strip().lower()


def decode(content_type: str, body: bytes, *, find_duplicates: bool) -> tuple[Any, list[str]]:
    """The body, and the faults `duplicate field "x"` that JSON hides."""
    media = media_type(content_type) or JSON
    if media == YAML:
        media, body = JSON, _json_of_yaml(body)
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
    raise refusals.unknown_format((JSON, YAML, protobuf.MEDIA_TYPE))


def _json_of_yaml(body: bytes) -> bytes:
    """Written by hand it is small, and it is slow to read; aliases could make something large of it all the same."""
    if len(body) > _LARGEST_YAML:
        raise refusals.too_large(f"a body in YAML may have {_LARGEST_YAML} bytes; send JSON")
    try:
        if any(isinstance(event, yaml.AliasEvent) for event in yaml.parse(body, Loader=_Loader)):
            raise refusals.bad_request("yaml: aliases are not read; write the value out")
        return orjson.dumps(yaml.load(body, Loader=_Loader), option=orjson.OPT_NON_STR_KEYS)
    except (yaml.YAMLError, ValueError, TypeError) as error:
        raise refusals.bad_request(f"yaml: {error}") from error


def patch_type(content_type: str, accepted: tuple[Patch, ...]) -> Patch:
    try:
        return Patch(media_type(content_type))
    except ValueError:
        raise refusals.unknown_format(accepted) from None


@lru_cache(256)
def accept(header: str) -> str:
    """The first form in the client's order that we can give: Table, or "" for the objects themselves."""
    if not header:
        return ""
    for media, params, quality in sorted(map(_clause, header.split(",")), key=lambda clause: -clause[2]):
        if quality == 0 or media not in (JSON, "application/*", "*/*"):
            continue
        form = params.get("as", "")
        if not form:
            return ""
        if form == TABLE and params.get("g") == _GROUP and params.get("v") == _VERSION:
            return TABLE
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


class _Repeated(dict[str, Any]):
    """An object of the document that has a key twice."""

    keys_twice: tuple[str, ...]


def _duplicates(body: bytes) -> list[str]:
    found = False

    def check(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        nonlocal found
        plain = dict(pairs)
        if len(plain) == len(pairs):
            return plain
        found = True
        repeated = _Repeated(pairs)
        keys = [key for key, _ in pairs]
        repeated.keys_twice = tuple(key for key in plain if keys.count(key) > 1)
        return repeated

    document = json.loads(body, object_pairs_hook=check)
    return list(_where(document, "")) if found else []


def _where(value: Any, path: str) -> list[str]:
    faults = []
    if isinstance(value, dict):
        for key, inner in value.items():
            below = f"{path}.{key}" if path else key
            if isinstance(value, _Repeated) and key in value.keys_twice:
                faults.append(f'duplicate field "{below}"')
            faults += _where(inner, below)
    elif isinstance(value, list):
        for i, inner in enumerate(value):
            faults += _where(inner, f"{path}[{i}]")
    return faults
