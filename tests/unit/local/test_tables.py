"""What `kubectl get` shows."""

from __future__ import annotations

import time
from typing import Any
from unittest.mock import Mock

import pytest

from virtfleet.kube.resource import Obj
from virtfleet.local.apiserver.kinds import builtin
from virtfleet.local.apiserver.kinds.crds import custom_kind
from virtfleet.local.apiserver.kinds.registry import Kind, Kinds
from virtfleet.local.apiserver.tables.shown import human, since
from virtfleet.local.apiserver.tables.table import table

KINDS = Kinds()
builtin.register(KINDS, Mock())


def kind(group: str, plural: str) -> Kind:
    found = KINDS.find(group, "v1", plural)
    assert found
    return found


def row(group: str, plural: str, obj: Obj) -> dict[str, Any]:
    """The cells by the names of their columns."""
    obj["metadata"] = {"name": "x", "creationTimestamp": timestamp(90), **obj.get("metadata", {})}
    made = table(kind(group, plural), [obj], {})
    names = [column["name"] for column in made["columnDefinitions"]]
    return dict(zip(names, made["rows"][0]["cells"], strict=True))


def timestamp(seconds_ago: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() - seconds_ago))


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0s"), (119, "119s"), (120, "2m"), (150, "2m30s"), (600, "10m"), (10_799, "179m"), (10_800, "3h"),
        (11_100, "3h5m"), (28_800, "8h"), (172_799, "47h"), (172_800, "2d"), (180_000, "2d2h"), (691_200, "8d"),
        (63_072_000, "2y"), (64_000_000, "2y10d"), (300_000_000, "9y"), (-0.5, "0s"), (-5, "<invalid>"),
    ],
)  # fmt: skip
def test_ages_lose_detail_as_they_grow(seconds: float, text: str) -> None:
    assert human(seconds) == text


def test_an_age_without_a_beginning_is_unknown() -> None:
    assert since(None) == "<unknown>"


def container(state: Obj, **more: Any) -> Obj:
    return {"name": "c", "state": state, "ready": "running" in state, "restartCount": 0, **more}


@pytest.mark.parametrize(
    ("status", "metadata", "word", "ready"),
    [
        ({"phase": "Pending"}, {}, "Pending", "0/1"),
        ({"phase": "Failed", "reason": "Evicted"}, {}, "Evicted", "0/1"),
        ({"phase": "Running", "containerStatuses": [container({"running": {}})]}, {}, "Running", "1/1"),
        (
            {"phase": "Running", "containerStatuses": [container({"waiting": {"reason": "CrashLoopBackOff"}})]},
            {},
            "CrashLoopBackOff",
            "0/1",
        ),
        (
            {"phase": "Failed", "containerStatuses": [container({"terminated": {"exitCode": 3}})]},
            {},
            "ExitCode:3",
            "0/1",
        ),
        (
            {
                "phase": "Succeeded",
                "containerStatuses": [container({"terminated": {"exitCode": 0, "reason": "Completed"}})],
            },
            {},
            "Completed",
            "0/1",
        ),
        (
            {"phase": "Running", "containerStatuses": [container({"running": {}})]},
            {"deletionTimestamp": "2024-01-01T00:00:00Z"},
            "Terminating",
            "1/1",
        ),
        (
            {"phase": "Pending", "initContainerStatuses": [container({"running": {}}, ready=False)]},
            {},
            "Init:0/1",
            "0/1",
        ),
        (
            {
                "phase": "Pending",
                "initContainerStatuses": [container({"terminated": {"exitCode": 1, "reason": "Error"}})],
            },
            {},
            "Init:Error",
            "0/1",
        ),
    ],
)
def test_one_word_sums_up_a_pod(status: Obj, metadata: Obj, word: str, ready: str) -> None:
    spec: Obj = {"containers": [{"name": "c"}], "initContainers": [{"name": "i"}]}
    cells = row("", "pods", {"metadata": metadata, "spec": spec, "status": status})
    assert (cells["Status"], cells["Ready"]) == (word, ready)


def test_restarts_say_how_long_ago() -> None:
    last = {"terminated": {"finishedAt": timestamp(60)}}
    status = {"phase": "Running", "containerStatuses": [container({"running": {}}, restartCount=4, lastState=last)]}
    assert row("", "pods", {"spec": {"containers": [{}]}, "status": status})["Restarts"] in (
        "4 (60s ago)",
        "4 (61s ago)",
    )


def test_nodes_show_readiness_roles_and_cordons() -> None:
    cells = row(
        "",
        "nodes",
        {
            "metadata": {"labels": {"node-role.kubernetes.io/worker": ""}},
            "spec": {"unschedulable": True},
            "status": {
                "conditions": [{"type": "Ready", "status": "False"}],
                "nodeInfo": {"kubeletVersion": "v1", "kernelVersion": "6.1", "architecture": "amd64"},
                "addresses": [{"type": "InternalIP", "address": "10.0.0.1"}],
            },
        },
    )
    assert cells["Status"] == "NotReady,SchedulingDisabled"
    assert cells["Roles"] == "worker"
    assert cells["Kernel-Version"] == "6.1 (amd64)"
    assert cells["Internal-IP"] == "10.0.0.1"
    assert cells["External-IP"] == "<none>"


def test_services_show_addresses_and_ports() -> None:
    ports = [{"port": 80, "nodePort": 30080, "protocol": "TCP"}, {"port": 53, "protocol": "UDP"}]
    spec = {"type": "LoadBalancer", "clusterIP": "10.96.0.9", "ports": ports, "selector": {"b": "2", "a": "1"}}
    cells = row("", "services", {"spec": spec})
    assert cells["External-IP"] == "<pending>"
    assert cells["Port(s)"] == "80:30080/TCP,53/UDP"
    assert cells["Selector"] == "a=1,b=2"


def test_events_show_the_latest_time_and_their_object() -> None:
    event = {
        "involvedObject": {"kind": "Pod", "name": "p"},
        "message": "pulled\n",
        "firstTimestamp": timestamp(600),
        "lastTimestamp": timestamp(30),
        "source": {"component": "kubelet", "host": "n1"},
    }
    cells = row("", "events", event)
    assert (cells["Object"], cells["Message"], cells["Source"]) == ("pod/p", "pulled", "kubelet, n1")
    assert cells["Last Seen"] in ("30s", "31s")
    assert cells["Count"] == 1


@pytest.mark.parametrize(
    ("group", "plural", "obj", "column", "value"),
    [
        ("apps", "deployments", {"spec": {"replicas": 3}, "status": {"readyReplicas": 1}}, "Ready", "1/3"),
        ("apps", "daemonsets", {"status": {"desiredNumberScheduled": 2}}, "Desired", 2),
        ("apps", "replicasets", {"spec": {"selector": {"matchLabels": {"a": "b"}}}}, "Selector", "a=b"),
        ("", "persistentvolumeclaims", {"spec": {}, "status": {"phase": "Pending"}}, "Capacity", ""),
        ("", "secrets", {"data": {"a": "", "b": ""}}, "Data", 2),
        ("policy", "poddisruptionbudgets", {"spec": {"minAvailable": 1}}, "Max Unavailable", "N/A"),
        ("apiregistration.k8s.io", "apiservices", {"spec": {}}, "Service", "Local"),
        ("coordination.k8s.io", "leases", {"spec": {"holderIdentity": "me"}}, "Holder", "me"),
    ],
)  # fmt: skip
def test_columns_of_kinds(group: str, plural: str, obj: Obj, column: str, value: Any) -> None:
    if group == "apps":
        obj.setdefault("spec", {})["template"] = {"spec": {}}
    assert row(group, plural, obj)[column] == value


def test_every_kind_with_columns_prints_a_fresh_object() -> None:
    skeleton: Obj = {"spec": {"template": {"spec": {}}}, "roleRef": {}}
    for each in KINDS:
        assert row(each.resource.group, each.resource.plural, dict(skeleton)), each.resource


def custom(columns: list[Obj]) -> Kind:
    names = {"plural": "things", "singular": "thing", "kind": "Thing", "listKind": "ThingList"}
    version = {
        "name": "v1",
        "schema": {"openAPIV3Schema": {"type": "object"}},
        "additionalPrinterColumns": columns,
    }
    return custom_kind({"group": "example.com", "scope": "Namespaced", "names": names}, version)


def test_custom_columns_follow_their_type_and_path() -> None:
    columns: list[Obj] = [
        {"name": "Phase", "type": "string", "jsonPath": ".status.phase"},
        {"name": "Ready", "type": "string", "jsonPath": '.status.conditions[?(@.type=="Ready")].status', "priority": 1},
        {"name": "Replicas", "type": "integer", "jsonPath": ".spec.replicas"},
        {"name": "Started", "type": "date", "jsonPath": ".status.started"},
        {"name": "Absent", "type": "string", "jsonPath": ".status.absent"},
        {"name": "Wrong", "type": "integer", "jsonPath": ".status.phase"},
    ]
    obj = {
        "metadata": {"name": "x"},
        "spec": {"replicas": 2},
        "status": {
            "phase": "Running",
            "started": timestamp(3000),
            "conditions": [{"type": "Ready", "status": "True"}],
        },
    }
    made = table(custom(columns), [obj], {"resourceVersion": "7", "continue": "more"})
    assert made["rows"][0]["cells"] == ["x", "Running", "True", 2, "50m", None, None]
    assert [c["priority"] for c in made["columnDefinitions"]] == [0, 0, 1, 0, 0, 0, 0]
    assert made["metadata"] == {"resourceVersion": "7", "continue": "more"}


def test_a_custom_kind_without_columns_shows_its_age() -> None:
    obj = {"metadata": {"name": "x", "creationTimestamp": timestamp(3000)}}
    assert table(custom([]), [obj], {})["rows"][0]["cells"] == ["x", "50m"]


@pytest.mark.parametrize("include", ["None", "Metadata", "Object"])
def test_rows_carry_what_was_asked_for(include: str) -> None:
    obj = {"metadata": {"name": "x"}, "data": {"a": "b"}}
    made = table(kind("", "configmaps"), [obj], {}, include)["rows"][0]
    expected = {"None": None, "Metadata": {"name": "x"}, "Object": {"name": "x"}}[include]
    assert (made.get("object") or {}).get("metadata") == expected
    assert ("data" in (made.get("object") or {})) == (include == "Object")
