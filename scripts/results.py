"""Writes the table of docs/hypervisors.md of what guests of each hypervisor were seen to do: `make results`.

It comes from the reports of tests/vm/test_same.py and tests/xen, which `VIRTFLEET_RESULTS=docs/results` has them leave.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

DOCS = Path(__file__).resolve().parents[1] / "docs"
PAGE, REPORTS = DOCS / "hypervisors.md", DOCS / "results"
BEGIN, END = "<!-- from here on written by `make results` from docs/results -->", "<!-- up to here -->"


def generated(reports: list[dict[str, Any]]) -> str:
    """The generated part, without its marks."""
    titles = list(dict.fromkeys(title for report in reports for title in report["results"]))
    said: list[str] = []
    rows = [["a guest", *(report["hypervisor"] for report in reports)]]
    rows += [["---"] * len(rows[0]), ["seen with", *(report["versions"] for report in reports)]]
    for title in titles:
        rows.append([title, *(_cell(report["results"].get(title, "was not tried"), said) for report in reports)])
    rows.append(["resident memory of its processes, MiB", *(_resident(report["resident"]) for report in reports)])
    table = "\n".join("|" + "|".join(cell if cell == "---" else f" {cell} " for cell in row) + "|" for row in rows)
    notes = "\n".join(f"{number}. {reason}" for number, reason in enumerate(said, 1))
    return f"{table}\n\n{notes}\n" if notes else f"{table}\n"


def _cell(result: str, said: list[str]) -> str:
    """What came of a trial; a reason is told below the table, by its number."""
    if result == "passed":
        return result
    if result not in said:
        said.append(result)
    return f"{'failed' if result.startswith('failed') else 'no'} ({said.index(result) + 1})"


def _resident(kib: dict[str, int]) -> str:
    return ", ".join(f"{name} {size / 1024:.0f}" for name, size in sorted(kib.items()))


def written(page: str, reports: list[dict[str, Any]]) -> str:
    """A page with its generated part made anew."""
    before, _, rest = page.partition(BEGIN)
    return f"{before}{BEGIN}\n\n{generated(reports)}\n{END}{rest.partition(END)[2]}"


def reports() -> list[dict[str, Any]]:
    """All that there are, the default hypervisor's first."""
    found = [json.loads(path.read_text()) for path in sorted(REPORTS.glob("*.json"))]
    return sorted(found, key=lambda report: (report["hypervisor"] != "qemu-kvm", report["hypervisor"]))


if __name__ == "__main__":
    PAGE.write_text(written(PAGE.read_text(), reports()))
