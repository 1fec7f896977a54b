"""A request about objects, and how its query, headers and body are read."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import orjson
from aiohttp import web

from virtfleet.kube.resource import Obj
from virtfleet.local.apiserver.kinds.registry import Kind
from virtfleet.local.apiserver.objects import causes, deletion, refusals
from virtfleet.local.apiserver.objects.causes import Cause
from virtfleet.local.apiserver.objects.deletion import DeleteOptions
from virtfleet.local.apiserver.objects.operations import Call
from virtfleet.local.apiserver.objects.selection import Selection, select
from virtfleet.local.apiserver.rights.access import Attributes
from virtfleet.local.apiserver.serving import protobuf
from virtfleet.local.apiserver.tables.forms import Form, Plain, Table

_LONGEST_MANAGER = 128
_MOST_PARTS = 100_000  # a body of 3 MiB could have ten times as many
_NUMBER = re.compile(r"-?[0-9]{1,18}")
_JSON = "application/json"
_PLAIN_MEDIA = (_JSON, "application/*", "*/*")
_TABLE = {"as=Table", "g=meta.k8s.io", "v=v1"}


@dataclass(frozen=True, slots=True)
class Asked:
    """A request about objects of one kind, and the parts of it that several verbs read."""

    request: web.Request
    info: Attributes
    kind: Kind
    namespace: str

    def form(self) -> Form:
        """The form of the answer."""
        if wants_table(self.request.headers.get("Accept", "")):
            return Table(self.kind, self.request.query.get("includeObject", ""))
        return Plain(self.kind)

    def shown(self, form: Form, data: bytes) -> bytes:
        """An answer in the form asked for; a Scale has only one."""
        return data if self.info.subresource == "scale" else form.one(data)

    def selection(self) -> Selection:
        """What is asked for."""
        query = self.request.query
        labels, fields = query.get("labelSelector", ""), query.get("fieldSelector", "")
        return select(self.kind, self.namespace or None, labels, fields)

    def call(self, options: str, *, applies: bool = False) -> Call:
        """Who writes, and how."""
        query = self.request.query
        dry_run, validation = query.get("dryRun", ""), query.get("fieldValidation", "") or "Warn"
        manager = query.get("fieldManager", "")
        force, levels = query.get("force", "") in ("true", "1"), ("", "Ignore", "Strict", "Warn")
        _refuse(
            options,
            (applies and not manager, causes.required("fieldManager", "is required for apply patch")),
            ("force" in query and not applies, causes.forbidden("force", "may not be specified for non-apply patch")),
            (len(manager) > _LONGEST_MANAGER, causes.too_long("fieldManager", _LONGEST_MANAGER)),
            (dry_run not in ("", "All"), causes.unsupported("dryRun", [dry_run], ("All",))),
            (validation not in levels, causes.unsupported("fieldValidation", validation, levels)),
        )
        sent: Obj = {"kind": options, "apiVersion": "meta.k8s.io/v1"}
        sent |= {"dryRun": [dry_run]} if dry_run else {}
        sent |= {"fieldManager": manager} if manager else {}
        agent = self.request.headers.get("User-Agent", "").partition("/")[0][:_LONGEST_MANAGER]
        manager = manager or agent or "unknown"
        return Call(self.info.user, dry_run == "All", validation, options=sent, manager=manager, force=force)

    async def body(self, options: str) -> tuple[Obj, Call]:
        """The object that was sent."""
        call = self.call(options)
        obj = self._decoded(await self.content())
        obj = {} if obj is None else obj
        if not isinstance(obj, dict):
            why = f"a {self.kind.resource.kind} is a JSON object"
            raise refusals.bad_request(f"couldn't get version/kind; json parse error: {why}")
        return obj, call

    async def content(self) -> bytes:
        """The body as it came; one of a custom kind has at most so many parts that they can be looked at quickly."""
        body = await self.request.read()
        if self.kind.custom and body.count(b"{") + body.count(b"[") > _MOST_PARTS:
            raise refusals.too_large(f"the object has more than {_MOST_PARTS} lists and objects in it")
        return body

    async def delete_options(self) -> tuple[DeleteOptions, Call]:
        """How to delete."""
        body = await self.request.read()
        given = self._decoded(body) if body else {}
        if not isinstance(given, dict):
            raise refusals.bad_request("DeleteOptions must be a JSON object")
        options, in_earnest = deletion.parse_options(given, dict(self.request.query))
        sent = {**given, "kind": "DeleteOptions", "apiVersion": "meta.k8s.io/v1"}
        return options, Call(self.info.user, not in_earnest, options=sent)

    def media_type(self) -> str:
        """Of the body, without parameters."""
        return self.request.headers.get("Content-Type", "").partition(";")[0].strip().lower()

    def _decoded(self, body: bytes) -> Any:
        """What was sent as JSON or protobuf."""
        media = self.media_type() or _JSON
        if media == protobuf.MEDIA_TYPE:
            return protobuf.decode(body)
        if media != _JSON and not media.endswith("+json"):
            raise refusals.unknown_format((_JSON, protobuf.MEDIA_TYPE))
        try:
            return orjson.loads(body)
        except orjson.JSONDecodeError as error:
            raise refusals.bad_request(f"couldn't get version/kind; json parse error: {error}") from error

    def number(self, name: str) -> int | None:
        """A number in the query, negative ones taken for 0; None where there is none."""
        text = self.request.query.get(name, "")
        if not text:
            return None
        if not _NUMBER.fullmatch(text):
            raise refusals.bad_request(f"{name}: Invalid value: {causes.quoted(text)}: must be an integer")
        return max(int(text), 0)

    def initial_events(self) -> bool | None:
        """A watch's sendInitialEvents, which goes together with resourceVersionMatch only."""
        query, field = self.request.query, "resourceVersionMatch"
        given, match = query.get("sendInitialEvents"), query.get(field, "")
        unmatched = causes.forbidden(field, f"sendInitialEvents requires setting {field} to NotOlderThan")
        alone = causes.forbidden(field, f"{field} is forbidden for watch unless sendInitialEvents is provided")
        lone = match != "" and given is None
        _refuse("ListOptions", (given is not None and match != "NotOlderThan", unmatched), (lone, alone))
        return None if given is None else given in ("true", "1")


def _refuse(options: str, *faults: tuple[bool, Cause]) -> None:
    """Refuse options with all that is wrong with them."""
    if wrong := [cause for is_wrong, cause in faults if is_wrong]:
        raise refusals.invalid_options(options, wrong)


@lru_cache(256)
def wants_table(header: str) -> bool:
    """Whether the first form in the client's order that we can give is a Table, and not the objects themselves."""
    for clause in (header or _JSON).split(","):
        media, *parameters = (part.replace(" ", "") for part in clause.split(";"))
        if media.lower() not in _PLAIN_MEDIA:
            continue
        if not any(parameter.startswith("as=") for parameter in parameters):
            return False
        if {*parameters} >= _TABLE:
            return True
    raise refusals.not_acceptable((_JSON,))
