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

from virtfleet.api.selectors import from_label_selector
from virtfleet.api.times import timestamp
from virtfleet.kube.api import Patch
from virtfleet.kube.errors import ApiError, ignoring, is_already_exists, is_not_found
from virtfleet.kube.resource import NAMESPACES, Obj, Resource
from virtfleet.local.apiserver.extensions.admission import Admission, AdmissionRequest
from virtfleet.local.apiserver.kinds import metadata
from virtfleet.local.apiserver.kinds.registry import Kind, Kinds, at
from virtfleet.local.apiserver.kinds.schema import SchemaNode
from virtfleet.local.apiserver.objects import causes, deletion, listing, ownership, patching, refusals
from virtfleet.local.apiserver.objects.causes import Cause
from virtfleet.local.apiserver.objects.deletion import DeleteOptions, Outcome
from virtfleet.local.apiserver.objects.listing import Listing, Paging
from virtfleet.local.apiserver.objects.ownership import Manager
from virtfleet.local.apiserver.objects.selection import Selection
from virtfleet.local.apiserver.objects.store import Record, Stale, Store, encode
from virtfleet.local.apiserver.objects.watching import Watchers
from virtfleet.local.apiserver.rights.access import User

T = TypeVar("T")

_UPDATE_ATTEMPTS = 10
_NAME_ATTEMPTS = 8
_DELETED_AT_ONCE = 50  # of a collection; they share commits
# How a Scale itself is patched: like any built-in object.
_SCALE = Kind(Resource("autoscaling", "v1", "scales", "Scale"), "scale", "ScaleList")


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
            return orjson.dumps(_scale_of(kind, orjson.loads(record.data)))
        return served(kind, record.data)

    async def list(self, selection: Selection, paging: Paging | None = None) -> Listing:
        """One page of what is selected."""
        return listing.page(self.store, selection, paging or Paging())

    # Creating

    async def create(self, kind: Kind, namespace: str, obj: Obj, call: Call) -> bytes:
        """A new object."""
        record = self._decode(kind, obj, call)
        _place(kind, namespace, None, obj)
        self._require_namespace(kind, namespace, obj["metadata"].get("name", ""))
        request = _request("CREATE", kind, namespace, obj["metadata"].get("name", ""), call, obj)
        obj = await self._mutate(request)
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
        raise refusals.already_exists(kind.resource, name, generated=bool(prefix))

    async def post(self, kind: Kind, namespace: str, name: str, subresource: str, obj: Obj, call: Call) -> Obj:
        """POST to something that is not stored: a review, or a subresource such as binding."""
        handler = self.posts[kind.resource.group, kind.resource.plural, subresource]
        if subresource:
            obj.setdefault("metadata", {})
            request = _request("CREATE", kind, namespace, name, call, obj, part=subresource)
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
        _check_applied(kind, namespace, name, orjson.loads(orjson.dumps(config)))  # refuses what is nested too deeply
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

    async def _write(
        self, kind: Kind, namespace: str, name: str, derive: Callable[[Kind, Obj], Obj], call: Call, subresource: str
    ) -> bytes:
        """Change the object, or what its scale says of it."""
        if subresource != "scale":
            return await self._change(kind, namespace, name, partial(derive, kind), call, subresource)

        def scale(old: Obj) -> Obj:
            return _scaled(kind, old, derive(_SCALE, _scale_of(kind, old)))

        scaled = await self._change(kind, namespace, name, scale, call)
        return orjson.dumps(_scale_of(kind, orjson.loads(scaled)))

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
        wanted, present = obj["metadata"].get("uid"), old["metadata"]["uid"]
        if wanted and wanted != present and not call.patches:
            raise refusals.precondition_failed(kind.resource, name, "UID", wanted, present)
        request = _request("UPDATE", kind, record.namespace, name, call, obj, old, subresource)
        obj = await self._mutate(request)
        _check_version(kind, old, obj)
        metadata.keep_system_fields(obj, old)
        obj = _separated(kind, obj, old, subresource)
        _keep_record(obj, managers)
        kind.rules.prepare_update(obj, old, subresource)
        if _counts_generations(kind, obj) and _desired(kind, obj) != _desired(kind, old):
            obj["metadata"]["generation"] = old["metadata"].get("generation", 0) + 1
        faults = [*metadata.faults(kind, obj), *metadata.update_faults(obj, old)]
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
            request = _request("DELETE", kind, namespace, name, call, None, obj)
            await self.admission.mutate(request)
            await self._admit(request, call)
            obj = orjson.loads(served(kind, record.data))
            outcome = deletion.begin(kind, obj, options)
            if outcome is Outcome.UNCHANGED or call.dry_run:
                return outcome, encode(obj, None)
            remove = outcome is Outcome.REMOVED
            stored = await self.store.write(kind.storage, namespace, name, obj, base=record, remove=remove)
            return outcome, stored.data

        return await self._with_current(kind, namespace, name, attempt)

    async def delete_collection(self, selection: Selection, options: DeleteOptions, call: Call) -> Listing:
        """Delete what is selected now; the answer holds the objects as they were."""

        async def delete_if_there(record: Record) -> None:
            with ignoring(is_not_found):
                await self.delete(selection.kind, record.namespace, record.name, options, call)

        listed = await self.list(selection)
        for i in range(0, len(listed.records), _DELETED_AT_ONCE):
            await asyncio.gather(*map(delete_if_there, listed.records[i : i + _DELETED_AT_ONCE]))
        return listed

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
                cause = Cause("patch", "FieldValueInvalid", f"Invalid value: {error.message}")
                raise refusals.invalid_review("", "", [cause]) from None
            raise
        if call.field_validation == "Warn":
            call.warnings += [fault for fault in faults if fault not in call.warnings]
        return record

    async def _mutate(self, request: AdmissionRequest) -> Obj:
        before = request.obj
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


def _request(
    verb: str, kind: Kind, where: str, name: str, call: Call, obj: Obj | None, old: Obj | None = None, part: str = ""
) -> AdmissionRequest:
    """What admission is asked; `part` is the subresource."""
    return AdmissionRequest(verb, kind, where, name, call.user, obj, old, part, call.dry_run, call.options)


def _root(kind: Kind) -> SchemaNode:
    return kind.schema.root if kind.schema else ownership.ANY


def _keep_record(obj: Obj, managers: Any) -> None:
    """Have the object say who manages its fields, whatever webhooks made of it."""
    obj["metadata"].pop("managedFields", None)
    if managers:
        obj["metadata"]["managedFields"] = managers


def _fit(kind: Kind, obj: Obj, old: Obj | None = None) -> list[str]:
    """Bring the object into the schema's form; what had to go."""
    return kind.schema.shape(obj, old) if kind.schema else []


def _check_type(kind: Kind, obj: Obj) -> None:
    """The object is of the kind that the path says, and has metadata."""
    resource = kind.resource
    if (given := obj.setdefault("apiVersion", resource.api_version)) != resource.api_version:
        why = f"the API version in the data ({given}) does not match the expected API version ({resource.api_version})"
        raise refusals.bad_request(why)
    if (given := obj.setdefault("kind", resource.kind)) != resource.kind:
        why = f"the kind in the data ({given}) does not match the expected kind ({resource.kind})"
        raise refusals.undecodable(resource, why)
    if obj.get("metadata") is None:
        obj["metadata"] = {}
    if not isinstance(obj["metadata"], dict):
        raise refusals.undecodable(resource, "metadata must be an object")


def _check_applied(kind: Kind, namespace: str, name: str, config: Any) -> None:
    """A configuration is an object of the kind, without fields that the kind does not have. It is changed."""
    if not isinstance(config, dict):
        raise refusals.bad_request("error decoding patch: an applied configuration is a JSON object")
    _check_type(kind, config)
    _place(kind, namespace, name, config)
    if config["metadata"].get("managedFields") is not None:
        raise refusals.bad_request("metadata.managedFields must be nil")
    try:
        unknown = _fit(kind, config)
    except ApiError as error:
        raise refusals.inapplicable(kind.resource, namespace, name, error.message) from None
    if unknown:
        raise refusals.inapplicable(kind.resource, namespace, name, f".{unknown[0]}: field not declared in schema")


def _place(kind: Kind, namespace: str, name: str | None, obj: Obj) -> None:
    """Make the object say where it is; refuse if it says something else than the request's path."""
    meta = obj["metadata"]
    if not kind.resource.namespaced:
        meta.pop("namespace", None)
    elif not meta.get("namespace"):
        meta["namespace"] = namespace
    if meta.get("namespace", "") != namespace:
        why = "the namespace of the provided object does not match the namespace sent on the request"
        raise refusals.bad_request(why)
    if name is not None and meta.get("name") != name:
        why = f"the name of the object ({meta.get('name', '')}) does not match the name on the URL ({name})"
        raise refusals.bad_request(why)


def _check_version(kind: Kind, old: Obj, obj: Obj) -> None:
    version, was = obj["metadata"].get("resourceVersion", ""), old["metadata"]
    if listing.parse_version(version, refusals.bad_version):
        if version != was["resourceVersion"]:
            raise refusals.conflict(kind.resource, was["name"])
    elif kind.custom:
        fault = causes.invalid("metadata.resourceVersion", 0, "must be specified for an update")
        raise refusals.invalid(kind.resource, was["name"], [fault])


def _separated(kind: Kind, obj: Obj, old: Obj, subresource: str) -> Obj:
    """Spec and status have separate writers where the kind has a status subresource; a binding writes both at once."""
    if "status" not in kind.subresources or subresource == "binding":
        return obj
    source = obj if subresource == "status" else old
    if subresource == "status":
        obj = {**old, "metadata": dict((old if kind.custom else obj)["metadata"])}
    obj.pop("status", None)
    return obj | {"status": source["status"]} if "status" in source else obj


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


def _scale_of(kind: Kind, obj: Obj) -> Obj:
    """The Scale of an object."""
    meta = obj["metadata"]
    kept = ("name", "namespace", "uid", "resourceVersion", "creationTimestamp")
    status = {"replicas": at(kind.scale["statusReplicas"], obj) or 0}
    # Built-in kinds keep a LabelSelector, custom ones a text.
    selector = at(kind.scale.get("labelSelector", ""), obj)
    if selector:
        status["selector"] = str(from_label_selector(selector) if isinstance(selector, dict) else selector)
    replicas = at(kind.scale["specReplicas"], obj)
    return {
        "kind": "Scale",
        "apiVersion": "autoscaling/v1",
        "metadata": {key: meta[key] for key in kept if key in meta},
        "spec": {"replicas": replicas} if replicas else {},
        "status": status,
    }


def _scaled(kind: Kind, obj: Obj, scale: Obj) -> Obj:
    """`obj` with the replicas of a Scale, and the resourceVersion that its writer meant (if any)."""
    replicas = (scale.get("spec") or {}).get("replicas", 0)
    name = obj["metadata"]["name"]
    if not isinstance(replicas, int) or isinstance(replicas, bool):
        raise refusals.bad_request(f"Scale: spec.replicas must be an integer, not {causes.quoted(replicas)}")
    if replicas < 0:
        fault = causes.invalid("spec.replicas", replicas, "should be a non-negative integer")
        raise refusals.invalid(_SCALE.resource, name, [fault])
    if version := (scale.get("metadata") or {}).get("resourceVersion"):
        obj["metadata"]["resourceVersion"] = version
    *parents, last = kind.scale["specReplicas"].split(".")
    place = obj
    for part in parents:
        place = place.setdefault(part, {})
    place[last] = replicas
    return obj
