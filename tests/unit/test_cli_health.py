"""`virtfleet doctor` and `support-bundle`: what is found, what is advised, and that nothing secret leaves."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from virtfleet.cli.health import machine, redaction
from virtfleet.cli.health.cluster import Cluster, checks
from virtfleet.cli.health.finding import FINE, PROBLEM, WARNING
from virtfleet.cli.main import main
from virtfleet.local.apiserver.rights.pki import Pki

NOW = datetime(2026, 1, 1, tzinfo=UTC)
SECRET = "hunter2-do-not-tell"
KUBEVIRT: dict[str, Any] = {
    "metadata": {"name": "kubevirt", "namespace": "kubevirt", "generation": 1},
    "status": {
        "observedGeneration": 1,
        "observedKubeVirtVersion": "0.2.0",
        "conditions": [{"type": "Available", "status": "True", "message": ""}],
    },
}


def made(name: str, minutes: float = 60, **status: Any) -> dict[str, Any]:
    at = (NOW - timedelta(minutes=minutes)).strftime("%Y-%m-%dT%H:%M:%SZ")
    return {"metadata": {"name": name, "namespace": "default", "creationTimestamp": at}, "status": status}


def ready(name: str, status: str = "True", **spec: Any) -> dict[str, Any]:
    return {"metadata": {"name": name}, "spec": spec, "status": {"conditions": [{"type": "Ready", "status": status}]}}


def component(name: str, node: str = "a", restarts: int = 0) -> dict[str, Any]:
    return {
        "metadata": {"name": name, "namespace": "kubevirt", "labels": {"kubevirt.io": "virt-handler"}},
        "spec": {"nodeName": node},
        "status": {
            "phase": "Running",
            "conditions": [{"type": "Ready", "status": "True"}],
            "containerStatuses": [{"name": "virt-handler", "restartCount": restarts, "state": {"running": {}}}],
        },
    }


def found(**objects: list[dict[str, Any]]) -> dict[str, list[str]]:
    """What the doctor says, by level; a sound cluster but for what is given."""
    sound = {"nodes": [ready("a")], "pods": [component("virt-handler-1")]}
    findings = list(checks(Cluster(KUBEVIRT, {**sound, **objects}), NOW))
    for finding in findings:
        assert finding.level == FINE or finding.advice, finding
    return {level: [f.text for f in findings if f.level == level] for level in (PROBLEM, WARNING)}


def test_a_sound_cluster_has_nothing_wrong() -> None:
    assert found() == {PROBLEM: [], WARNING: []}


def test_what_is_wrong_with_a_cluster_is_named() -> None:
    waiting = made(
        "slow", phase="Scheduling", conditions=[{"type": "PodScheduled", "status": "False", "message": "no"}]
    )
    young = made("young", minutes=1, phase="Scheduling")
    ending = made("ending", phase="Running")
    ending["metadata"]["deletionTimestamp"] = "2025-12-31T00:00:00Z"
    assert found(
        nodes=[ready("a"), ready("b", "Unknown"), ready("c", unschedulable=True)],
        pods=[component("virt-handler-1", "a"), component("h-2", "b"), component("h-3", "c", restarts=5)],
        virtualmachineinstances=[waiting, young, ending, made("fine", phase="Running")],
        virtualmachineinstancemigrations=[{**made("m", phase="Pending"), "spec": {"vmiName": "fine"}}],
        virtualmachines=[made("broken", printableStatus="CrashLoopBackOff"), made("off", printableStatus="Stopped")],
    ) == {
        PROBLEM: [
            "b is not ready",
            "node b is not ready",
            "default/slow is Scheduling: no",
            "default/ending is to end since 2025-12-31T00:00:00Z",
            "default/broken is CrashLoopBackOff",
        ],
        WARNING: [
            "h-3 was started again 5 times",
            "c is cordoned: no VM can start there",
            "default/m of fine is Pending",
        ],
    }


def test_a_cluster_without_virtfleet_is_told_so() -> None:
    (only,) = checks(Cluster(), NOW)
    assert (only.level, only.advice) == (PROBLEM, "Install VirtFleet: virtfleet install")


def test_the_machine(tmp_path: Path) -> None:
    assert machine.kernel("6.1.0-13-amd64").level == FINE
    assert machine.kernel("4.19.0").level == PROBLEM
    assert machine.groups(tmp_path).level == PROBLEM
    (tmp_path / "cgroup.controllers").write_text("cpu memory pids io")
    assert machine.groups(tmp_path).text == "version 2"


def test_certificates_that_end_soon(tmp_path: Path) -> None:
    Pki(tmp_path)
    assert [f.level for f in machine.certificates(tmp_path / "pki", datetime.now(UTC))] == [FINE]
    later = datetime.now(UTC) + timedelta(days=360)
    late = list(machine.certificates(tmp_path / "pki", later))
    assert {f.level for f in late} == {PROBLEM} and all("ends on" in f.text for f in late)


def test_the_doctor_ends_with_1_where_there_is_a_problem(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("KUBECONFIG", raising=False)
    (tmp_path / "config").write_text(
        "{clusters: [{name: c, cluster: {server: 'http://127.0.0.1:1'}}], current-context: c, "
        "contexts: [{name: c, context: {cluster: c}}]}"
    )
    done = CliRunner().invoke(main, ["doctor", "--kubeconfig", str(tmp_path / "config"), "-o", "json"])
    told = json.loads(done.stdout)
    assert done.exit_code == 1 and told["problems"] == 1, done.output
    assert "127.0.0.1:1" in told["findings"][-1]["text"] and "ssl" not in told["findings"][-1]["text"]


HIDING_PLACES = {
    "cloud-init": {"spec": {"volumes": [{"cloudInitNoCloud": {"userData": f"password: {SECRET}"}}]}},
    "cloud-init in base64": {"cloudInitConfigDrive": {"userDataBase64": SECRET, "networkDataBase64": SECRET}},
    "what kubectl applied": {"annotations": {"kubectl.kubernetes.io/last-applied-configuration": SECRET}},
    "an object in an annotation": {"annotations": {"x": json.dumps({"a": [{"userData": SECRET}]})}},
    "a variable": {"env": [{"name": "DB_PASSWORD", "value": SECRET}]},
    "a secret": {"kind": "Secret", "data": {"x": SECRET}, "stringData": {"y": SECRET}},
    "a field that says so": {"rootPassword": SECRET, "apiKey": SECRET},
    "an address": {"url": f"https://me:{SECRET}@example.com/x"},
}


@pytest.mark.parametrize("place", HIDING_PLACES)
def test_no_secret_stays_in_an_object(place: str) -> None:
    assert SECRET not in json.dumps(redaction.cleaned(HIDING_PLACES[place]))


@pytest.mark.parametrize(
    "line",
    [
        f"Authorization: Bearer {SECRET}",
        "eyJhbGciOiJSUzI1NiJ9.hunter2-do-not-tell.sig",
        f"-----BEGIN EC PRIVATE KEY-----\n{SECRET}\n-----END EC PRIVATE KEY-----",
        f"-----BEGIN PRIVATE KEY-----\n{SECRET}",
        f'{{"password": "{SECRET}"}}',
        f"token={SECRET} next",
    ],
)
def test_no_secret_stays_in_a_log(line: str) -> None:
    assert SECRET not in redaction.text(f"before {line} after")
    assert redaction.text(f"before {line} after").startswith("before ")


def test_what_helps_stays() -> None:
    vmi = {"metadata": {"name": "web"}, "spec": {"volumes": [{"name": "d", "secret": {"secretName": "s"}}], "cores": 2}}
    assert redaction.cleaned(vmi) == vmi
    assert redaction.text("node-a: cannot pull image x:1") == "node-a: cannot pull image x:1"


NESTED = st.recursive(
    st.text(max_size=8) | st.integers(), lambda c: st.lists(c, max_size=3) | st.dictionaries(st.text(max_size=8), c)
)


@given(NESTED, st.sampled_from(["userData", "password", "stringData", "networkDataBase64"]))
def test_wherever_it_is_hidden(around: Any, field: str) -> None:
    hidden = {"a": around, "b": [{"c": {field: f"{SECRET}"}}, json.dumps([{field: SECRET, "d": around}])]}
    assert SECRET not in json.dumps(redaction.cleaned(hidden))
