"""Small decisions of the controllers: what goes first, what fits, what is said."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from virtfleet.api import conditions
from virtfleet.api.times import timestamp
from virtfleet.kube.errors import ApiError
from virtfleet.kube.resource import Obj, Resource
from virtfleet.local.controllers import claims, pods
from virtfleet.local.controllers.deployment import annotations_for, same_template, set_for, status_of
from virtfleet.local.controllers.disruption import expectation, still_disrupted
from virtfleet.local.controllers.endpoints import slices
from virtfleet.local.controllers.namespace import one_version_each
from virtfleet.local.controllers.nodes import NodeView
from virtfleet.local.controllers.podposts import check
from virtfleet.local.controllers.replicaset import deletion_order


def a_pod(name: str, **more: Any) -> pods.Pod:
    status = {
        "phase": more.get("phase", "Running"),
        "conditions": [
            {
                "type": "Ready",
                "status": str(more.get("ready", True)),
                "lastTransitionTime": timestamp(more.get("ready_since", 1000)),
            }
        ],
        "podIPs": [{"ip": ip} for ip in more.get("ips", ())],
    }
    meta = {
        "name": name,
        "namespace": "default",
        "uid": name,
        "labels": more.get("labels", {}),
        "creationTimestamp": timestamp(more.get("created", 1000)),
    }
    return pods.decode(orjson.dumps({"metadata": meta, "spec": {"nodeName": more.get("node", "n")}, "status": status}))


@pytest.mark.parametrize(
    ("goes", "stays"),
    [
        ({"node": ""}, {"ready": False}),
        ({"phase": "Pending"}, {"phase": "Running", "ready": False}),
        ({"ready": False}, {"ready": True, "created": 2000}),
        ({"created": 2000}, {"created": 1000}),
    ],
)
def test_the_pod_that_is_missed_least_goes_first(goes: dict[str, Any], stays: dict[str, Any]) -> None:
    one, two = a_pod("z-goes", **goes), a_pod("a-stays", **stays)
    assert deletion_order([two, one])[0] is one


def test_a_template_hash_depends_on_content_and_not_on_order() -> None:
    one, two = {"a": 1, "b": {"c": 2}}, {"b": {"c": 2}, "a": 1}
    assert pods.template_hash(one) == pods.template_hash(two)
    assert pods.template_hash(one, "other") != pods.template_hash(one)
    assert len(pods.template_hash(one)) == 10


def a_deployment(**spec: Any) -> Obj:
    template = {"metadata": {"labels": {"app": "web"}}, "spec": {"containers": [{"name": "c"}]}}
    return {
        "metadata": {"name": "web", "namespace": "default", "uid": "u", "generation": 2},
        "spec": {"replicas": 3, "selector": {"matchLabels": {"app": "web"}}, "template": template, **spec},
    }


def test_a_replica_set_is_recognised_by_its_template_whatever_its_hash_label_says() -> None:
    deployment = a_deployment()
    replica_set = set_for(deployment, [], 3)
    assert replica_set["spec"]["template"] != deployment["spec"]["template"]
    assert same_template(replica_set["spec"]["template"], deployment["spec"]["template"])
    label = replica_set["metadata"]["labels"]["pod-template-hash"]
    assert replica_set["spec"]["selector"]["matchLabels"] == {"app": "web", "pod-template-hash": label}


def test_a_replica_set_that_becomes_current_again_is_the_newest_of_the_history() -> None:
    def of_revision(number: str) -> Obj:
        return {"metadata": {"annotations": {"deployment.kubernetes.io/revision": number}}}

    def next_one(mine: Obj | None, *old: str) -> str:
        answer = annotations_for(a_deployment(), mine, [of_revision(number) for number in old])
        return answer["deployment.kubernetes.io/revision"]

    assert next_one(of_revision("4"), "2", "6") == "7"
    assert next_one(of_revision("4"), "2") == "4"
    assert next_one(None) == "1"


def numbers(replicas: int, available: int) -> Obj:
    status = {"replicas": replicas, "readyReplicas": available, "availableReplicas": available}
    return {"metadata": {"name": "web-1"}, "spec": {"replicas": replicas}, "status": status}


def reason(status: Obj) -> str:
    return str((conditions.find(status["conditions"], "Progressing") or {}).get("reason"))


def test_a_rollout_moves_and_ends_and_a_pod_that_is_lost_later_is_no_rollout() -> None:
    deployment = a_deployment()
    deployment["status"] = moving = status_of(deployment, numbers(3, 1), [], now=1000)
    assert reason(moving) == "ReplicaSetUpdated"
    assert status_of(deployment, numbers(3, 1), [], now=1050) == moving
    deployment["status"] = done = status_of(deployment, numbers(3, 3), [], now=2000)
    assert reason(done) == "NewReplicaSetAvailable"
    lost = status_of(deployment, numbers(3, 2), [], now=9000)
    assert reason(lost) == "NewReplicaSetAvailable"
    assert conditions.holds(lost["conditions"], "Available", "False")


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ({"minAvailable": 2}, (4, 2)),
        ({"minAvailable": "50%"}, (10, 5)),
        ({"minAvailable": "55%"}, (10, 6)),
        ({"maxUnavailable": 3}, (10, 7)),
        ({"maxUnavailable": "25%"}, (10, 7)),
        ({"maxUnavailable": 20}, (10, 0)),
    ],
)
def test_what_a_budget_expects_of_four_pods_of_ten_replicas(spec: Obj, expected: tuple[int, int]) -> None:
    assert expectation(spec, 4, 10) == expected


def test_an_eviction_that_did_not_happen_is_forgotten_after_a_while() -> None:
    noted = {"gone": timestamp(1000), "late": timestamp(800), "soon": timestamp(990)}
    assert still_disrupted(noted, [a_pod("late"), a_pod("soon")], 1000) == {"soon": noted["soon"]}


def test_a_budget_that_was_not_counted_yet_refuses_for_now() -> None:
    with pytest.raises(ApiError) as refused:
        check(
            {"metadata": {"name": "b", "generation": 2}, "status": {"observedGeneration": 1, "disruptionsAllowed": 1}}
        )
    assert refused.value.details is not None
    assert refused.value.details["retryAfterSeconds"] == 10


def a_volume(name: str, size: str = "2Gi", **spec: Any) -> Obj:
    spec = {"capacity": {"storage": size}, "accessModes": ["ReadWriteOnce"], "storageClassName": "c", **spec}
    return {"metadata": {"name": name}, "spec": spec}


def a_claim(**spec: Any) -> Obj:
    spec = {
        "accessModes": ["ReadWriteOnce"],
        "resources": {"requests": {"storage": "1Gi"}},
        "storageClassName": "c",
        **spec,
    }
    return {"metadata": {"name": "data", "namespace": "default", "uid": "u"}, "spec": spec}


@pytest.mark.parametrize(
    ("volume", "fits"),
    [
        ({}, True),
        ({"size": "512Mi"}, False),
        ({"accessModes": ["ReadOnlyMany"]}, False),
        ({"storageClassName": "other"}, False),
        ({"volumeMode": "Block"}, False),
        ({"claimRef": {"namespace": "default", "name": "data"}}, True),
        ({"claimRef": {"namespace": "default", "name": "data", "uid": "another"}}, False),
        ({"claimRef": {"namespace": "default", "name": "other"}}, False),
    ],
)
def test_which_volume_serves_a_claim(volume: dict[str, Any], fits: bool) -> None:
    assert claims.satisfies(a_volume("v", **volume), a_claim()) == fits


def test_a_promised_volume_is_taken_before_a_smaller_one() -> None:
    promised = a_volume("promised", "9Gi", claimRef={"namespace": "default", "name": "data"})
    assert claims.best_match(a_claim(), [a_volume("small"), promised], None) is promised


def test_the_volume_that_was_made_for_a_claim_is_its_own_also_when_another_node_is_chosen() -> None:
    """A controller that is killed between making it and binding it finds it again: its name is taken."""
    term = {"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "In", "values": ["n1"]}]}
    there = {"nodeAffinity": {"required": {"nodeSelectorTerms": [term]}}}
    n2 = NodeView("n2", labels={"kubernetes.io/hostname": "n2"})
    made = a_volume("made", claimRef={"namespace": "default", "name": "data", "uid": "u"}, **there)
    assert claims.best_match(a_claim(), [made, a_volume("elsewhere", **there)], n2) is made
    assert claims.best_match(a_claim(), [a_volume("elsewhere", **there)], n2) is None


def a_service(**spec: Any) -> Obj:
    return {
        "metadata": {"name": "web", "namespace": "default", "uid": "u"},
        "spec": {
            "selector": {"app": "web"},
            "ports": [{"port": 80, "targetPort": 8080}],
            "clusterIP": "1.2.3.4",
            **spec,
        },
    }


def test_a_slice_keeps_its_name_whichever_pods_come_and_go() -> None:
    many = [a_pod(f"p{i:03}", labels={"app": "web"}, ips=[f"10.0.0.{i}"]) for i in range(150)]
    first = slices(a_service(), many)
    assert [len(s["endpoints"]) for s in first.values()] == [150]
    assert slices(a_service(), many[:149]).keys() == first.keys()


def test_of_a_pods_addresses_services_use_the_one_of_their_family() -> None:
    both, other = (
        a_pod(n, labels={"app": "web"}, ips=ips) for n, ips in (("a", ["fd00::1", "10.0.0.1"]), ("b", ["fd00::2"]))
    )
    (piece,) = slices(a_service(), [both, other]).values()
    assert [e["addresses"] for e in piece["endpoints"]] == [["10.0.0.1"]]


def test_finished_pods_have_no_endpoints() -> None:
    pod = a_pod("p", labels={"app": "web"}, ips=["10.0.0.1"], phase="Succeeded")
    assert [s["endpoints"] for s in slices(a_service(), [pod]).values()] == [[]]


def test_kinds_that_are_served_in_two_versions_count_once() -> None:
    old, new = Resource("g", "v1", "things", "Thing"), Resource("g", "v2", "things", "Thing")
    assert len(one_version_each([old, new, Resource("", "v1", "pods", "Pod")])) == 2
