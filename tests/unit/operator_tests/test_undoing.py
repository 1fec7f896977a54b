"""An older operator that cannot read what a newer one stored changes nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from virtfleet.api import crds
from virtfleet.operator import apply, manifest

VERSIONS = Path(__file__).parents[2] / "versions"


def stored(*versions: str) -> dict[str, Any]:
    [definition] = [d for d in crds.definitions() if d["metadata"]["name"] == "virtualmachines.kubevirt.io"]
    return {**definition, "status": {"storedVersions": [*versions]}}


def test_what_is_stored_in_a_version_that_is_served_can_be_taken_over() -> None:
    apply.check_stored([stored("v1")], crds.definitions())
    apply.check_stored([stored()], crds.definitions())
    apply.check_stored([stored("v9")], [])  # a kind that this version does not install is none of its business


def test_what_is_stored_in_an_unknown_version_cannot_and_is_named() -> None:
    with pytest.raises(apply.CannotUndo, match=r"virtualmachines.kubevirt.io \(v9\).*nothing was changed"):
        apply.check_stored([stored("v1", "v9")], crds.definitions())


def test_both_ways_between_the_version_before_and_this_one_nothing_is_stored_that_the_other_cannot_read() -> None:
    """Of the definition that comes with the manifest; the operator makes the others."""
    before = [d for d in yaml.safe_load_all((VERSIONS / "operator-0.1.0.yaml").read_text()) if d]
    for old, new in ((before, manifest.objects()), (manifest.objects(), before)):
        [held] = [d for d in old if d["kind"] == "CustomResourceDefinition"]
        written = [v["name"] for v in held["spec"]["versions"] if v["storage"]]
        apply.check_stored(
            [{**held, "status": {"storedVersions": written}}], [d for d in new if d["kind"] == held["kind"]]
        )
        [other] = [d for d in new if d["kind"] == "CustomResourceDefinition"]
        assert {v["name"] for v in held["spec"]["versions"]} == {v["name"] for v in other["spec"]["versions"]}
    names = {(d["kind"], d["metadata"]["name"]) for d in before}
    assert names <= {(d["kind"], d["metadata"]["name"]) for d in manifest.objects()}, "an upgrade leaves nothing behind"
