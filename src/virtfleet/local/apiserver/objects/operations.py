"""The operations of the API, written once for all kinds: get, list, watch, create, update, patch, delete.

Objects come in decoded and go out as JSON bytes. A write goes through the same stations as in Kubernetes: schema
(pruning, defaults), mutating admission, the kind's own preparation, validation, validating admission, store. An update
starts from the object as it is stored and is tried again when another write came between, unless the client named the
resourceVersion it means.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol, TypeVar

import orjson

from virtfleet.api.times import timestamp
from virtfleet.kube.api import Patch
from virtfleet.kube.errors import ApiError, ignoring, is_already_exists, is_not_found
from virtfleet.kube.resource import NAMESPACES, Obj
from virtfleet.local.apiserver.extensions.admission import Admission, AdmissionRequest
from virtfleet.local.apiserver.kinds import metadata
from virtfleet.local.apiserver.kinds.registry import Kind, Kinds
from virtfleet.local.apiserver.kinds.schema import SchemaNode, TooManyError
from virtfleet.local.apiserver.objects import causes, deletion, listing, ownership, patching, refusals, scaling
from virtfleet.local.apiserver.objects.causes import Cause
from virtfleet.local.apiserver.objects.deletion import DeleteOptions, Outcome
from virtfleet.local.apiserver.objects.listing import Listing, Paging
from virtfleet.local.apiserver.objects.ownership import Manager
from virtfleet.local.apiserver.objects.selection import Selection
from virtfleet.local.apiserver.objects.store import Record, Stale, Store, encode
from virtfleet.local.apiserver.objects.watching import Watcher, Watchers
from virtfleet.local.apiserver.rights.access import User

T = TypeVar("T")

_UPDATE_ATTEMPTS = 10
_NAME_ATTEMPTS = 8
_DELETED_AT_ONCE = 50  # of a collection; they share commits


@dataclass(slots=True)
class Call:
    """Who writes, and how. `warnings` collects what the client should be told beside the answer."""

    user: User
    dry_run: bool = False
    field_validation: str = "Ignore"  # Ignore, Warn, Strict: what to do about unknown fields
    warnings: list[str] = field(default_factory=list)
    options: Obj | None = None  # as webhooks see them
    patches: bool = False  # what it means to write has been made of the stored object
    manager: str = "virtfleet"  # whose fields those are that it writes
    force: bool = False  # of an apply: take over what others manage
    may_create: Callable[[], None] = lambda: None  # of an apply: refuses whoever may only change what is there
    applies: bool = False  # it has worked out the managers of the fields by itself
    created: bool = False  # what an apply did


class Post(Protocol):
    """Answers POSTs that store nothing by themselves."""

    async def __call__(self, obj: Obj, *, namespace: str, name: str, user: User, dry_run: bool) -> Obj: ...


def served(kind: Kind, data: bytes) -> bytes:
    """Stored bytes in the version of `kind`; versions differ in their name only."""
    prefix = b'{"apiVersion":"%s"' % kind.resource.api_version.encode()
    return data if data.startswith(prefix) else prefix + data[data.index(b'"', 15) + 1 :]


class Operations:
    """What can be done with objects."""

    def __init__(self, store: Store, kinds: Kinds, admission: Admission | None = None) -> None:
        self.store = store
        self.kinds = kinds
        self.admission = admission or Admission()
        self.watchers = Watchers(store)
        self.posts: dict[tuple[str, str, str], Post] = {}  # (group, plural, subresource or "")
        self._turns: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)

    # Reading

    def get(self, kind: Kind, namespace: str, name: str, subresource: str = "") -> bytes:
        """One object, or its scale."""
        record = self.store.get(kind.storage, namespace, name)
        if record is None:
            raise refusals.not_found(kind.resource, name)
        if subresource == "scale":
            return orjson.dumps(scaling.read(kind, orjson.loads(record.data)))
        return served(kind, record.data)

    async def list(self, selection: Selection, paging: Paging | None = None) -> Listing:
        """One page of what is selected."""
        return listing.page(self.store, selection, paging or Paging())

    async def watch(
        self, selection: Selection, resource_version: str = "", initial_events: bool | None = None
    ) -> Watcher:
        """To be given back with `watchers.close`."""
        return self.watchers.open(selection, resource_version, initial_events)

    # Creating

    async def create(self, kind: Kind, namespace: str, obj: Obj, call: Call) -> bytes:
        """A new object."""
        record = self._decode(kind, obj, call)
        _place(kind, namespace, None, obj)
        self._require_namespace(kind, namespace, obj["metadata"].get("name", ""))
        request = AdmissionRequest(
            "CREATE", kind, namespace, obj["metadata"].get("name", ""), call.user, obj, None, "", call.dry_run
        )
        obj = await self._mutate(request, call)
        _keep_record(obj, record if call.applies else None)
        async with self._turn(kind):
            return await self._begin(kind, namespace, obj, request, call)

    async def _begin(self, kind: Kind, namespace: str, obj: Obj, request: AdmissionRequest, call: Call) -> bytes:
        prefix = "" if obj["metadata"].get("name") else obj["metadata"].get("generateName", "")
        metadata.begin(obj)
        if kind.custom and "status" in kind.subresources:
            obj.pop("status", None)
        for _ in range(_NAME_ATTEMPTS if prefix else 1):
            if prefix:
                obj["metadata"]["name"] = metadata.generated(prefix)
            name = obj["metadata"].get("name", "")
            kind.rules.prepare_create(obj)
            if _counts_generations(kind, obj):
                obj["metadata"]["generation"] = 1
            _refuse_faulty(kind, obj, [*metadata.faults(kind, obj), *kind.rules.faults(obj)])
            request.obj, request.name = obj, name
            await self._admit(request, call)
            if obj["metadata"].pop("resourceVersion", "") not in ("", "0"):
                raise refusals.bad_version("resourceVersion should not be set on objects to be created")
            await self.store.settled(kind.storage, namespace, name)
            if self.store.get(kind.storage, namespace, name) is not None:
                continue
            self._require_namespace(kind, namespace, name)  # again: webhooks may have taken their time
            if call.dry_run:
                return encode(obj, None)
            try:
                return (await self.store.write(kind.storage, namespace, name, obj, base=None)).data
            except Stale:
                continue
        taken = refusals.generate_name_exhausted if prefix else refusals.already_exists
        raise taken(kind.resource, name)

    async def post(self, kind: Kind, namespace: str, name: str, subresource: str, obj: Obj, call: Call) -> Obj:
        """POST to something that is not stored: a review, or a subresource such as binding."""
        handler = self.posts.get((kind.resource.group, kind.resource.plural, subresource))
        if handler is None:
            raise refusals.method_not_allowed()
        if subresource:
            obj.setdefault("metadata", {})
            request = AdmissionRequest(
                "CREATE", kind, namespace, name, call.user, obj, None, subresource, call.dry_run, call.options
            )
            obj = await self.admission.mutate(request) or obj
            await self._admit(request, call)
        return await handler(obj, namespace=namespace, name=name, user=call.user, dry_run=call.dry_run)

    # Changing

    async def update(self, kind: Kind, namespace: str, name: str, obj: Obj, call: Call, subresource: str = "") -> bytes:
        """The object as the client wants it to be."""
        raw = orjson.dumps(obj)  # every attempt starts from what the client sent
        return await self._write(kind, namespace, name, lambda _form, _old: orjson.loads(raw), call, subresource)

    async def patch(
        self, kind: Kind, namespace: str, name: str, how: Patch, patch: bytes, call: Call, subresource: str = ""
    ) -> bytes:
        """The object with some changes."""
        if how is Patch.APPLY:
            return await self._apply(kind, namespace, name, orjson.loads(patch), call, subresource)
        call.patches = True

        def derive(form: Kind, old: Obj) -> Obj:
            return patching.apply(form, how, old, orjson.loads(patch))

        return await self._write(kind, namespace, name, derive, call, subresource)

    async def _apply(self, kind: Kind, namespace: str, name: str, config: Any, call: Call, subresource: str) -> bytes:
        """The object with the fields of a configuration, which may be all that there is of it."""
        root = _root(kind)
        self._check_applied(kind, namespace, name, config, call)
        who = Manager(call.manager, "Apply", kind.resource.api_version, subresource)

        def derive(old: Obj) -> Obj:
            try:
                ownership.check(root, config)
                return ownership.apply(root, old, config, who, timestamp(), force=call.force)
            except ownership.ApplyError as error:
                raise refusals.inapplicable(kind.resource, namespace, name, str(error)) from None
            except ownership.ConflictError as error:
                conflicts = [(str(manager), ownership.shown(path)) for manager, path in error.conflicts]
                raise refusals.apply_conflict(str(error), conflicts) from None

        call.applies = True
        for _ in range(_UPDATE_ATTEMPTS):
            await self.store.settled(kind.storage, namespace, name)
            if subresource or self.store.get(kind.storage, namespace, name) is not None:
                return await self._change(kind, namespace, name, derive, call, subresource)
            call.may_create()
            with ignoring(is_already_exists):
                new = derive({})
                new["metadata"].pop("resourceVersion", None)
                data = await self.create(kind, namespace, new, call)
                call.created = True
                return data
        raise refusals.conflict(kind.resource, name)

    def _check_applied(self, kind: Kind, namespace: str, name: str, config: Any, call: Call) -> None:
        """A configuration is an object of the kind, without fields that the kind does not have."""
        if not isinstance(config, dict):
            raise refusals.bad_request("error decoding patch: an applied configuration is a JSON object")
        copied = orjson.loads(orjson.dumps(config))
        _check_type(kind, copied)
        _place(kind, namespace, name, copied)
        if copied["metadata"].get("managedFields") is not None:
            raise refusals.bad_request("metadata.managedFields must be nil")
        try:
            unknown = _fit(kind, copied)
        except ApiError as error:
            raise refusals.inapplicable(kind.resource, namespace, name, error.message) from None
        if unknown:
            raise refusals.inapplicable(kind.resource, namespace, name, f".{unknown[0]}: field not declared in schema")

    async def _write(
        self, kind: Kind, namespace: str, name: str, derive: Callable[[Kind, Obj], Obj], call: Call, subresource: str
    ) -> bytes:
        """Change the object, or what its scale says of it."""
        if subresource != "scale":
            return await self._change(kind, namespace, name, partial(derive, kind), call, subresource)

        def scale(old: Obj) -> Obj:
            return scaling.write(kind, old, derive(scaling.FORM, scaling.read(kind, old)))

        scaled = await self._change(kind, namespace, name, scale, call)
        return orjson.dumps(scaling.read(kind, orjson.loads(scaled)))

    async def _change(
        self, kind: Kind, namespace: str, name: str, derive: Callable[[Obj], Obj], call: Call, subresource: str = ""
    ) -> bytes:
        async def attempt(record: Record) -> bytes:
            old, obj = orjson.loads(served(kind, record.data)), derive(orjson.loads(served(kind, record.data)))
            given = self._decode(kind, obj, call, old)
            _place(kind, namespace, name, obj)
            if call.applies:
                _keep_record(obj, given)
            elif given or "managedFields" in old["metadata"]:
                who = Manager(call.manager, "Update", kind.resource.api_version, subresource)
                obj = ownership.update(_root(kind), old, obj, given, who, timestamp())
            return await self._replace(kind, record, old, obj, call, subresource)

        async with self._turn(kind):
            return await self._with_current(kind, namespace, name, attempt)

    async def _with_current(
        self, kind: Kind, namespace: str, name: str, attempt: Callable[[Record], Awaitable[T]]
    ) -> T:
        """Act on the object as it is stored; again when it changed meanwhile."""
        for _ in range(_UPDATE_ATTEMPTS):
            await self.store.settled(kind.storage, namespace, name)
            record = self.store.get(kind.storage, namespace, name)
            if record is None:
                raise refusals.not_found(kind.resource, name)
            try:
                return await attempt(record)
            except Stale:
                continue
        raise refusals.conflict(kind.resource, name)

    async def _replace(self, kind: Kind, record: Record, old: Obj, obj: Obj, call: Call, subresource: str) -> bytes:
        name, managers = record.name, obj["metadata"].get("managedFields")
        if not call.patches:
            _check_uid(kind, old, obj)
        request = AdmissionRequest(
            "UPDATE", kind, record.namespace, name, call.user, obj, old, subresource, call.dry_run
        )
        obj = await self._mutate(request, call)
        _check_version(kind, old, obj)
        metadata.keep_system_fields(obj, old)
        obj = _separated(kind, obj, old, subresource)
        _keep_record(obj, managers)
        kind.rules.prepare_update(obj, old, subresource)
        if _counts_generations(kind, obj) and _desired(kind, obj) != _desired(kind, old):
            obj["metadata"]["generation"] = old["metadata"].get("generation", 0) + 1
        faults = metadata.faults(kind, obj) + metadata.update_faults(obj, old)
        _refuse_faulty(kind, obj, faults + kind.rules.update_faults(obj, old, subresource))
        request.obj = obj
        await self._admit(request, call)
        obj["metadata"]["resourceVersion"] = str(record.revision)
        if obj == old or call.dry_run:
            return encode(obj, None)
        if managers and ownership.timeless(obj) == ownership.timeless(old):
            return encode(old, None)
        remove = deletion.complete(kind, obj)
        return (await self.store.write(kind.storage, record.namespace, name, obj, base=record, remove=remove)).data

    # Deleting

    async def delete(
        self, kind: Kind, namespace: str, name: str, options: DeleteOptions, call: Call
    ) -> tuple[Outcome, bytes]:
        """What became of the object, and its last or present state."""

        async def attempt(record: Record) -> tuple[Outcome, bytes]:
            obj = orjson.loads(served(kind, record.data))
            deletion.check_allowed(kind, obj, options)
            request = AdmissionRequest(
                "DELETE", kind, namespace, name, call.user, None, obj, "", options.dry_run, call.options
            )
            await self.admission.mutate(request)
            await self._admit(request, call)
            obj = orjson.loads(served(kind, record.data))
            outcome = deletion.begin(kind, obj, options)
            if outcome is Outcome.UNCHANGED or options.dry_run:
                return outcome, encode(obj, None)
            remove = outcome is Outcome.REMOVED
            stored = await self.store.write(kind.storage, namespace, name, obj, base=record, remove=remove)
            return outcome, stored.data

        return await self._with_current(kind, namespace, name, attempt)

    async def delete_collection(self, selection: Selection, options: DeleteOptions, call: Call) -> Listing:
        """Delete what is selected now; the answer holds the objects as they were."""
        listed = await self.list(selection)
        for i in range(0, len(listed.records), _DELETED_AT_ONCE):
            some = listed.records[i : i + _DELETED_AT_ONCE]
            await asyncio.gather(*(self._delete_if_there(selection.kind, r, options, call) for r in some))
        return listed

    async def _delete_if_there(self, kind: Kind, record: Record, options: DeleteOptions, call: Call) -> None:
        with ignoring(is_not_found):
            await self.delete(kind, record.namespace, record.name, options, call)

    # Stations on the way of a write

    def _turn(self, kind: Kind) -> AbstractAsyncContextManager[None]:
        return self._turns[kind.storage] if kind.rules.exclusive else nullcontext()

    def _decode(self, kind: Kind, obj: Obj, call: Call, old: Obj | None = None) -> Any:
        """Bring the object into the schema's form, and say or refuse what did not fit; the record of managers that was
        sent with it.
        """
        try:
            _check_type(kind, obj)
            record = obj["metadata"].pop("managedFields", None)
            faults = [f'unknown field "{path}"' for path in _fit(kind, obj, old)]
            if faults and call.field_validation == "Strict":
                raise refusals.undecodable(kind.resource, f"strict decoding error: {', '.join(faults)}")
        except ApiError as error:
            if call.patches and error.reason == "BadRequest":
                raise refusals.invalid_patch(error.message) from None
            raise
        if call.field_validation == "Warn":
            call.warnings += [fault for fault in faults if fault not in call.warnings]
        return record

    async def _mutate(self, request: AdmissionRequest, call: Call) -> Obj:
        before = request.obj
        request.options = call.options
        obj = await self.admission.mutate(request)
        assert obj is not None, "an object that is written stays an object"
        if obj is not before:
            _check_type(request.kind, obj)
            _fit(request.kind, obj)
            _place(request.kind, request.namespace, request.name or None, obj)
        request.obj = obj
        return obj

    async def _admit(self, request: AdmissionRequest, call: Call) -> None:
        await self.admission.validate(request)
        call.warnings += [warning for warning in request.warnings if warning not in call.warnings]

    def _require_namespace(self, kind: Kind, namespace: str, name: str) -> None:
        if not kind.resource.namespaced:
            return
        space = self.store.read("/namespaces", "", namespace)
        if space is None:
            raise refusals.not_found(NAMESPACES, namespace)
        if space["metadata"].get("deletionTimestamp"):
            raise refusals.terminating_namespace(kind.resource, name, namespace)


def _root(kind: Kind) -> SchemaNode | None:
    return kind.schema.root if kind.schema else None


def _keep_record(obj: Obj, managers: Any) -> None:
    """Have the object say who manages its fields, whatever webhooks made of it."""
    obj["metadata"].pop("managedFields", None)
    if managers:
        obj["metadata"]["managedFields"] = managers


def _fit(kind: Kind, obj: Obj, old: Obj | None = None) -> list[str]:
    """Bring the object into the schema's form; what had to go."""
    try:
        return kind.schema.shape(obj, old) if kind.schema else []
    except TooManyError as error:  # said before anybody has to look at all of it
        raise refusals.invalid(kind.resource, obj["metadata"].get("name", ""), [error.cause]) from None


def _check_type(kind: Kind, obj: Obj) -> None:
    """The object is of the kind that the path says, and has metadata."""
    resource = kind.resource
    if (given := obj.setdefault("apiVersion", resource.api_version)) != resource.api_version:
        raise refusals.bad_request(
            f"the API version in the data ({given}) does not match the expected API version ({resource.api_version})"
        )
    if (given := obj.setdefault("kind", resource.kind)) != resource.kind:
        raise refusals.undecodable(
            resource, f"the kind in the data ({given}) does not match the expected kind ({resource.kind})"
        )
    if obj.get("metadata") is None:
        obj["metadata"] = {}
    if not isinstance(obj["metadata"], dict):
        raise refusals.undecodable(resource, "metadata must be an object")


def _place(kind: Kind, namespace: str, name: str | None, obj: Obj) -> None:
    """Make the object say where it is; refuse if it says something else than the request's path."""
    meta = obj["metadata"]
    if not kind.resource.namespaced:
        meta.pop("namespace", None)
    elif not meta.get("namespace"):
        meta["namespace"] = namespace
    if meta.get("namespace", "") != namespace:
        raise refusals.bad_request(
            "the namespace of the provided object does not match the namespace sent on the request"
        )
    if name is not None and meta.get("name") != name:
        raise refusals.bad_request(
            f"the name of the object ({meta.get('name', '')}) does not match the name on the URL ({name})"
        )


def _check_uid(kind: Kind, old: Obj, obj: Obj) -> None:
    wanted, present = obj["metadata"].get("uid"), old["metadata"]["uid"]
    if wanted and wanted != present:
        raise refusals.precondition_failed(kind.resource, old["metadata"]["name"], "UID", wanted, present)


def _check_version(kind: Kind, old: Obj, obj: Obj) -> None:
    version, was = obj["metadata"].get("resourceVersion") or "0", old["metadata"]
    if not version.isascii() or not version.isdigit():
        raise refusals.bad_version(f"resourceVersion {causes.quoted(version)} is not a number")
    if version == "0":
        if kind.custom:
            fault = causes.invalid("metadata.resourceVersion", 0, "must be specified for an update")
            raise refusals.invalid(kind.resource, was["name"], [fault])
    elif version != was["resourceVersion"]:
        raise refusals.conflict(kind.resource, was["name"])


def _separated(kind: Kind, obj: Obj, old: Obj, subresource: str) -> Obj:
    """Spec and status have separate writers where the kind has a status subresource; a binding writes both at once."""
    if "status" not in kind.subresources or subresource == "binding":
        return obj
    source = obj if subresource == "status" else old
    if subresource == "status":
        obj = {**old, "metadata": old["metadata"] if kind.custom else obj["metadata"]}
        obj["metadata"] = dict(obj["metadata"])
    obj.pop("status", None)
    if "status" in source:
        obj["status"] = source["status"]
    return obj


def _counts_generations(kind: Kind, obj: Obj) -> bool:
    of_core = not kind.resource.group and kind.resource.plural != "pods"
    return kind.custom or ("spec" in obj and "status" in kind.subresources and not of_core)


def _desired(kind: Kind, obj: Obj) -> Any:
    """The part of an object whose change makes a new generation."""
    if not kind.custom:
        return obj.get("spec")
    apart = ("metadata", "status") if "status" in kind.subresources else ("metadata",)
    return {key: value for key, value in obj.items() if key not in apart}


def _refuse_faulty(kind: Kind, obj: Obj, faults: list[Cause]) -> None:
    """Refuse what rules or the schema found faults in; what both found is said once."""
    by_rules = {(fault.field, fault.reason) for fault in faults}
    by_schema = kind.schema.validate(obj) if kind.schema else []
    faults += [fault for fault in by_schema if (fault.field, fault.reason) not in by_rules]
    if faults:
        raise refusals.invalid(kind.resource, obj["metadata"].get("name", ""), faults)
