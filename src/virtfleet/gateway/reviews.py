"""AdmissionReviews as they come over the wire: read with care, for whatever a tenant wrote is in them. Pure."""

from __future__ import annotations

import re
from typing import Any, Literal

import msgspec
import orjson

from virtfleet.kube.resource import Obj

MOST_VALUES, MOST_LEVELS = 20_000, 100  # of an object; real ones have a few hundred, on twenty levels
_MOST_PARTS = 200_000  # of a review that is decoded at all: the object, as it is and was
_UID = re.compile(rb'"request":\s*{\s*"uid":\s*"([-0-9a-f]{36})"')


class _User(msgspec.Struct):
    username: str = ""
    extra: dict[str, list[str]] = {}


class _Kind(msgspec.Struct):
    kind: str


class _Object(msgspec.Struct):
    kind: str
    metadata: dict[str, Any]


class _Request(msgspec.Struct, rename="camel"):
    """As much of a review as must be there, and of the right type, before anything else is looked at."""

    uid: str
    operation: Literal["CREATE", "UPDATE", "DELETE"]
    kind: _Kind
    namespace: str = ""
    object: _Object | None = None
    old_object: _Object | None = None
    user_info: _User | None = None


class _Review(msgspec.Struct):
    request: _Request


class Malformed(Exception):
    """A body that is no AdmissionReview."""


class TooLarge(Exception):
    """A review of an object with more in it than anybody could mean."""

    def __init__(self, uid: str, why: str) -> None:
        super().__init__(f"the object has more than {why}; make it smaller")
        self.uid = uid


def read(body: bytes) -> Obj:
    """The request of a review that has all that the decision needs. Raises Malformed or TooLarge."""
    if body.count(b"{") + body.count(b"[") > _MOST_PARTS and (uid := _UID.search(body, 0, 1024)):
        raise TooLarge(uid[1].decode(), f"{MOST_VALUES} values")
    try:
        review = orjson.loads(body)
        request = msgspec.convert(review, _Review).request
    except ValueError as error:
        raise Malformed(f"the body is not an AdmissionReview: {error}") from error
    needed = {"CREATE": [request.object], "DELETE": [request.old_object]}
    if None in needed.get(request.operation, [request.object, request.old_object]):
        raise Malformed(f"the body is not an AdmissionReview: it lacks an object that {request.operation} is about")
    asked: Obj = review["request"]
    if request.operation != "DELETE" and (why := _unbounded(asked["object"])):
        raise TooLarge(request.uid, why)
    return asked


def _unbounded(obj: Obj) -> str:
    """What there is too much of in an object, found without looking at more than that."""
    level: list[Any] = [obj]
    count = 0
    for _ in range(MOST_LEVELS):
        below: list[Any] = []
        for value in level:
            if isinstance(value, dict):
                below.extend(value.values())
            elif isinstance(value, list):
                below.extend(value)
        count += len(below)
        if count > MOST_VALUES:
            return f"{MOST_VALUES} values"
        if not below:
            return ""
        level = below
    return f"{MOST_LEVELS} levels"
