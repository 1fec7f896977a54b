"""What the suite's runner reported, kept for each spec: which apply, which are reliable, and what became of them.

Pure. A spec is known by its full text. What is kept of one is small, so that a run of a few adds to what earlier runs
have shown.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

PASSED, FAILED, SKIPPED, NOT_RUN, ABSENT = "passed", "failed", "skipped", "not run", "absent"
_STATES = {"passed": PASSED, "skipped": SKIPPED, "pending": SKIPPED}
_RUNNERS = {"interrupted", "aborted", "timedout"}  # it was ended from outside, which says nothing of the spec
_WHY = 160
_EMPTY = re.compile(r"Timed out after|Expected|Unexpected error|to |[<{]|The function passed to Eventually")
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")


@dataclass(frozen=True)
class Spec:
    """One spec of the suite."""

    name: str
    labels: frozenset[str]
    file: str
    pending: bool = False


@dataclass(frozen=True)
class Rule:
    """Specs that have one reason in common, by label, by a part of their name, or by the file that they are in."""

    reason: str
    labels: frozenset[str] = frozenset()
    names: re.Pattern[str] | None = None
    files: re.Pattern[str] | None = None

    def covers(self, spec: Spec) -> bool:
        return bool(
            self.labels & spec.labels
            or (self.names and self.names.search(spec.name))
            or (self.files and self.files.search(spec.file))
        )


@dataclass(frozen=True)
class Reasons:
    """The table of reasons: what cannot be had here, what VirtFleet has not built, and why the rest fails."""

    impossible: Sequence[Rule]
    absent: Sequence[Rule]
    failing: Sequence[Rule]

    @staticmethod
    def read(table: Mapping[str, Sequence[Mapping[str, Any]]]) -> Reasons:
        return Reasons(*(rules(table[key]) for key in ("impossible", "absent", "failing")))

    def apply_to(self, spec: Spec) -> bool:
        """Whether a run of the spec can tell anything."""
        return not spec.pending and not any(rule.covers(spec) for rule in (*self.impossible, *self.absent))


@dataclass(frozen=True)
class Verdict:
    """What became of a spec, with the reason where it did not pass."""

    state: str
    reason: str = ""


Results = dict[str, dict[str, Any]]


def specs(report: Sequence[Mapping[str, Any]]) -> list[Spec]:
    """Those that a run selected, in the order of their names."""
    found = [
        Spec(
            _name(entry), _labels(entry), entry["LeafNodeLocation"]["FileName"].partition("/tests/")[2], _pending(entry)
        )
        for entry in _entries(report)
    ]
    return sorted(found, key=lambda spec: spec.name)


def merged(results: Results, report: Sequence[Mapping[str, Any]]) -> Results:
    """Results with those of one more run. A spec that a run did not begin, or did not end, stays as it was."""
    new = dict(results)
    for entry in _entries(report):
        if _unsaid(entry):
            continue
        name, state = _name(entry), _STATES.get(entry["State"], FAILED)
        before = results.get(name, {})
        row: dict[str, Any] = {"state": state, "seconds": round(entry["RunTime"] / 1e9)}
        if state == PASSED:
            row["passes"] = before.get("passes", 0) + 1  # in a row
        else:
            row["why"] = why(entry.get("Failure") or {})
        new[name] = row
    return dict(sorted(new.items()))


def why(failure: Mapping[str, Any]) -> str:
    """The first line of a failure that says something."""
    lines = (line.strip() for line in _COLOURS.sub("", failure.get("Message", "")).splitlines())
    said = next((line for line in lines if line and not _EMPTY.match(line)), "")
    return (said or failure.get("Message", "").strip().partition("\n")[0])[:_WHY]


def rules(listed: Iterable[Mapping[str, Any]]) -> list[Rule]:
    def pattern(rule: Mapping[str, Any], key: str) -> re.Pattern[str] | None:
        return re.compile(rule[key]) if key in rule else None

    return [
        Rule(rule["reason"], frozenset(rule.get("labels", ())), pattern(rule, "names"), pattern(rule, "files"))
        for rule in listed
    ]


def verdict(spec: Spec, results: Results, reasons: Reasons) -> Verdict:
    """What a run has shown goes before what the tables say, where it passed."""
    row = results.get(spec.name, {"state": NOT_RUN})
    if row["state"] == PASSED:
        return Verdict(PASSED)
    for state, table in ((SKIPPED, reasons.impossible), (ABSENT, reasons.absent)):
        if reason := _reason(spec, table):
            return Verdict(state, reason)
    if spec.pending:
        return Verdict(SKIPPED, "the suite itself leaves it out")
    if row["state"] == SKIPPED:
        return Verdict(SKIPPED, f"the suite skips it: {row['why']}")
    if row["state"] == FAILED:
        return Verdict(FAILED, _reason(spec, reasons.failing) or f"not looked into: {row['why'] or 'no message'}")
    return Verdict(NOT_RUN)


def _reason(spec: Spec, table: Sequence[Rule]) -> str:
    return next((rule.reason for rule in table if rule.covers(spec)), "")


def reliable(every: Iterable[Spec], results: Results, labels: Iterable[str], seconds: float, times: int) -> list[Spec]:
    """The quickest specs of all labels in turn that have passed so many times in a row, as many as fit into the time.

    Serial specs are left out: they change the installation for everybody, and take turns.
    """

    def worth(spec: Spec) -> bool:
        row = results.get(spec.name, {})
        return bool(row.get("passes", 0) >= times and "Serial" not in spec.labels)

    quickest = sorted((s for s in every if worth(s)), key=lambda s: (results[s.name]["seconds"], s.name))
    queues = [[spec for spec in quickest if label in spec.labels] for label in labels]
    chosen: dict[str, Spec] = {}
    while any(queues):
        for queue in queues:
            while queue and queue[0].name in chosen:
                queue.pop(0)
            if queue and results[queue[0].name]["seconds"] > seconds:
                queue.clear()  # the others take no less
            if queue:
                spec = queue.pop(0)
                seconds -= results[spec.name]["seconds"]
                chosen[spec.name] = spec
    return list(chosen.values())


def focus(names: Iterable[str]) -> str:
    """The runner's expression for exactly these specs; what it compares begins with the name of the suite."""
    return f"^KubeVirt Tests Suite ({'|'.join(map(re.escape, names))})$"


def _entries(report: Sequence[Mapping[str, Any]]) -> Iterable[Mapping[str, Any]]:
    return (entry for suite in report for entry in suite["SpecReports"] or () if entry["LeafNodeType"] == "It")


def _unsaid(entry: Mapping[str, Any]) -> bool:
    """Not selected, which is reported as skipped and without a reason, or ended from outside."""
    message = (entry.get("Failure") or {}).get("Message", "")
    return entry["State"] in _RUNNERS or (entry["State"] == "skipped" and not message)


def _pending(entry: Mapping[str, Any]) -> bool:
    return bool(entry["State"] == "pending")


def _name(entry: Mapping[str, Any]) -> str:
    return " ".join((*(entry["ContainerHierarchyTexts"] or ()), entry["LeafNodeText"]))


def _labels(entry: Mapping[str, Any]) -> frozenset[str]:
    of_containers = (label for labels in entry["ContainerHierarchyLabels"] or () for label in labels or ())
    return frozenset((*of_containers, *(entry["LeafNodeLabels"] or ())))
