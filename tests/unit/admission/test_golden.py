"""Reference inputs with KubeVirt's own verdicts and defaults."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.reference import GOLDEN as CASES
from virtfleet.admission.review import complete, review
from virtfleet.installation import Installation

UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")

# Accepted by KubeVirt, refused here: docs/compatibility.md says why.
STRICTER = {"bad-memory-gt-limit"}


def load(path: Path) -> Any:
    return yaml.load(path.read_text(), Loader=yaml.CSafeLoader)


def plain(value: Any) -> Any:
    """Without nulls, every UUID the same."""
    if isinstance(value, dict):
        return {key: plain(child) for key, child in value.items() if child is not None}
    if isinstance(value, list):
        return [plain(child) for child in value]
    return UUID.sub("UUID", value.strip()) if isinstance(value, str) else value


@pytest.mark.parametrize("case", sorted(path.name for path in CASES.glob("*")) if CASES.is_dir() else [])
def test_verdict_and_defaults_are_kubevirts(case: str) -> None:
    directory = CASES / case
    wanted = json.loads((directory / "verdict.json").read_text())
    cluster = Installation(load(directory / "kubevirt.yaml"))
    completed, found = complete(load(directory / "input.yaml"), cluster)
    if found.allowed:
        found = review(completed, cluster)
    assert found.allowed == (wanted["allowed"] and case not in STRICTER), found.causes
    if any(wanted["fields"]):
        assert {cause.field for cause in found.causes} & set(wanted["fields"])
    if wanted["allowed"]:
        assert plain(completed["spec"]) == plain(load(directory / "vmi.yaml")["spec"])
