"""The table of docs/hypervisors.md says what reports of test runs say, of the trials and the registry as they are."""

from __future__ import annotations

import pytest

from scripts import results
from virtfleet.hypervisors import registry
from virtfleet.hypervisors.base import Evidence
from vm import same

TRIALS = {trial.title: trial for trials in (same.FIRST, same.PAUSED, same.KILLED, same.LEFT) for trial in trials}
REPORTS = {report["hypervisor"]: report for report in results.reports()}


def test_the_table_is_written_from_the_reports() -> None:
    page = results.PAGE.read_text()
    assert results.written(page, list(results.reports())) == page, "run scripts/results.py"


def test_every_hypervisor_of_which_guests_were_seen_has_a_report() -> None:
    seen = [name for name in registry.names() if registry.get(name).evidence is Evidence.GUESTS]
    assert sorted(REPORTS) == sorted(seen)


@pytest.mark.parametrize("name", sorted(REPORTS))
def test_a_report_has_passed_all_trials_that_the_registry_chooses(name: str) -> None:
    found = REPORTS[name]["results"]
    assert found.keys() == TRIALS.keys(), "trials have changed: run `make results`"
    for title, trial in TRIALS.items():
        assert found[title] == (same.lacking(registry.get(name), trial.needs) or same.PASSED), title
