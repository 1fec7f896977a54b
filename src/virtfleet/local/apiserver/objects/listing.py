"""Lists: consistent over all their pages, however many writes happen between two of them.

A page is cut from the state at one revision. That state is the present one with the changes since taken back, so no
copies of past states are kept; a page that asks for a revision beyond the compacted history is told to start again.
"""

from __future__ import annotations

import base64
import binascii
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
_TOKEN_VERSION = "meta.k8s.io/v1"


@dataclass(frozen=True, slots=True)
class Paging:
    """What a list request asks for beside the selection."""

    limit: int = 0  # 0: everything
    token: str = ""
    resource_version: str = ""
    match: str = ""  # resourceVersionMatch: Exact, NotOlderThan or nothing


@dataclass(frozen=True, slots=True)
class Listing:
    """One page: its objects, the revision they are of, the token for the next page and how many follow (if known)."""

    records: list[Record]
    revision: int
    token: str = ""
    remaining: int | None = None


def page(store: Store, selection: Selection, paging: Paging) -> Listing:
    """The page that is asked for."""
    revision, after = _starting_point(store, paging)
    try:
        records = _state_at(store, selection, revision)
    except ApiError as error:
        if paging.token and error.reason == "Expired":
            raise ApiError("Expired", _EXPIRED) from error
        raise
    start = 0
    if after is not None:
        start = next((i for i, record in enumerate(records) if (record.namespace, record.name) > after), len(records))
    if not paging.limit:
        return Listing([r for r in islice(records, start, None) if selection.matches(Facts(r))], revision)
    chosen: list[Record] = []
    for i in range(start, len(records)):
        if len(chosen) == paging.limit:
            token = _encode_token(revision, chosen[-1])
            # Counting matches ahead would mean reading everything; like Kubernetes, only say it when it is free.
            return Listing(chosen, revision, token, len(records) - i if selection.everything else None)
        if selection.matches(Facts(records[i])):
            chosen.append(records[i])
    return Listing(chosen, revision)


def parse_version(text: str) -> int:
    """A resourceVersion that a client sent; "" and "0" are 0."""
    if not text:
        return 0
    if not text.isascii() or not text.isdigit():
        why = f"strconv.ParseUint: parsing {causes.quoted(text)}: invalid syntax"
        raise refusals.bad_request(f"Invalid value: {causes.quoted(text)}: {why}")
    return int(text)


def _starting_point(store: Store, paging: Paging) -> tuple[int, tuple[str, str] | None]:
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
        raise refusals.too_large_version(version, store.revision)
    if paging.token:
        if version:
            raise refusals.bad_request("specifying resource version is not allowed when using continue")
        return _decode_token(paging.token, store.revision)
    return (version if paging.match == "Exact" else store.revision), None


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
    start = f"{last.namespace}/{last.name}" if last.namespace else last.name
    token = {"v": _TOKEN_VERSION, "rv": revision, "start": f"{start}\0"}
    return base64.urlsafe_b64encode(orjson.dumps(token)).rstrip(b"=").decode()


def _decode_token(text: str, newest: int) -> tuple[int, tuple[str, str]]:
    try:
        token = orjson.loads(base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)))
        version, revision, start = token["v"], token["rv"], token["start"]
    except (binascii.Error, ValueError, KeyError, TypeError) as error:
        raise refusals.bad_request(f"continue key is not valid: {error}") from error
    if version != _TOKEN_VERSION:
        raise refusals.bad_request(
            f"continue key is not valid: server does not recognize this encoded version {version}"
        )
    if not isinstance(revision, int) or not 0 < revision <= newest or not isinstance(start, str) or not start:
        raise refusals.bad_request("continue key is not valid: incorrect encoded start resourceVersion or key")
    namespace, _, name = start.rstrip("\0").rpartition("/")
    return revision, (namespace, name)
