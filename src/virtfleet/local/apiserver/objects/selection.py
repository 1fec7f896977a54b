"""Which objects a list, a watch or a collection's deletion means: namespace, name, label and field selectors.

Field selectors know metadata.name and metadata.namespace for every kind, and beside them what the kind's rules name.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import msgspec
import orjson

from virtfleet.api.selectors import EVERYTHING, Selector, SelectorError, parse_label_selector
from virtfleet.local.apiserver.kinds.registry import Kind
from virtfleet.local.apiserver.objects import refusals
from virtfleet.local.apiserver.objects.store import Record

_COMMA = re.compile(r"(?<!\\),")  # that is not escaped
_TERM = re.compile(r"(.*?)(!=|==|=)(.*)", re.DOTALL)


class _Metadata(msgspec.Struct):
    labels: dict[str, str] | None = None


class _Labelled(msgspec.Struct):
    metadata: _Metadata


_labelled = msgspec.json.Decoder(_Labelled)


@dataclass(frozen=True, slots=True)
class FieldTerm:
    """One comparison of a field selector."""

    key: str
    value: str
    equal: bool


class Facts:
    """What selectors ask of one record, worked out once for however many ask."""

    def __init__(self, record: Record) -> None:
        self.record = record
        self._fields: Mapping[str, str] | None = None

    @cached_property
    def labels(self) -> dict[str, str]:
        """The object's labels."""
        return _labelled.decode(self.record.data).metadata.labels or {}

    def fields(self, kind: Kind) -> Mapping[str, str]:
        """What its kind lets field selectors ask for."""
        if self._fields is None:
            self._fields = kind.rules.fields(orjson.loads(self.record.data))
        return self._fields


@dataclass(frozen=True, slots=True)
class Selection:
    """One request's choice among the objects of one kind."""

    kind: Kind
    namespace: str | None = None  # None: all
    labels: Selector = EVERYTHING
    fields: tuple[FieldTerm, ...] = ()

    def matches(self, facts: Facts) -> bool:
        """Whether an object is chosen."""
        if self.namespace is not None and facts.record.namespace != self.namespace:
            return False
        if self.labels and not self.labels.matches(facts.labels):
            return False
        return not self.fields or all(self._holds(term, facts) for term in self.fields)

    def _holds(self, term: FieldTerm, facts: Facts) -> bool:
        if term.key == "metadata.name":
            value = facts.record.name
        elif term.key == "metadata.namespace":
            value = facts.record.namespace
        else:
            value = facts.fields(self.kind).get(term.key, "")
        return (value == term.value) is term.equal


def select(kind: Kind, namespace: str | None, labels: str, fields: str) -> Selection:
    """From the strings of a request."""
    try:
        selector = parse_label_selector(labels) if labels else EVERYTHING
    except SelectorError as error:
        raise refusals.bad_request(str(error)) from error
    terms = _parse_fields(fields)
    known = {"metadata.name", *(["metadata.namespace"] if kind.resource.namespaced else [])}
    for term in terms:
        if term.key not in known and term.key not in kind.rules.fields({"metadata": {}, "spec": {}, "status": {}}):
            resource = kind.resource
            group_version = f"{resource.group}/{resource.version}"
            raise refusals.bad_request(
                f'Unable to find "{group_version}, Resource={resource.plural}" that match label selector '
                f'"{labels}", field selector "{fields}": field label not supported: {term.key}'
            )
        if term.equal and term.key == "metadata.namespace" and namespace is None:
            namespace = term.value
    return Selection(kind, namespace, selector, terms)


def name_in_fields(text: str) -> str:
    """The one name that a field selector admits, or ""; authorization may be for that name only."""
    return next((t.value for t in _parse_fields(text) if t.equal and t.key == "metadata.name"), "")


def _parse_fields(text: str) -> tuple[FieldTerm, ...]:
    terms = []
    for part in filter(None, _COMMA.split(text)):
        term = _TERM.fullmatch(part)
        if term is None:
            raise refusals.bad_request(f"invalid selector: '{text}'; can't understand '{part}'")
        terms.append(FieldTerm(term[1].strip(), re.sub(r"\\(.)", r"\1", term[3]), term[2] != "!="))
    return tuple(terms)
