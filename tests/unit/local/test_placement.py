"""Where pods go, and what is said when they cannot go anywhere."""

from __future__ import annotations

from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from virtfleet.local.controllers import nodes, pods
from virtfleet.local.controllers.placement import Book, Volumes, place


def a_node(name: str, *, labels: dict[str, str] | None = None, **spec: Any) -> nodes.NodeView:
    allocatable = {"cpu": "4", "memory": "8Gi", "pods": "110"} | spec.pop("allocatable", {})
    return nodes.decode(
        orjson.dumps(
            {
                "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name} | (labels or {})},
                "spec": spec,
                "status": {"allocatable": allocatable},
            }
        )
    )


def a_pod(name: str = "p", *, requests: dict[str, str] | None = None, owner: str = "", **spec: Any) -> pods.Pod:
    labels = spec.pop("labels", {})
    container: dict[str, Any] = {"name": "c", "resources": {"requests": requests or {}}, "ports": spec.pop("ports", [])}
    references = [{"uid": owner, "kind": "ReplicaSet", "name": owner, "controller": True}] if owner else []
    return pods.decode(
        orjson.dumps(
            {
                "metadata": {
                    "name": name,
                    "namespace": spec.pop("namespace", "default"),
                    "uid": name,
                    "labels": labels,
                    "ownerReferences": references,
                },
                "spec": {"containers": [container], **spec},
            }
        )
    )


def a_book(*known: nodes.NodeView, **seated: list[pods.Pod]) -> Book:
    book = Book()
    for node in known:
        book.node_seen(node)
    for name, there in seated.items():
        for pod in there:
            book.enter(pod, name)
    return book


def anti(key: str = "kubernetes.io/hostname", **labels: str) -> dict[str, Any]:
    term = {"topologyKey": key, "labelSelector": {"matchLabels": labels}}
    return {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}


def required(*expressions: dict[str, Any], fields: list[dict[str, Any]] | None = None) -> dict[str, Any]:
    term = {"matchExpressions": list(expressions), "matchFields": fields or []}
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}}}


def test_without_nodes_the_message_says_so() -> None:
    assert place(a_pod(), Book()).message == "no nodes available to schedule pods"


def test_the_message_counts_the_reasons() -> None:
    book = a_book(
        a_node("a", labels={"gpu": "yes"}),
        a_node("b"),
        a_node("c"),
        a=[a_pod("big", requests={"memory": "7Gi"})],
    )
    answer = place(a_pod(requests={"memory": "2Gi"}, nodeSelector={"gpu": "yes"}), book)
    assert answer.message == (
        "0/3 nodes are available: 1 Insufficient memory, 2 node(s) didn't match Pod's node affinity/selector."
    )


@pytest.mark.parametrize(
    ("node", "reason"),
    [
        ({"taints": [{"key": "k", "value": "v", "effect": "NoSchedule"}]}, "node(s) had untolerated taint {k: v}"),
        ({"taints": [{"key": "k", "effect": "NoExecute"}]}, "node(s) had untolerated taint {k: }"),
        ({"unschedulable": True}, "node(s) were unschedulable"),
    ],
)
def test_a_node_that_wants_no_pods_is_left_out(node: dict[str, Any], reason: str) -> None:
    assert f"1 {reason}." in place(a_pod(), a_book(a_node("a", **node))).message


@pytest.mark.parametrize("effect", ["NoSchedule", "NoExecute"])
def test_a_toleration_opens_a_tainted_node(effect: str) -> None:
    book = a_book(a_node("a", taints=[{"key": "k", "value": "v", "effect": effect}]))
    assert place(a_pod(tolerations=[{"key": "k", "operator": "Exists"}]), book).node == "a"
    assert place(a_pod(tolerations=[{"key": "k", "value": "w", "effect": effect}]), book).node == ""


def test_daemon_pods_reach_cordoned_nodes_by_tolerating_the_unschedulable_taint() -> None:
    tolerations = [{"key": nodes.UNSCHEDULABLE, "operator": "Exists", "effect": "NoSchedule"}]
    assert place(a_pod(tolerations=tolerations), a_book(a_node("a", unschedulable=True))).node == "a"


def test_match_fields_pin_a_pod_to_one_node() -> None:
    book = a_book(a_node("a"), a_node("b"))
    pinned = required(fields=[{"key": "metadata.name", "operator": "In", "values": ["b"]}])
    assert place(a_pod(affinity=pinned), book).node == "b"


def test_an_empty_affinity_term_matches_no_node() -> None:
    assert place(a_pod(affinity=required()), a_book(a_node("a"))).node == ""


def test_extended_resources_and_the_number_of_pods_are_counted() -> None:
    full = a_node("a", allocatable={"devices.kubevirt.io/kvm": "1"})
    book = a_book(full, a_node("b", allocatable={"pods": "0"}))
    pod = a_pod(requests={"devices.kubevirt.io/kvm": "1"})
    assert place(pod, book).node == "a"
    book.enter(pod, "a")
    message = place(a_pod("q", requests={"devices.kubevirt.io/kvm": "1"}), book).message
    assert "2 Insufficient devices.kubevirt.io/kvm" in message
    assert "1 Too many pods" in message


@pytest.mark.parametrize(
    ("first", "second", "clash"),
    [
        ({"hostPort": 80}, {"hostPort": 80}, True),
        ({"hostPort": 80}, {"hostPort": 81}, False),
        ({"hostPort": 80}, {"hostPort": 80, "protocol": "UDP"}, False),
        ({"hostPort": 80, "hostIP": "127.0.0.1"}, {"hostPort": 80, "hostIP": "127.0.0.2"}, False),
        ({"hostPort": 80, "hostIP": "127.0.0.1"}, {"hostPort": 80}, True),
    ],
)
def test_host_ports_clash_by_protocol_and_overlapping_address(
    first: dict[str, Any], second: dict[str, Any], clash: bool
) -> None:
    book = a_book(a_node("a"), a=[a_pod("there", ports=[{"containerPort": 8080, **first}])])
    answer = place(a_pod(ports=[{"containerPort": 8080, **second}]), book)
    assert bool(answer.message) == clash


def test_init_containers_count_by_the_largest_of_them() -> None:
    pod = a_pod(
        requests={"cpu": "1"},
        initContainers=[
            {"resources": {"requests": {"cpu": "500m"}}},
            {"resources": {"requests": {"cpu": "2"}}},
        ],
        overhead={"cpu": "100m"},
    )
    assert pod.template.requests == {"cpu": 2100}


def test_sidecars_count_beside_whatever_comes_after_them() -> None:
    def init(cpu: str, **more: str) -> dict[str, Any]:
        return {"resources": {"requests": {"cpu": cpu}}, **more}

    side = init("300m", restartPolicy="Always")
    assert a_pod(requests={"cpu": "1"}, initContainers=[side, side]).template.requests == {"cpu": 1600}
    assert a_pod(requests={"cpu": "1"}, initContainers=[side, init("2")]).template.requests == {"cpu": 2300}
    assert a_pod(requests={"cpu": "1"}, initContainers=[init("2"), side]).template.requests == {"cpu": 2000}


def test_pods_of_one_owner_spread_over_nodes_of_equal_room() -> None:
    book = a_book(a_node("a"), a_node("b"), a_node("c"))
    chosen = []
    for i in range(3):
        pod = a_pod(f"p{i}", owner="rs", requests={"cpu": "100m"})
        chosen.append(place(pod, book).node)
        book.enter(pod, chosen[-1])
    assert sorted(chosen) == ["a", "b", "c"]


def test_pods_go_where_more_is_free() -> None:
    book = a_book(a_node("a"), a_node("b"), a=[a_pod("there", requests={"cpu": "2", "memory": "4Gi"})])
    assert place(a_pod(requests={"cpu": "1"}), book).node == "b"


def test_preferences_outweigh_free_room_and_soft_taints_outweigh_preferences() -> None:
    prefer = {
        "nodeAffinity": {
            "preferredDuringSchedulingIgnoredDuringExecution": [
                {
                    "weight": 1,
                    "preference": {"matchExpressions": [{"key": "ssd", "operator": "Exists"}]},
                }
            ]
        }
    }
    busy = a_pod("there", requests={"cpu": "2"})
    assert place(a_pod(affinity=prefer), a_book(a_node("a", labels={"ssd": ""}), a_node("b"), a=[busy])).node == "a"
    taint = [{"key": "k", "effect": "PreferNoSchedule"}]
    assert place(a_pod(affinity=prefer), a_book(a_node("a", labels={"ssd": ""}, taints=taint), a_node("b"))).node == "b"


def test_anti_affinity_keeps_pods_apart_in_both_directions() -> None:
    guard = a_pod("guard", labels={"app": "db"}, affinity=anti(app="db"))
    book = a_book(a_node("a"), a=[guard])
    assert (
        "1 node(s) didn't match pod anti-affinity rules"
        in place(a_pod(labels={"app": "web"}, affinity=anti(app="db")), book).message
    )
    assert (
        "1 node(s) didn't satisfy existing pods anti-affinity rules" in place(a_pod(labels={"app": "db"}), book).message
    )
    assert place(a_pod(labels={"app": "db"}, namespace="other"), book).node == "a"


def test_affinity_brings_pods_together_and_lets_the_first_one_in() -> None:
    together = {
        "podAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": [
                {"topologyKey": "zone", "labelSelector": {"matchLabels": {"app": "web"}}}
            ]
        }
    }
    book = a_book(a_node("a", labels={"zone": "1"}), a_node("b", labels={"zone": "2"}))
    first = a_pod("first", labels={"app": "web"}, affinity=together)
    node = place(first, book).node
    book.enter(first, node)
    second = place(a_pod("second", labels={"app": "web"}, affinity=together), book)
    assert second.node == node
    stranger = place(a_pod("x", labels={"app": "y"}, affinity=together), a_book(a_node("a", labels={"zone": "1"})))
    assert "1 node(s) didn't match pod affinity rules" in stranger.message


def test_a_namespace_selector_looks_at_the_labels_of_namespaces() -> None:
    term = anti(app="db")["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"][0]
    affinity = {
        "podAntiAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": [
                {**term, "namespaceSelector": {"matchLabels": {"team": "x"}}}
            ]
        }
    }
    book = a_book(a_node("a"), a=[a_pod("there", labels={"app": "db"}, namespace="theirs")])
    assert place(a_pod(affinity=affinity), book).node == "a"
    book.namespaces = {"theirs": {"team": "x"}}.get
    assert place(a_pod(affinity=affinity), book).node == ""


def test_topology_spread_keeps_the_difference_between_domains_small() -> None:
    constraint = {
        "maxSkew": 1,
        "topologyKey": "zone",
        "whenUnsatisfiable": "DoNotSchedule",
        "labelSelector": {"matchLabels": {"app": "web"}},
    }
    book = a_book(
        a_node("a", labels={"zone": "1"}),
        a_node("b", labels={"zone": "2"}, taints=[{"key": "k", "effect": "NoSchedule"}]),
        a_node("c"),
        a=[a_pod("there", labels={"app": "web"})],
    )
    message = place(a_pod(labels={"app": "web"}, topologySpreadConstraints=[constraint]), book).message
    assert "1 node(s) didn't match pod topology spread constraints," in message
    assert "1 node(s) didn't match pod topology spread constraints (missing required label)" in message


def test_nodes_that_take_no_pods_count_in_a_spread_unless_it_says_otherwise() -> None:
    constraint = {
        "maxSkew": 1,
        "topologyKey": "host",
        "whenUnsatisfiable": "DoNotSchedule",
        "labelSelector": {"matchLabels": {"app": "web"}},
    }
    book = a_book(
        a_node("a", labels={"host": "a"}),
        a_node("cordoned", labels={"host": "b"}, taints=[{"key": "k", "effect": "NoSchedule"}]),
        a=[a_pod("there", labels={"app": "web"})],
    )
    assert place(a_pod(labels={"app": "web"}, topologySpreadConstraints=[constraint]), book).node == ""
    honest = {**constraint, "nodeTaintsPolicy": "Honor"}
    assert place(a_pod(labels={"app": "web"}, topologySpreadConstraints=[honest]), book).node == "a"


def test_claims_rule_out_nodes_or_all_of_them() -> None:
    book = a_book(a_node("a"), a_node("b"))
    local = Volumes(
        admits=lambda node: "" if node.name == "b" else "node(s) didn't match PersistentVolume's node affinity"
    )
    assert place(a_pod(), book, local).node == "b"
    blocked = place(a_pod(), book, Volumes(blocker='persistentvolumeclaim "x" not found'))
    assert blocked.message == '0/2 nodes are available: persistentvolumeclaim "x" not found.'


def test_pods_of_one_template_share_it_and_others_do_not() -> None:
    one, two = a_pod("one", requests={"cpu": "1"}), a_pod("two", requests={"cpu": "1"})
    assert one.template is two.template
    assert a_pod("three", requests={"cpu": "2"}).template is not one.template


def test_the_book_knows_pods_of_nodes_that_come_later_or_went() -> None:
    book = a_book(a=[a_pod("there", requests={"cpu": "3"})])
    assert book.seats() == []
    book.node_seen(a_node("a"))
    assert "Insufficient cpu" in place(a_pod(requests={"cpu": "2"}), book).message
    book.node_gone("a")
    assert book.seats() == []
    book.leave("there")
    book.node_seen(a_node("a"))
    assert place(a_pod(requests={"cpu": "2"}), book).node == "a"


@given(st.lists(st.tuples(st.sampled_from("abcdef"), st.sampled_from(["n1", "n2", "", "n3"])), max_size=40))
def test_whatever_the_order_of_events_the_book_holds_each_pod_once_and_adds_up(moves: list[tuple[str, str]]) -> None:
    book = a_book(a_node("n1"), a_node("n2"), a_node("n3"))
    truth: dict[str, str] = {}
    for uid, node in moves:
        if node:
            book.enter(a_pod(uid, requests={"cpu": "1"}, ports=[{"containerPort": 1, "hostPort": 1}]), node)
            truth[uid] = node
        else:
            book.leave(uid)
            truth.pop(uid, None)
    for seat in book.seats():
        here = {uid for uid, node in truth.items() if node == seat.node.name}
        assert set(seat.pods) == here
        assert seat.used["cpu"] == 1000 * len(here)
        assert sum(seat.ports.values()) == len(here)
