"""What `virtfleet demo` makes of the objects that it looks at, and what it tells people."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from virtfleet.cli.home import demo
from virtfleet.cli.home.demo import Row, describe
from virtfleet.cli.output import Progress

POD = {
    "metadata": {
        "labels": {"kubevirt.io/handler-pool": "megaslop"},
        "annotations": {"virtfleet.io/hypervisor": "qemu-kvm"},
    },
    "spec": {"containers": [{"name": "compute", "image": "virtfleet/virt-launcher:megaslop"}]},
}
UP = Row("slopped", "megaslop", "qemu-kvm", "i", "c", "Running", "10.0.0.9", "virtfleet-guest ready name=slopped")


def vmi(**status: Any) -> dict[str, Any]:
    return {"metadata": {"name": "slopped"}, "status": status}


def test_a_row_tells_pool_hypervisor_image_node_and_address() -> None:
    running = vmi(phase="Running", nodeName="node-c", interfaces=[{"ipAddress": "10.0.0.9"}])
    row = describe(running, POD, "virtfleet-guest ready name=slopped")
    expected = ["slopped", "megaslop", "qemu-kvm", "virtfleet/virt-launcher:megaslop", "node-c", "Running", "10.0.0.9"]
    assert row.cells == expected
    assert row.done and not row.trouble


def test_a_vm_without_a_pod_or_a_word_from_its_guest_is_not_up_yet() -> None:
    assert describe(vmi(phase="Scheduling"), None).cells == ["slopped", "", "", "", "", "Scheduling", ""]
    assert not describe(vmi(phase="Running"), POD).done


def test_what_keeps_a_vm_from_running_is_told_and_what_it_cannot_do_is_not() -> None:
    conditions = [
        {"type": "LiveMigratable", "status": "False", "message": "cannot move"},
        {"type": "Synchronized", "status": "False", "message": "no such disk"},
    ]
    assert describe(vmi(conditions=conditions), None).trouble == "no such disk"


def test_only_news_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    progress = Progress()
    for rows in ([Row("slopped", phase="Scheduled", node="node-c")],) * 2 + ([UP],):
        demo.tell(progress, rows)
    told = [line.partition("s  ")[2] for line in capsys.readouterr().err.splitlines()]
    assert told == ["slopped is Scheduled on node-c", "slopped has booted on c"]


@pytest.fixture
def cluster(tmp_path: Path) -> Path:
    """The directory of a cluster that nobody asks."""
    user = {"name": "u", "user": {"token": "t"}}
    server = {"name": "c", "cluster": {"server": "http://127.0.0.1:1"}}
    context = {"name": "x", "context": {"cluster": "c", "user": "u"}}
    content = {"current-context": "x", "users": [user], "clusters": [server], "contexts": [context]}
    (tmp_path / "kubeconfig").write_text(json.dumps(content))
    return tmp_path


def run(cluster: Path, monkeypatch: pytest.MonkeyPatch, rows: list[Row], *options: str) -> Any:
    async def found(*_: object) -> list[Row]:
        return rows

    monkeypatch.setattr(demo, "_run", found)
    return CliRunner().invoke(demo.demo, ["--data", str(cluster), *options])


def test_it_ends_with_a_table_the_last_words_of_each_guest_and_how_to_go_on(
    cluster: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = run(cluster, monkeypatch, [UP])
    assert done.exit_code == 0
    assert done.stdout.startswith("VM        POOL       HYPERVISOR   IMAGE   NODE   PHASE     ADDRESS\n")
    assert "slopped   virtfleet-guest ready name=slopped" in done.stdout
    for command in ("export KUBECONFIG=", "kubectl get vm,vmi", "virtfleet console slopped", "virtfleet down"):
        assert command in done.stdout


def test_a_vm_that_does_not_come_up_is_named_with_the_reason(cluster: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    late = Row("late", phase="Scheduling", trouble="no node has a MegaSlop-9000")
    done = run(cluster, monkeypatch, [UP, late], "-o", "json")
    assert done.exit_code == 1
    assert "late does not run: no node has a MegaSlop-9000" in done.stderr
    assert [vm["booted"] for vm in json.loads(done.stdout)["vms"]] == [True, False]


def test_without_a_cluster_it_says_how_to_start_one(tmp_path: Path) -> None:
    done = CliRunner().invoke(demo.demo, ["--data", str(tmp_path / "none")])
    assert done.exit_code == 1
    assert "virtfleet up --nodes" in done.stderr
