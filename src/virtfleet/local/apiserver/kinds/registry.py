"""The kinds that the API server serves: what a kind is, and the registry that requests are resolved against.

Built-in kinds are registered at start; kinds of CustomResourceDefinitions come and go. Everything that varies from kind
to kind hangs on `Kind`, so that the operations (create, patch, watch...) are written once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from virtfleet.kube.resource import Obj, Resource
from virtfleet.local.apiserver.rights.access import User

ALL_VERBS = frozenset({"get", "list", "watch", "create", "update", "patch", "delete", "deletecollection"})
CREATE_ONLY = frozenset({"create"})  # reviews: TokenReview, SubjectAccessReview


@dataclass(frozen=True, slots=True)
class Cause:
    """One fault of an object, as it goes into a Status' details.causes."""

    field: str  # spec.containers[0].image
    reason: str  # FieldValueRequired, FieldValueInvalid, FieldValueNotSupported, FieldValueDuplicate, ...
    message: str  # as Kubernetes words it: `Required value: ...`, `Invalid value: "x": ...`


@dataclass(frozen=True, slots=True)
class Column:
    """One printer column of the Table form. `path` is a JSONPath for CRDs, a function of the object for built-ins."""

    name: str
    type: str = "string"  # string, integer, number, boolean, date
    format: str = ""
    description: str = ""
    priority: int = 0  # above 0: only with -o wide
    path: str | Callable[[Obj], Any] = ""


class Schema(Protocol):
    """The structural schema of a kind. All methods work on the decoded object."""

    def shape(self, obj: Obj, stored: Obj | None = None) -> list[str]:
        """Remove, in place, fields that the schema does not know, and fill in what it has defaults for; returns the
        paths of what was removed. The first step of every write. What is as in `stored` has been shaped already.

        Raises ApiError (BadRequest) for what Kubernetes could not even decode: wrong types in built-in kinds and in
        the metadata of any kind; schema.TooManyError for a list or map that is larger than the schema allows.
        """
        ...

    def validate(self, obj: Obj) -> list[Cause]: ...

    def openapi(self) -> dict[str, Any]:
        """The OpenAPI v3 components, by name: the kind's own schema and all that it refers to."""
        ...

    def merge_key(self, path: tuple[str, ...]) -> tuple[str | None, str | None]:
        """For strategic merge: (patchStrategy, patchMergeKey) of the field at `path` (list indexes left out)."""
        ...


class StoredObject(Protocol):
    """One object as the store holds it."""

    @property
    def data(self) -> bytes: ...


class Stored(Protocol):
    """What rules may look up: objects by the storage name of their kind, `group/plural`."""

    def get(self, storage: str, namespace: str, name: str) -> StoredObject | None: ...

    def scan(self, storage: str, namespace: str | None = None) -> Iterable[StoredObject]: ...


@dataclass(frozen=True, slots=True)
class WriteContext:
    """What a kind's rules may know of the request beside the objects."""

    user: User
    namespace: str
    subresource: str = ""
    dry_run: bool = False


class Rules:
    """What one kind does beyond its schema. The base does nothing; kinds override what they need."""

    # Writes to the kind happen one after the other, because its rules look at the kind's other objects.
    exclusive = False

    def prepare_create(self, obj: Obj, ctx: WriteContext) -> None:
        """Complete or reset fields before validation (allocated addresses, initial status)."""

    def prepare_update(self, obj: Obj, old: Obj, ctx: WriteContext) -> None:
        """The same for an update; may copy fields that the writer does not own from `old`."""

    def faults(self, obj: Obj) -> Iterable[Cause]:
        """What is wrong with an object by itself."""
        return ()

    def validate_create(self, obj: Obj, ctx: WriteContext) -> list[Cause]:
        return list(self.faults(obj))

    def validate_update(self, obj: Obj, old: Obj, ctx: WriteContext) -> list[Cause]:
        """Kinds that keep fields from changing add to this."""
        return [] if ctx.subresource == "status" else list(self.faults(obj))

    def fields(self, obj: Obj) -> Mapping[str, str]:
        """What field selectors may ask for, beside metadata.name and metadata.namespace."""
        return {}

    def grace(self, obj: Obj, asked: int | None) -> int | None:
        """Seconds between deletion's start and the object's removal; None for kinds that know no such time."""
        return None


@dataclass(frozen=True, slots=True)
class Kind:
    """One served version of one kind."""

    resource: Resource
    singular: str
    list_kind: str
    short_names: tuple[str, ...] = ()
    categories: tuple[str, ...] = ()
    verbs: frozenset[str] = ALL_VERBS
    subresources: Mapping[str, frozenset[str]] = field(default_factory=dict)  # "status" -> {get, update, patch}
    # (group, version, kind) of what a subresource takes where that is not the kind itself: scale, binding, eviction...
    subresource_kinds: Mapping[str, tuple[str, str, str]] = field(default_factory=dict)
    columns: tuple[Column, ...] = ()
    schema: Schema | None = None
    rules: Rules = field(default_factory=Rules)
    # Paths of the scale subresource: specReplicas, statusReplicas, labelSelector; empty where there is none.
    scale: Mapping[str, str] = field(default_factory=dict)
    custom: bool = False  # defined by a CRD

    @property
    def storage(self) -> str:
        """The name under which all versions of this kind are stored."""
        return f"{self.resource.group}/{self.resource.plural}"


class Kinds:
    """The registry. Changes are seen by the next request."""

    def __init__(self) -> None:
        self._kinds: dict[tuple[str, str, str], Kind] = {}

    def add(self, kind: Kind) -> None:
        """Serve a kind."""
        self._kinds[kind.resource.group, kind.resource.version, kind.resource.plural] = kind

    def remove(self, group: str, plural: str) -> None:
        """Serve no version of a kind any more."""
        for key in [k for k in self._kinds if k[0] == group and k[2] == plural]:
            del self._kinds[key]

    def find(self, group: str, version: str, plural: str) -> Kind | None:
        """The kind that a path names."""
        return self._kinds.get((group, version, plural))

    def of_kind(self, api_version: str, kind: str) -> Kind | None:
        """The kind that an object names."""
        return next((k for k in self if (k.resource.api_version, k.resource.kind) == (api_version, kind)), None)

    def __iter__(self) -> Iterator[Kind]:
        return iter(list(self._kinds.values()))
