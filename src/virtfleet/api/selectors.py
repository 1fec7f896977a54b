"""Label selectors, node selectors, field selectors and tolerations with Kubernetes' semantics.

One implementation for everything that selects: lists and watches of the local API server, its scheduler and workload
controllers, pools that match VMIs by `vmLabels`, and the controllers.

Two rules that are easy to get wrong, and that the rest of VirtFleet leans on:
- `NotIn` and `DoesNotExist` also match where the key is missing.
- Node selector terms are ORed, the expressions inside one are ANDed, and an empty term matches nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

_NAME = re.compile(r"([A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)?")
_PREFIX = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")


class SelectorError(ValueError):
    """A selector that cannot be read; the message says which part and why."""


@dataclass(frozen=True, slots=True)
class Requirement:
    """One condition on one key. `op` is In, NotIn, Exists, DoesNotExist, Gt or Lt."""

    key: str
    op: str
    values: tuple[str, ...] = ()

    def matches(self, labels: Mapping[str, str]) -> bool:
        present = self.key in labels
        match self.op:
            case "In":
                return present and labels[self.key] in self.values
            case "NotIn":
                return not present or labels[self.key] not in self.values
            case "Exists":
                return present
            case "DoesNotExist":
                return not present
            case "Gt" | "Lt":
                try:
                    have, want = int(labels[self.key]), int(self.values[0])
                except (KeyError, IndexError, ValueError):
                    return False
                return have > want if self.op == "Gt" else have < want
            case _:
                raise SelectorError(f"{self.op!r} is not a valid selector operator")

    def __str__(self) -> str:
        if self.op == "In" and len(self.values) == 1:
            return f"{self.key}={self.values[0]}"
        listed = f"({','.join(sorted(self.values))})"
        forms = {"In": f"{self.key} in {listed}", "NotIn": f"{self.key} notin {listed}", "DoesNotExist": f"!{self.key}"}
        return forms.get(self.op, self.key)


@dataclass(frozen=True, slots=True)
class Selector:
    """Requirements that must all hold. Without requirements it matches everything."""

    requirements: tuple[Requirement, ...] = ()

    def matches(self, labels: Mapping[str, str] | None) -> bool:
        labels = labels or {}
        return all(r.matches(labels) for r in self.requirements)

    def __bool__(self) -> bool:
        return bool(self.requirements)

    def __str__(self) -> str:
        """The string form, which `parse_label_selector` reads."""
        return ",".join(map(str, self.requirements))


EVERYTHING = Selector()


def label_key_error(key: str) -> str | None:
    """Why `key` cannot be a label key, or None."""
    prefix, slash, name = key.rpartition("/")
    if slash and (not prefix or len(prefix) > 253 or not _PREFIX.fullmatch(prefix)):
        return "the part before the slash must be a DNS subdomain of at most 253 characters"
    if not name or len(name) > 63 or not _NAME.fullmatch(name):
        return "the name must be 1 to 63 letters, digits, '-', '_' or '.', and start and end with a letter or digit"
    return None


def label_value_error(value: str) -> str | None:
    """Why `value` cannot be a label value, or None."""
    if len(value) > 63 or not _NAME.fullmatch(value):
        return "a value must be at most 63 letters, digits, '-', '_' or '.', and start and end with a letter or digit"
    return None


def from_label_selector(selector: Mapping[str, Any] | None) -> Selector:
    """From a LabelSelector object (matchLabels and matchExpressions). An empty one matches everything; None nothing."""
    if selector is None:
        return NOTHING
    wanted = [Requirement(k, "In", (v,)) for k, v in sorted((selector.get("matchLabels") or {}).items())]
    wanted += [_expression(e) for e in selector.get("matchExpressions") or ()]
    return Selector(tuple(wanted))


def _expression(e: Mapping[str, Any]) -> Requirement:
    op, values = e.get("operator", ""), tuple(e.get("values") or ())
    if op in ("In", "NotIn") and not values:
        raise SelectorError(f"values of {e.get('key')!r} must not be empty when the operator is {op}")
    if op in ("Exists", "DoesNotExist") and values:
        raise SelectorError(f"values of {e.get('key')!r} must be empty when the operator is {op}")
    if op not in ("In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt"):
        raise SelectorError(f"{op!r} is not a valid selector operator")
    return Requirement(e["key"], op, values)


# Matches no labels at all: a key cannot both exist and not exist.
NOTHING = Selector((Requirement("", "Exists"), Requirement("", "DoesNotExist")))

_WORD = r"[^\s!=(),<>]"
_REQUIREMENT = re.compile(
    rf"(?:!\s?(?P<absent>{_WORD}+)"
    rf"|(?P<key>{_WORD}+)"
    rf"(?:\s?(?P<op>==?|!=|<|>)\s?(?P<value>{_WORD}*)|\s(?P<set>in|notin)\s?\((?P<values>[^()!=<>]*)\))?)"
    r"\s?(?:,\s?(?=\S)|$)"
)
_OPERATORS = {"=": "In", "==": "In", "in": "In", "!=": "NotIn", "notin": "NotIn", ">": "Gt", "<": "Lt", None: "Exists"}


def parse_label_selector(text: str) -> Selector:
    """From the string form: `a=b,c!=d,e in (f,g),!h,i>1`."""
    wanted: list[Requirement] = []
    at, text = 0, " ".join(text.split())
    while at < len(text):
        match = _REQUIREMENT.match(text, at)
        if not match:
            raise SelectorError(
                f"unable to parse requirement: {text[at:]!r} is not like a=b, a!=b, a in (b,c), a or !a"
            )
        at = match.end()
        key = match["absent"] or match["key"]
        op = "DoesNotExist" if match["absent"] else _OPERATORS[match["op"] or match["set"]]
        if match["set"]:
            values = sorted({value.strip() for value in match["values"].split(",")})
        else:
            values = [match["value"]] if match["op"] else []
        if why := label_key_error(key):
            raise SelectorError(f"unable to parse requirement: {key!r} is not a label key: {why}")
        for value in values:
            if op in ("Gt", "Lt") and not value.lstrip("-").isdigit():
                raise SelectorError(f"for 'Gt', 'Lt' operators, the value must be an integer, not {value!r}")
            if op in ("In", "NotIn") and (why := label_value_error(value)):
                raise SelectorError(f"unable to parse requirement: {value!r} is not a label value: {why}")
        wanted.append(Requirement(key, op, tuple(values)))
    return Selector(tuple(wanted))


def node_term_matches(term: Mapping[str, Any], labels: Mapping[str, str], name: str) -> bool:
    """Whether one nodeSelectorTerm admits a node. A term without conditions admits none."""
    expressions, fields = term.get("matchExpressions") or (), term.get("matchFields") or ()
    if not expressions and not fields:
        return False
    return all(_expression(e).matches(labels) for e in expressions) and all(
        _expression(f).matches({"metadata.name": name}) for f in fields
    )


def node_selector_matches(selector: Mapping[str, Any] | None, labels: Mapping[str, str], name: str) -> bool:
    """Whether a required node affinity admits a node. None admits every node; a list without terms none."""
    if selector is None:
        return True
    return any(node_term_matches(t, labels, name) for t in selector.get("nodeSelectorTerms") or ())


def tolerates(tolerations: Iterable[Mapping[str, Any]], taint: Mapping[str, Any]) -> bool:
    """Whether any toleration covers the taint."""
    for t in tolerations:
        if t.get("effect") and t["effect"] != taint.get("effect"):
            continue
        if t.get("key") and t["key"] != taint.get("key"):
            continue
        op = t.get("operator") or "Equal"
        if op == "Exists" or (op == "Equal" and t.get("key") and (t.get("value") or "") == (taint.get("value") or "")):
            return True
    return False
