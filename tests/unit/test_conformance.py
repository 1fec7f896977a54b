"""What is made of the reports of KubeVirt's suite: merged, judged, chosen from, and written down."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from conformance import __main__ as conformance
from conformance import nodes, page, report, storage, suite
from conformance.report import Reasons, Spec

TABLE: dict[str, list[dict[str, Any]]] = {
    "impossible": [{"labels": ["SRIOV"], "reason": "needs a card"}],
    "absent": [{"files": "pool_test", "reason": "there are no pools"}],
    "failing": [{"names": "reach .* name", "reason": "there is no DNS"}],
}
REASONS = Reasons.read(TABLE)


def entry(
    name: str, state: str, *labels: str, file: str = "vm_test.go", seconds: float = 1, message: str = ""
) -> dict[str, Any]:
    return {
        "ContainerHierarchyTexts": ["[sig] VMs"],
        "ContainerHierarchyLabels": [["sig-compute"]],
        "LeafNodeType": "It",
        "LeafNodeText": name,
        "LeafNodeLabels": list(labels),
        "LeafNodeLocation": {"FileName": f"/src/tests/{file}"},
        "State": state,
        "RunTime": seconds * 1e9,
        "Failure": {"Message": message},
    }


def run(*entries: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"SpecReports": [*entries, {"LeafNodeType": "BeforeSuite", "State": "passed"}]}]


def test_a_pass_counts_in_a_row_and_a_failure_ends_the_row() -> None:
    results: report.Results = {}
    passed, failed = run(entry("starts", "passed")), run(entry("starts", "failed", message="Expected\nno luck"))
    for _ in range(2):
        results = report.merged(results, passed)
    assert results["[sig] VMs starts"] == {"state": "passed", "seconds": 1, "passes": 2}
    results = report.merged(results, failed)
    assert results["[sig] VMs starts"] == {"state": "failed", "seconds": 1, "why": "no luck"}
    assert report.merged(results, passed)["[sig] VMs starts"]["passes"] == 1


def test_what_a_run_did_not_select_or_did_not_end_stays_as_it_was() -> None:
    before = report.merged({}, run(entry("starts", "passed")))
    for state in ("skipped", "interrupted", "aborted"):
        assert report.merged(before, run(entry("starts", state))) == before
    timed_out = entry("starts", "timedout", message="A suite timeout occurred")
    assert report.merged(before, run(timed_out)) == before


def test_a_spec_that_passed_counts_as_passed_and_the_rest_has_a_reason() -> None:
    entries = (
        entry("flies", "passed", "SRIOV"),
        entry("dives", "failed", "SRIOV", message="no card"),
        entry("scales", "failed", file="pool_test.go", message="refused"),
        entry("should reach it by name", "failed", message="no such host"),
        entry("breaks", "failed", message="boom"),
        entry("asks", "skipped", message="two nodes are needed"),
        entry("later", "pending"),
    )
    results = report.merged({}, run(*entries))
    every = report.specs(run(*entries, entry("new", "passed")))
    verdicts = {s: report.verdict(s, results, REASONS) for s in every}
    assert {s.name.removeprefix("[sig] VMs "): (v.state, v.reason) for s, v in verdicts.items()} == {
        "flies": ("passed", ""),
        "dives": ("skipped", "needs a card"),
        "scales": ("absent", "there are no pools"),
        "should reach it by name": ("failed", "there is no DNS"),
        "breaks": ("failed", "not looked into: boom"),
        "asks": ("skipped", "the suite skips it: two nodes are needed"),
        "later": ("skipped", "the suite itself leaves it out"),
        "new": ("not run", ""),
    }
    home = dict.fromkeys(verdicts, report.Verdict(report.NOT_RUN)) | {
        next(iter(verdicts)): report.Verdict(report.PASSED)
    }
    assert "| sig-compute | 8 | 1 | 2 | 1 | 1 | 3 | 25 % | 1 of 1 |" in page.page(verdicts, home)


def test_a_slice_has_the_quickest_reliable_specs_of_every_label_in_turn() -> None:
    def spec(name: str, *labels: str) -> Spec:
        return Spec(name, frozenset(labels), "a_test.go")

    every = [
        spec("a1", "a"),
        spec("a2", "a"),
        spec("a3", "a"),
        spec("b1", "b"),
        spec("once", "b"),
        spec("alone", "b", "Serial"),
    ]
    took = {"a1": 5, "a2": 1, "a3": 2, "b1": 9, "once": 1, "alone": 1}
    results = {n: {"state": "passed", "seconds": s, "passes": 1 if n == "once" else 2} for n, s in took.items()}
    assert [s.name for s in report.reliable(every, results, ("a", "b"), 14, 2)] == ["a2", "b1", "a3"]


@pytest.mark.parametrize(("state", "verdict"), [("passed", 0), ("failed", 1), ("skipped", 1)])
def test_a_slice_is_judged_by_the_specs_that_it_chose(
    state: str, verdict: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    entries = run(entry("starts", state), entry("is not ready to be run", "pending"))
    monkeypatch.setattr(suite, "run", lambda *_: entries)
    every = [Spec(f"[sig] VMs {name}", frozenset({page.LABELS[0]}), "a_test.go") for name in ("starts", "is not ready")]
    results = {"[sig] VMs starts": {"state": "passed", "seconds": 1, "passes": 2}}
    assert conformance._slice(every, results, 1) == verdict


def test_the_runner_is_asked_for_exactly_these() -> None:
    chosen = re.compile(report.focus(["VMs [x] start(s)"]))
    assert chosen.search("KubeVirt Tests Suite VMs [x] start(s)")
    assert not chosen.search("KubeVirt Tests Suite VMs [x] start(s) twice")


def test_names_of_specs_are_no_markup() -> None:
    odd = Spec("a*b*|<i>`c`_d_", frozenset({"conformance"}), "a_test.go")
    text = page.page({odd: report.Verdict("failed", "x|y")}, {})
    assert "a\\*b\\*|&lt;i>'c'\\_d\\_" in text and "| x\\|y | 1 |" in text


def test_the_table_of_reasons_can_be_read() -> None:
    table = Path(report.__file__).with_name("reasons.yaml").read_text()
    reasons = Reasons.read(yaml.safe_load(table))
    assert all(
        r.reason and (r.labels or r.names or r.files) for r in (*reasons.impossible, *reasons.absent, *reasons.failing)
    )


class Cluster:
    """A kubectl whose cluster has these claims, storage classes and nodes, and keeps what is applied."""

    def __init__(self, **rows: str) -> None:
        self.rows = rows
        self.applied: list[dict[str, Any]] = []
        self.asked: list[tuple[str, ...]] = []

    def __call__(self, *words: str, check: bool = True, given: str = "") -> subprocess.CompletedProcess[str]:
        self.asked.append(words)
        if given:
            self.applied.append(json.loads(given))
        of_role = any(word.startswith("node-role") for word in words[:4])
        shown = "" if of_role or words[0] != "get" else self.rows.get(words[1], "")
        return subprocess.CompletedProcess(words, 0, shown, "")


def test_claims_of_every_class_of_ours_get_a_volume_when_their_class_says_so(tmp_path: Path) -> None:
    ours = storage.PROVISIONER
    classes = f"local {ours} Immediate\nlocal-wffc7 {ours} WaitForFirstConsumer\nmanual other Immediate\n"
    waits = "ns waits u2 local-wffc7 <none> 2Gi ReadWriteOnce"
    claims = f"ns now u1 local <none> 1Gi ReadWriteOnce <none>\nns no u3 manual <none> 1Gi ReadWriteOnce n1\n{waits}"
    cluster, made = Cluster(pvc=f"{claims} <none>\n", storageclass=classes), set[str]()
    storage._serve_once(cluster, tmp_path, made)
    assert [v["spec"]["claimRef"]["name"] for v in cluster.applied] == ["now"]
    cluster.rows["pvc"] = f"{waits} kn2\nns bound u4 local some-volume 1Gi ReadWriteOnce <none>\n"
    storage._serve_once(cluster, tmp_path, made)
    volume = cluster.applied[-1]["spec"]
    assert (volume["claimRef"]["uid"], volume["storageClassName"], volume["capacity"]) == (
        *("u2", "local-wffc7"),
        {"storage": "2Gi"},
    )
    assert made == {"u1", "u2"}
    before = len(cluster.asked)
    storage._serve_once(cluster, tmp_path, made)
    assert len(cluster.asked) == before + 1, "classes are looked at for new claims only"


def test_nodes_get_images_and_a_control_plane_that_goes_again(tmp_path: Path) -> None:
    disk = tmp_path / "disk.raw"
    disk.write_bytes(b"guest")
    cluster = Cluster(nodes="node/kn1\nnode/kn2\n")
    with nodes.prepared(cluster, "ft/vm-killer:devel", disk):
        assert ("label", "node", "kn1", "node-role.kubernetes.io/control-plane=") in cluster.asked
    assert cluster.asked[-1] == ("label", "node", "kn1", "node-role.kubernetes.io/control-plane-")
    places = tmp_path / "images", tmp_path / "local"
    for _ in range(2):  # a second run leaves what guests have written
        subprocess.run(["sh", "-c", nodes.script(str(disk), *map(str, places))], check=True)
        image = places[0] / "alpine2" / "disk.img"
        assert image.open("rb").read(5) == b"guest" and image.stat().st_size == 1 << 30
        disk.write_bytes(b"other")
    assert (places[0] / "alpine-nopriv1" / "disk.img").stat().st_mode & 0o777 == 0o640
    assert (places[1] / "hotplug-test" / "disk.img").stat().st_size == 1 << 30
    assert (places[0] / "mount_hp" / "test").stat().st_mode & 0o777 == 0o777
