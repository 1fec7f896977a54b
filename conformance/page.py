"""docs/conformance.md, from what runs have shown and from the table of reasons. Pure."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence

from conformance.report import ABSENT, FAILED, NOT_RUN, PASSED, SKIPPED, Spec, Verdict

LABELS = (
    *("conformance", "sig-compute", "sig-compute-migrations", "sig-compute-instancetype", "sig-network"),
    *("sig-storage", "sig-operator", "sig-monitoring", "sig-performance"),
)
_ALL = "all"
_SHOWN = (PASSED, FAILED, NOT_RUN, ABSENT, SKIPPED)
_INTRODUCTION = """# KubeVirt's own tests

KubeVirt's functional suite is the test of VirtFleet that we did not write. `make conformance` runs it unmodified on the
Kubernetes cluster that KUBECONFIG names and writes this page: nothing on it is written by hand. The guests are
stand-ins of the same names and logins, with the programs that specs call in them: Debian's, or small scripts that do
the same as far as specs look. So a pass proves the product and not a distribution.

What fails has its reason below, and what was not run says so. *Not applicable* is what this kind of machine or this
installation cannot have, by the table of reasons in `conformance/reasons.yaml` or by the suite's own word, and *not
built* what VirtFleet refuses or warns of ([compatibility.md](compatibility.md)); neither is run. A spec that passed
counts as passed, whatever the table says. What applies is what passed, failed and was not run. The last column is
what passed of what was run on one machine with `virtfleet up`, which has of Kubernetes what VMs need.

    make conformance                    # all that applies, which takes hours; what is known grows as it goes
    make conformance LABEL=sig-network  # the specs of one label; NEW=1: those that have not passed yet
    make conformance CONFORMANCE_ARGS="--local DIRECTORY"   # in the local home, with `virtfleet up --data DIRECTORY`
    make conformance SLICE=1            # minutes: the quickest specs that passed twice in a row; a verdict, no page

It builds VirtFleet's images, brings them and the guests to the nodes (VIRTFLEET_LOAD, see [install.md](install.md)),
and installs VirtFleet, unless the cluster has it. The suite is told of a storage class `local`, for volumes with file
systems and wherever it wants them made as claims ask (its "CSI" class). Where there is none, it is made, as the
default, and claims get directories of this machine, which helps where the nodes share its files. Nodes get the disk
images of their own that specs look for, and one is labelled as the control plane's, where none is. FUNCTEST is the
directory with the suite (`functest.xz`) and its runner (`ginkgo.xz`); `guests/build` there makes the guests, to which
`conformance/guests.py` adds those programs.
"""


def page(verdicts: Mapping[Spec, Verdict], local: Mapping[Spec, Verdict]) -> str:
    """`local` are those of the local home."""
    parts = (
        _INTRODUCTION,
        _table(
            (
                "label",
                "selected",
                "passed",
                "failed",
                "not run",
                "not built",
                "not applicable",
                "passed of what applies",
                "in the local home",
            ),
            (_row(label, verdicts, local) for label in (*LABELS, _ALL)),
        ),
        "## What fails, and why\n\n" + _reasons(v for v in verdicts.items() if v[1].state == FAILED),
        "## What is not built\n\n" + _reasons(v for v in verdicts.items() if v[1].state == ABSENT),
        "## What does not apply, and why\n\n" + _reasons(v for v in verdicts.items() if v[1].state == SKIPPED),
        "## Every spec that failed\n\n" + _named(verdicts),
    )
    return "\n".join(part if part.endswith("\n") else f"{part}\n" for part in parts)


def _row(label: str, verdicts: Mapping[Spec, Verdict], local: Mapping[Spec, Verdict]) -> Sequence[str]:
    states, home = (
        Counter(v.state for spec, v in of.items() if label in (*spec.labels, _ALL)) for of in (verdicts, local)
    )
    applies = states[PASSED] + states[FAILED] + states[NOT_RUN]
    share = f"{100 * states[PASSED] // applies} %" if applies else "–"
    ran = home[PASSED] + home[FAILED]
    counts = (str(n) for n in (states.total(), *(states[s] for s in _SHOWN)))
    return (label, *counts, share, f"{home[PASSED]} of {ran}" if ran else "–")


def _reasons(found: Iterable[tuple[Spec, Verdict]]) -> str:
    by_reason = Counter(verdict.reason for _, verdict in found)
    if not by_reason:
        return "Nothing.\n"
    ordered = sorted(by_reason.items(), key=lambda item: (-item[1], item[0]))
    return _table(("reason", "specs"), ((_cell(reason), str(count)) for reason, count in ordered))


def _named(verdicts: Mapping[Spec, Verdict]) -> str:
    by_file: dict[str, list[str]] = defaultdict(list)
    for spec, found in verdicts.items():
        if found.state == FAILED:
            by_file[spec.file].append(spec.name)
    lines = (f"- `{file}`\n" + "".join(f"  - {_plain(n)}\n" for n in names) for file, names in sorted(by_file.items()))
    return "".join(lines) or "None.\n"


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = (head, ["---"] * len(head), *rows)
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _cell(text: str) -> str:
    return _plain(text).replace("|", "\\|")


def _plain(text: str) -> str:
    """Names and messages are the suite's: nothing in them is markup."""
    return text.replace("\\", "\\\\").replace("<", "&lt;").replace("*", "\\*").replace("`", "'").replace("_", "\\_")
