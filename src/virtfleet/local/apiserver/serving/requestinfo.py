"""What a request is about, read from its method, path and query exactly as Kubernetes reads them.

Everything that is decided about a request (authorization first of all) starts from this one reading, so there is no
second way to spell a path that means something else to another part of the server: each segment is unquoted once, and a
segment that then is empty, `.`, `..`, or contains a slash, is refused.
"""

from __future__ import annotations

from functools import lru_cache
from urllib.parse import unquote

from virtfleet.local.apiserver.objects import refusals
from virtfleet.local.apiserver.objects.selection import name_in_fields
from virtfleet.local.apiserver.rights.access import ANONYMOUS, Attributes

_VERBS = {"POST": "create", "GET": "get", "HEAD": "get", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}
_REFUSED = frozenset("/%\ufffd")  # the last stands for bytes that are not UTF-8
_NAMESPACE_SUBRESOURCES = ("status", "finalize")


@lru_cache(1024)
def read(method: str, raw_path: str, watch: str = "", fields: str = "") -> Attributes:
    """What anybody asks who sends this: nobody has been identified yet.

    `raw_path` is the path as it came, without the query; of the query, `watch` and `fieldSelector` matter.
    """
    raw = raw_path.strip("/").split("/")
    legacy = raw[0] == "api"
    start = 2 if legacy else 3
    if raw[0] not in ("api", "apis") or len(raw) <= start:
        return Attributes(ANONYMOUS, method.lower(), path=raw_path)
    group, version = ("", _segment(raw[1])) if legacy else (_segment(raw[1]), _segment(raw[2]))
    parts = raw[start:]
    namespace = ""
    if parts[0] == "namespaces" and len(parts) > 1:
        namespace = _segment(parts[1])
        if len(parts) > 2 and parts[2] not in _NAMESPACE_SUBRESOURCES:
            parts = parts[2:]
            if parts[0] == "namespaces":
                raise refusals.no_such_path()
    resource, name, subresource = (_segment(parts[i]) if i < len(parts) else "" for i in range(3))
    verb = _VERBS.get(method, method.lower())
    if not name:
        if verb == "get":
            verb = "watch" if _is_true(watch) else "list"
            name = name_in_fields(fields)
        elif verb == "delete":
            verb = "deletecollection"
    subpath = "/".join(parts[3:])
    return Attributes(ANONYMOUS, verb, group, version, resource, subresource, namespace, name, raw_path, subpath)


def _segment(raw: str) -> str:
    segment = unquote(raw) if "%" in raw else raw
    if segment in ("", ".", "..") or not _REFUSED.isdisjoint(segment) or not segment.isprintable():
        raise refusals.bad_request(
            f'invalid path segment "{raw}": it may not be empty, ".", ".." or contain "/" or "%"'
        )
    return segment


def _is_true(value: str) -> bool:
    return value.lower() not in ("", "0", "false", "f")
