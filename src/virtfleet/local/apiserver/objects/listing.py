"""Lists: consistent over all their pages, however many writes happen between two of them.

A page is cut from the state at one revision. That state is the present one with the changes since taken back, so no
copies of past states are kept; a page that asks for a revision beyond the compacted history is told to start again.
"""

from __future__ import annotations

import base64
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice

import orjson

from virtfleet.kube.errors import ApiError
from virtfleet.local.apiserver.objects import causes, refusals
from virtfleet.local.apiserver.objects.selection import Facts, Selection
from virtfleet.local.apiserver.objects.store import Record, Store

_EXPIRED = (
    "The provided continue parameter is too old to display a consistent list result. "
    "You must start a new list without the continue parameter."
)


@dataclass(frozen=True, slots=True)
class Paging:
    """What a list request asks for beside the selection."""

    limit: int = 0  # 0: everything
    token: str = ""
    resource_version: str = ""
    match: str = ""  # resourceVersionMatch: Exact, NotOlderThan or nothing


@dataclass(frozen=True, slots=True)
class Listing:
    """One page: its objects, the revision they are of, and the token for the next page."""

    records: list[Record]
    revision: int
    token: str = ""


def page(store: Store, selection: Selection, paging: Paging) -> Listing:
    """The page that is asked for."""
    revision, after = _starting_point(store, paging)
    try:
        records = _state_at(store, selection, revision)
    except ApiError as error:
        if paging.token and error.reason == "Expired":
            raise ApiError("Expired", _EXPIRED) from error
        raise
    start = bisect_right(records, after, key=lambda record: (record.namespace, record.name))
    chosen: list[Record] = []
    for record in islice(records, start, None):
        if len(chosen) == paging.limit and paging.limit:
            return Listing(chosen, revision, _encode_token(revision, chosen[-1]))
        if selection.matches(Facts(record)):
            chosen.append(record)
    return Listing(chosen, revision)


def parse_version(text: str, refusal: Callable[[str], ApiError] = refusals.bad_request) -> int:
    """A resourceVersion that a client sent; "" and "0" are 0."""
    if not text:
        return 0
    if not text.isascii() or not text.isdigit() or len(text) > 20:
        why = f"strconv.ParseUint: parsing {causes.quoted(text)}: invalid syntax"
        raise refusal(f"Invalid value: {causes.quoted(text)}: {why}")
    return int(text)


def _starting_point(store: Store, paging: Paging) -> tuple[int, tuple[str, str]]:
    """The revision that is listed, and the namespace and name that its page begins after."""
    wrong = []
    if paging.match:
        field = "resourceVersionMatch"
        if not paging.resource_version:
            wrong.append(causes.forbidden(field, f"{field} is forbidden unless resourceVersion is provided"))
        if paging.token:
            wrong.append(causes.forbidden(field, f"{field} is forbidden when continue is provided"))
        if paging.match not in ("Exact", "NotOlderThan"):
            wrong.append(causes.unsupported(field, paging.match, ("Exact", "NotOlderThan", "")))
        elif paging.match == "Exact" and paging.resource_version == "0":
            wrong.append(causes.forbidden(field, f'{field} "exact" is forbidden for resourceVersion "0"'))
    if wrong:
        raise refusals.invalid_options("ListOptions", wrong)
    version = parse_version(paging.resource_version)
    if version > store.revision:
        cause = {"reason": "ResourceVersionTooLarge", "message": "Too large resource version"}
        message = f"Timeout: Too large resource version: {version}, current: {store.revision}"
        raise ApiError("Timeout", message, details={"causes": [cause], "retryAfterSeconds": 1})
    if paging.token:
        if version:
            raise refusals.bad_request("specifying resource version is not allowed when using continue")
        return _decode_token(paging.token, store.revision)
    return (version if paging.match == "Exact" else store.revision), ("", "")


def _state_at(store: Store, selection: Selection, revision: int) -> list[Record]:
    records = list(store.scan(selection.kind.storage, selection.namespace))
    if revision == store.revision:
        return records
    past = {(record.namespace, record.name): record for record in records}
    for change in reversed(store.since(selection.kind.storage, revision)):
        key = (change.record.namespace, change.record.name)
        if change.previous is not None:
            past[key] = change.previous
        else:
            past.pop(key, None)
    return [past[key] for key in sorted(past)]


def _encode_token(revision: int, last: Record) -> str:
    return base64.urlsafe_b64encode(orjson.dumps([revision, last.namespace, last.name])).rstrip(b"=").decode()


def _decode_token(text: str, newest: int) -> tuple[int, tuple[str, str]]:
    try:
        revision, *after = orjson.loads(base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)))
    except (ValueError, TypeError) as error:
        raise refusals.bad_request(f"continue key is not valid: {error}") from error
    match after:
        case [str(namespace), str(name)] if isinstance(revision, int) and 0 < revision <= newest and name:
            return revision, (namespace, name)
    raise refusals.bad_request("continue key is not valid: incorrect encoded start resourceVersion or key")
