"""The kinds that the API server serves: what a kind is, and the registry that requests are resolved against.

Built-in kinds are registered at start; kinds of CustomResourceDefinitions come and go. Everything that varies from kind
to kind hangs on `Kind`, so that the operations (create, patch, watch...) are written once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from virtfleet.kube.resource import Obj, Resource
from virtfleet.local.apiserver.objects import causes
from virtfleet.local.apiserver.objects.causes import Cause

if TYPE_CHECKING:
    from virtfleet.local.apiserver.kinds.schema import StructuralSchema

ALL_VERBS = frozenset({"get", "list", "watch", "create", "update", "patch", "delete", "deletecollection"})


@dataclass(frozen=True, slots=True)
class Column:
    """One printer column of the Table form. `path` is a JSONPath for CRDs, a function of the object for built-ins."""

    name: str
    type: str = "string"  # string, integer, number, boolean, date
    format: str = ""
    description: str = ""
    priority: int = 0  # above 0: only with -o wide
    path: str | Callable[[Obj], Any] = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """What one kind does beyond its schema: facts, and functions of an object (and of the one that it replaces)."""

    exclusive: bool = False  # writes happen one after the other, because the rules look at the kind's other objects
    status: Mapping[str, Any] | None = None  # of every new object
    finalizer: str = ""  # of every new object
    fixed: Mapping[str, str] = field(default_factory=dict)  # fields that do not change, and what is said when they do
    # What field selectors may ask for beside name and namespace; what absence means.
    selectable: Mapping[str, Any] = field(default_factory=dict)
    begin: Callable[[Obj], None] = lambda obj: None  # gives a new object what it lacks, before validation
    keep: Callable[[Obj, Obj, str], None] = lambda obj, old, subresource: None  # copies what the writer does not own
    complete: Callable[[Obj], None] = lambda obj: None  # fills in what follows from other fields, after these two
    faults: Callable[[Obj], Iterable[Cause]] = lambda obj: ()  # what is wrong with an object by itself
    on_update: Callable[[Obj, Obj, str], Iterable[Cause]] | None = None  # the same of an update, in place of `faults`
    # Seconds between deletion's start and the object's removal; None for kinds that know no such time.
    grace: Callable[[Obj, int | None], int | None] = lambda obj, asked: None

    def prepare_create(self, obj: Obj) -> None:
        """Complete or reset fields before validation (allocated addresses, initial status)."""
        if self.status is not None:
            obj["status"] = deepcopy(self.status)
        finalizers = obj["metadata"].get("finalizers", [])
        if self.finalizer and self.finalizer not in finalizers:
            obj["metadata"]["finalizers"] = [*finalizers, self.finalizer]
        self.begin(obj)
        self.complete(obj)

    def prepare_update(self, obj: Obj, old: Obj, subresource: str) -> None:
        """The same for an update."""
        self.keep(obj, old, subresource)
        self.complete(obj)

    def update_faults(self, obj: Obj, old: Obj, subresource: str) -> list[Cause]:
        """What is wrong with an update."""
        if self.on_update:
            faults = self.on_update(obj, old, subresource)
        else:
            faults = self.faults(obj) if subresource != "status" else ()
        changed = [(path, why) for path, why in self.fixed.items() if at(path, obj) != at(path, old)]
        return [*faults, *(causes.invalid(path, at(path, obj), why) for path, why in changed)]

    def fields(self, obj: Obj) -> Mapping[str, str]:
        """What field selectors compare with."""
        return {path: _text(at(path, obj), absent) for path, absent in self.selectable.items()}


def at(path: str, obj: Obj) -> Any:
    """The value at a path such as `spec.replicas`; None where something on the way is missing."""
    value: Any = obj
    for part in path.split("."):
        value = value.get(part) if isinstance(value, dict) else None
    return value


def _text(value: Any, absent: Any) -> str:
    value = absent if value is None else value
    return str(value).lower() if isinstance(value, bool) else str(value)


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
    schema: StructuralSchema | None = None
    rules: Rules = field(default_factory=Rules)
    # Paths of the scale subresource: specReplicas, statusReplicas, labelSelector; empty where there is none.
    scale: Mapping[str, str] = field(default_factory=dict)
    custom: bool = False  # defined by a CRD

    @property
    def storage(self) -> str:
        """The name under which all versions of this kind are stored."""
        return self.resource.storage


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
