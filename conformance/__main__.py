"""`python -m conformance`: KubeVirt's functional suite on the cluster that KUBECONFIG names, and docs/conformance.md.

That cluster is a real Kubernetes, or with `--local` the local home, whose results are kept beside.
Without options all that applies is run, a few specs at a time; each time, what came of them is written down, so a run
that was ended goes on with `--new`. A slice runs a few minutes and changes nothing: it passes or it does not.
"""

from __future__ import annotations

import argparse
import itertools
import json
import re
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import yaml

from conformance import page, report, suite

HERE = Path(__file__).resolve().parent
RESULTS, REASONS = HERE / "results.json", HERE / "reasons.yaml"
RESULTS_LOCAL = HERE / "results-local.json"
PAGE = HERE.parent / "docs" / "conformance.md"
CHUNK = 16
EACH = 400  # seconds that a spec may take on a slow machine
SLICE = 240  # seconds of specs of a slice for each process, by what they took before
SLICE_LIMIT = 360
TIMES = 2  # a spec of the slice has passed as often, and not failed since


def main() -> None:
    options = _options()
    kept = RESULTS_LOCAL if options.local else RESULTS
    results = _read(kept)
    reasons = report.Reasons.read(yaml.safe_load(REASONS.read_text()))
    try:
        suite.require()
        every = suite.every()
        for file in options.merge:
            results = report.merged(results, json.loads(Path(file).read_text()))
        if options.page or options.merge:
            _write(every, results, reasons, kept)
            return
        if options.local:
            suite.bring_guests_home(options.local)
        else:
            suite.bring_images(not options.loaded)
        with suite.installed():
            if options.slice:
                sys.exit(_slice(every, results, options.processes))
            wanted = [s for s in every if _selected(s, options) and reasons.apply_to(s)]
            if options.new:
                wanted = [s for s in wanted if results.get(s.name, {}).get("state") != report.PASSED]
            for chunk in _chunks(wanted):
                results = report.merged(results, suite.run("chunk", chunk, options.processes, EACH * len(chunk)))
                _write(every, results, reasons, kept)
    except suite.Trouble as trouble:
        sys.exit(f"conformance: {trouble}")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m conformance", description=__doc__.splitlines()[0])
    parser.add_argument("--label", help="only specs with this label")
    parser.add_argument("--names", metavar="REGEX", default="", help="only specs whose names it is found in")
    parser.add_argument("--new", action="store_true", help="only specs that have not passed yet")
    parser.add_argument(
        "--slice", action="store_true", help="a few quick specs of every label; the verdict is the answer"
    )
    parser.add_argument("--loaded", action="store_true", help="the nodes have VirtFleet's images of this tree already")
    parser.add_argument("--local", metavar="DIRECTORY", help="KUBECONFIG is that of the local cluster with this data")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--page", action="store_true", help="run nothing: write the page from what is known")
    parser.add_argument("--merge", nargs="+", default=[], metavar="REPORT", help="add these reports of the runner")
    return parser.parse_args()


def _selected(spec: report.Spec, options: argparse.Namespace) -> bool:
    return (not options.label or options.label in spec.labels) and bool(re.search(options.names, spec.name))


def _chunks(wanted: Sequence[report.Spec]) -> Iterator[list[report.Spec]]:
    every = iter(wanted)
    while chunk := list(itertools.islice(every, CHUNK)):
        yield chunk


def _slice(every: Sequence[report.Spec], results: report.Results, processes: int) -> int:
    chosen = report.reliable(every, results, page.LABELS, SLICE * processes, TIMES)
    if not chosen:
        raise suite.Trouble(f"no spec has passed {TIMES} times in a row yet; run all of the suite first")
    print(f"{len(chosen)} specs of {len({s.file for s in chosen})} files", flush=True)
    began = time.monotonic()
    told = report.merged({}, suite.run("slice", chosen, processes, SLICE_LIMIT))
    found = {spec.name: told[spec.name] for spec in chosen if spec.name in told}  # pending ones are in every report
    late = [s.name for s in chosen if s.name not in found]
    wrong = {name: row["why"] for name, row in found.items() if row["state"] != report.PASSED}
    for name, why in wrong.items():
        print(f"  {name}\n    {why}")
    passed = len(found) - len(wrong)
    took = time.monotonic() - began
    print(f"conformance: {passed} passed, {len(wrong)} failed, {len(late)} not reached in {took:.0f} s")
    return 1 if wrong or not passed else 0


def _read(file: Path) -> report.Results:
    results: report.Results = json.loads(file.read_text()) if file.exists() else {}
    return results


def _write(
    every: Sequence[report.Spec], results: report.Results, reasons: report.Reasons, file: Path = RESULTS
) -> None:
    names = {spec.name for spec in every}
    lines = (f"{json.dumps(name)}: {json.dumps(row)}" for name, row in sorted(results.items()) if name in names)
    file.write_text("{\n" + ",\n".join(lines) + "\n}\n")
    homes = [_read(of) for of in (RESULTS, RESULTS_LOCAL)]
    PAGE.write_text(page.page(*({spec: report.verdict(spec, shown, reasons) for spec in every} for shown in homes)))


if __name__ == "__main__":
    main()
