"""A request about objects, and how its query, headers and body are read."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from aiohttp import web

from virtfleet.kube.resource import Obj
from virtfleet.local.apiserver.kinds.registry import Kind
from virtfleet.local.apiserver.objects import causes, deletion, refusals
from virtfleet.local.apiserver.objects.deletion import DeleteOptions
from virtfleet.local.apiserver.objects.operations import Call
from virtfleet.local.apiserver.objects.selection import Selection, select
from virtfleet.local.apiserver.rights.access import Attributes
from virtfleet.local.apiserver.serving import negotiation
from virtfleet.local.apiserver.tables.forms import Form, Plain, Table

_LONGEST_MANAGER = 128
_MOST_PARTS = 100_000  # a body of 3 MiB could have ten times as many


_NUMBER = re.compile(r"-?[0-9]{1,18}")


@dataclass(frozen=True, slots=True)
class Asked:
    """A request about objects of one kind, and the parts of it that several verbs read."""

    request: web.Request
    info: Attributes
    kind: Kind
    namespace: str

    def form(self) -> Form:
        """The form of the answer."""
        if negotiation.wants_table(self.request.headers.get("Accept", "")):
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
        force = query.get("force", "") in ("true", "1")
        wrong = []
        if applies and not manager:
            wrong.append(causes.required("fieldManager", "is required for apply patch"))
        if "force" in query and not applies:
            wrong.append(causes.forbidden("force", "may not be specified for non-apply patch"))
        if len(manager) > _LONGEST_MANAGER:
            wrong.append(causes.too_long("fieldManager", _LONGEST_MANAGER))
        if dry_run not in ("", "All"):
            wrong.append(causes.unsupported("dryRun", [dry_run], ("All",)))
        if validation not in ("Ignore", "Warn", "Strict"):
            wrong.append(causes.unsupported("fieldValidation", validation, ("", "Ignore", "Strict", "Warn")))
        if wrong:
            raise refusals.invalid_options(options, wrong)
        sent: Obj = {"kind": options, "apiVersion": "meta.k8s.io/v1"}
        if dry_run:
            sent["dryRun"] = [dry_run]
        if manager:
            sent["fieldManager"] = manager
        agent = self.request.headers.get("User-Agent", "").partition("/")[0][:_LONGEST_MANAGER]
        manager = manager or agent or "unknown"
        return Call(self.info.user, dry_run == "All", validation, options=sent, manager=manager, force=force)

    async def body(self, options: str) -> tuple[Obj, Call]:
        """The object that was sent."""
        call = self.call(options)
        obj, call.duplicates = negotiation.decode(
            self.request.headers.get("Content-Type", ""),
            await self.content(),
            find_duplicates=call.field_validation != "Ignore",
        )
        if obj is None:
            obj = {}
        if not isinstance(obj, dict):
            raise refusals.bad_request(
                f"couldn't get version/kind; json parse error: a {self.kind.resource.kind} is a JSON object"
            )
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
        given: Any = {}
        if body:
            given, _ = negotiation.decode(self.request.headers.get("Content-Type", ""), body, find_duplicates=False)
        if not isinstance(given, dict):
            raise refusals.bad_request("DeleteOptions must be a JSON object")
        options, in_earnest = deletion.parse_options(given, dict(self.request.query))
        sent = {**given, "kind": "DeleteOptions", "apiVersion": "meta.k8s.io/v1"}
        return options, Call(self.info.user, not in_earnest, options=sent)

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
        wrong = []
        if given is not None and match != "NotOlderThan":
            wrong.append(causes.forbidden(field, f"sendInitialEvents requires setting {field} to NotOlderThan"))
        if match and given is None:
            why = f"{field} is forbidden for watch unless sendInitialEvents is provided"
            wrong.append(causes.forbidden(field, why))
        if wrong:
            raise refusals.invalid_options("ListOptions", wrong)
        return None if given is None else given in ("true", "1")
