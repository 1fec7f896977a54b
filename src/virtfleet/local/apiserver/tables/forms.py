"""The forms in which objects leave the server: as they are, or as tables for people.

Stored bytes are passed on without decoding wherever the form allows it. A list is made in pieces, so that a big one is
never in memory a second time.
"""

from __future__ import annotations

from collections.abc import Iterator

import orjson

from virtfleet.kube.resource import Obj
from virtfleet.local.apiserver.kinds.registry import Kind
from virtfleet.local.apiserver.objects.listing import Listing
from virtfleet.local.apiserver.objects.operations import served
from virtfleet.local.apiserver.tables import table as tables

_PIECE = 100  # objects of a list that are sent together


def event_line(event_type: str, body: bytes) -> bytes:
    """One line of a watch."""
    return b'{"type":"%s","object":%s}\n' % (event_type.encode(), body)


class Plain:
    """The objects themselves, in the version asked for."""

    def __init__(self, kind: Kind) -> None:
        self._kind = kind
        self.key: tuple[str, ...] = (kind.resource.api_version,)
        self._head = len(f'{{"apiVersion":"{kind.resource.api_version}","kind":"{kind.resource.kind}",')

    def one(self, data: bytes) -> bytes:
        """The object."""
        return served(self._kind, data)

    def many(self, listing: Listing) -> Iterator[bytes]:
        """A list, in pieces."""
        head = {"kind": self._kind.list_kind, "apiVersion": self._kind.resource.api_version}
        piece = orjson.dumps({**head, "metadata": _list_metadata(listing)})[:-1] + b',"items":['
        for i in range(0, len(listing.records), _PIECE):
            some = [self.item(record.data) for record in listing.records[i : i + _PIECE]]
            yield piece + b",".join(some)
            piece = b","
        yield (piece if not listing.records else b"") + b"]}"

    def item(self, data: bytes) -> bytes:
        """In a list of a built-in kind, only the list says of which."""
        data = served(self._kind, data)
        return data if self._kind.custom else b"{" + data[self._head :]

    def event(self, event_type: str, data: bytes) -> bytes:
        """One line of a watch."""
        return event_line(event_type, served(self._kind, data))


class Table:
    """Rows and columns, as `kubectl get` prints them; `include` is the query's includeObject."""

    def __init__(self, kind: Kind, include: str) -> None:
        self._kind, self._include = kind, include or "Metadata"
        self.key: tuple[str, ...] = ("table", kind.resource.api_version, self._include)

    def one(self, data: bytes) -> bytes:
        """The object as the only row."""
        obj = orjson.loads(served(self._kind, data))
        return self._table([obj], {"resourceVersion": obj["metadata"]["resourceVersion"]})

    def many(self, listing: Listing) -> Iterator[bytes]:
        """A row for each object."""
        objects = [orjson.loads(served(self._kind, record.data)) for record in listing.records]
        yield self._table(objects, _list_metadata(listing))

    def event(self, event_type: str, data: bytes) -> bytes:
        """A table of one row; of none for a mark."""
        if event_type == "BOOKMARK":
            version = orjson.loads(data)["metadata"]["resourceVersion"]
            return event_line(event_type, self._table([], {"resourceVersion": version}))
        return event_line(event_type, self.one(data))

    def _table(self, objects: list[Obj], metadata: Obj) -> bytes:
        return orjson.dumps(tables.table(self._kind, objects, metadata, self._include))


Form = Plain | Table  # one form for the objects of one kind; equal keys mean equal bytes


def _list_metadata(listing: Listing) -> Obj:
    metadata: Obj = {"resourceVersion": str(listing.revision)}
    if listing.token:
        metadata["continue"] = listing.token
    return metadata
